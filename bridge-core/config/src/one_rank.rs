//! Converts a recipe for many ranks to one rank: removes the settings about ranks, keeps those
//! about model and data.

use super::kinds::Kinds;
use super::raw::RawConfig;
use super::reader::Reader;
use super::section::Section;
use super::sections::{DistributedDataParallelConfig, DistributedInitConfig, Precision};
use super::spec::{FieldSpec, Group};

/// Settings of `[optimizer]` about the cooperation of ranks.
const OF_OPTIMIZER: [&str; 4] = [
    "use_distributed_optimizer",
    "overlap_param_gather",
    "use_layer_wise_distributed_optimizer",
    "overlap_param_gather_with_optimizer_step",
];

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
        reset(&mut self.optimizer, |field| OF_OPTIMIZER.contains(&field.name));
        let is_of_ranks = |group: &Group| matches!(group, Group::Layout | Group::Ranks);
        reset(&mut self.model.config, |field| field.groups.iter().any(is_of_ranks));
        self
    }
}

/// Gives settings of a section their defaults.
fn reset<S: Section>(section: &mut S, is_reset: impl Fn(&FieldSpec) -> bool) {
    let kinds = Kinds::default();
    for field in S::fields().iter().filter(|field| is_reset(field)) {
        section.assign(field.name, &field.default, &mut Reader::new(&kinds));
    }
}
