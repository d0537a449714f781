//! Converts a recipe for many ranks to one rank: removes the settings about ranks, keeps those about model and data.

use super::raw::RawConfig;
use super::sections::{
    DistributedDataParallelConfig, DistributedInitConfig, OptimizerConfig, Precision, TransformerConfig,
};

impl RawConfig {
    /// The same recipe for one rank: parallel sizes and all settings about the cooperation of ranks have their defaults. For commands that
    /// only read the data of a recipe.
    #[must_use]
    pub fn for_one_rank(mut self) -> Self {
        self.dist = DistributedInitConfig::default();
        self.ddp = DistributedDataParallelConfig::default();
        self.comm_overlap = None;
        let alone = OptimizerConfig::default();
        if let Some(Precision::Custom(precision)) = &mut self.mixed_precision {
            precision.pipeline_dtype = None;
        }
        let optimizer = &mut self.optimizer;
        optimizer.use_distributed_optimizer = alone.use_distributed_optimizer;
        optimizer.use_layer_wise_distributed_optimizer = alone.use_layer_wise_distributed_optimizer;
        optimizer.overlap_param_gather = alone.overlap_param_gather;
        optimizer.overlap_param_gather_with_optimizer_step = alone.overlap_param_gather_with_optimizer_step;
        let alone = TransformerConfig::default();
        let model = &mut self.model.config;
        model.tensor_model_parallel_size = alone.tensor_model_parallel_size;
        model.sequence_parallel = alone.sequence_parallel;
        model.context_parallel_size = alone.context_parallel_size;
        model.hierarchical_context_parallel_sizes = alone.hierarchical_context_parallel_sizes;
        model.expert_model_parallel_size = alone.expert_model_parallel_size;
        model.expert_tensor_parallel_size = alone.expert_tensor_parallel_size;
        model.pipeline_model_parallel_size = alone.pipeline_model_parallel_size;
        model.virtual_pipeline_model_parallel_size = alone.virtual_pipeline_model_parallel_size;
        model.num_layers_in_first_pipeline_stage = alone.num_layers_in_first_pipeline_stage;
        model.num_layers_in_last_pipeline_stage = alone.num_layers_in_last_pipeline_stage;
        model.account_for_embedding_in_pipeline_split = alone.account_for_embedding_in_pipeline_split;
        model.account_for_loss_in_pipeline_split = alone.account_for_loss_in_pipeline_split;
        model.pipeline_model_parallel_layout = alone.pipeline_model_parallel_layout;
        model.pipeline_schedule = alone.pipeline_schedule;
        model.pipeline_dtype = alone.pipeline_dtype;
        model.microbatch_group_size_per_vp_stage = alone.microbatch_group_size_per_vp_stage;
        model.overlap_p2p_comm = alone.overlap_p2p_comm;
        model.overlap_p2p_comm_warmup_flush = alone.overlap_p2p_comm_warmup_flush;
        model.tp_comm_overlap = alone.tp_comm_overlap;
        model.tp_comm_overlap_cfg = alone.tp_comm_overlap_cfg;
        self
    }
}
