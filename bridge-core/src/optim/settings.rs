//! Settings of the distribution of gradients, optimizer state and parameters over ranks.

use super::bucket::{BucketLayout, BucketPadding, BucketRule, ShardCounts};

/// State that the ranks of a data-parallel group divide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharding {
    /// No sharding: each rank has all gradients and optimizer state.
    #[default]
    None,
    /// Gradients of the whole step, master weights and moments (the distributed optimizer).
    Optimizer,
    /// Optimizer state, and gradients from the end of each micro-batch on: only one micro-batch's
    /// gradients are ever whole.
    Gradients,
    /// Optimizer state, gradients, and the parameters themselves, which are whole only while a
    /// segment uses them.
    Full,
}

impl Sharding {
    /// True if optimizer state is divided, and gradients with it once they are reduced.
    pub fn divides_state(self) -> bool {
        self != Self::None
    }

    /// True if gradients are divided after each micro-batch, and so reduced once for each.
    pub fn divides_gradients(self) -> bool {
        matches!(self, Self::Gradients | Self::Full)
    }
}

/// Reduction of gradients.
#[derive(Clone, Copy, Debug)]
pub struct DistributionSettings {
    /// State that is divided.
    pub sharding: Sharding,
    /// When a bucket is closed. Where gradients are divided always after each segment, so that few
    /// are whole at once.
    pub bucket_rule: BucketRule,
    /// Padding of buckets (`ddp.pad_buckets_for_high_nccl_busbw`).
    pub padding: BucketPadding,
    /// Backward continues while gradients are reduced. Otherwise the rank waits for the reduction:
    /// once at the end of the step or, where gradients are divided, after each segment.
    pub overlap_grad_reduce: bool,
    /// The collective divides gradients by the number of data-parallel ranks. Otherwise the loss
    /// was divided, and gradients are summed.
    pub average_in_collective: bool,
    /// Parameters are gathered while the next forward pass runs; those of the next region while one
    /// runs, where they are sharded. Otherwise they are gathered before the step ends; those of a
    /// region just before it runs, where they are sharded.
    pub overlap_param_gather: bool,
    /// Sharded weights that their layers cast to 8 bits with one scale are gathered as 8-bit codes,
    /// to which ranks cast their shards. Otherwise they are gathered as values, as other
    /// parameters.
    pub fp8_param_gather: bool,
}

impl DistributionSettings {
    /// True if weights are gathered as codes: if they are sharded, so that each rank keeps the
    /// values that it owns.
    pub fn gathers_codes(&self) -> bool {
        self.fp8_param_gather && self.sharding == Sharding::Full
    }

    /// Layout of buckets that are divided over these numbers of ranks.
    pub fn layout(&self, counts: ShardCounts) -> BucketLayout {
        let rule = if self.sharding.divides_gradients() { BucketRule::Segment } else { self.bucket_rule };
        BucketLayout { rule, padding: self.padding, counts }
    }
}

impl Default for DistributionSettings {
    /// No sharding, with one bucket.
    fn default() -> Self {
        Self {
            sharding: Sharding::None,
            bucket_rule: BucketRule::One,
            padding: BucketPadding::EqualParts,
            overlap_grad_reduce: false,
            average_in_collective: false,
            overlap_param_gather: false,
            fp8_param_gather: false,
        }
    }
}
