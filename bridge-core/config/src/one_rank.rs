//! Converts a recipe for many ranks to one rank: removes the settings about ranks, keeps those
//! about model and data.

use super::raw::RawConfig;
use super::sections::{
    DistributedDataParallelConfig, DistributedInitConfig, OptimizerConfig, Precision, TransformerConfig,
};

/// Gives some settings of a section the values that they have in another one.
macro_rules! take {
    ($section:expr, from $other:expr, [$($field:ident),+ $(,)?]) => {{
        let (section, other) = (&mut $section, $other);
        $( section.$field = other.$field; )+
    }};
}

impl RawConfig {
    /// The same recipe for one rank: parallel sizes and all settings about the cooperation of ranks
    /// have their defaults. For commands that only read the data of a recipe.
    #[must_use]
    pub fn for_one_rank(mut self) -> Self {
        self.dist = DistributedInitConfig::default();
        self.ddp = DistributedDataParallelConfig::default();
        self.comm_overlap = None;
        self.checkpoint.use_mp_args_from_checkpoint_args = false;
        if let Some(Precision::Custom(precision)) = &mut self.mixed_precision {
            precision.pipeline_dtype = None;
        }
        take!(self.optimizer, from OptimizerConfig::default(), [use_distributed_optimizer, overlap_param_gather]);
        let refused = ["use_layer_wise_distributed_optimizer", "overlap_param_gather_with_optimizer_step"];
        self.optimizer.refused.reset(&refused);
        take!(self.model.config, from TransformerConfig::default(), [
            tensor_model_parallel_size, sequence_parallel, context_parallel_size, expert_model_parallel_size,
            expert_tensor_parallel_size, pipeline_model_parallel_size, virtual_pipeline_model_parallel_size,
            num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage,
            account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split,
            pipeline_model_parallel_layout, pipeline_schedule, pipeline_dtype, microbatch_group_size_per_vp_stage,
        ]);
        self.model.config.refused.reset(&[
            "hierarchical_context_parallel_sizes",
            "overlap_p2p_comm",
            "overlap_p2p_comm_warmup_flush",
            "tp_comm_overlap",
            "tp_comm_overlap_cfg",
        ]);
        self
    }
}
