//! How gradients, optimizer state and parameters are to be spread over ranks: what a run sets.

use super::bucket::{BucketLayout, BucketPadding, BucketRule, ShardCounts};

/// What the ranks of a data-parallel group divide among themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharding {
    /// Nothing: each has all gradients and optimizer state.
    #[default]
    None,
    /// Gradients of the whole step, master weights and moments (the distributed optimizer).
    Optimizer,
    /// Those, and gradients from the end of each micro-batch on: only what one micro-batch adds is ever whole.
    Gradients,
    /// Those, and the parameters themselves, which are whole only while a segment uses them.
    Full,
}

impl Sharding {
    /// Whether optimizer state is divided, and gradients with it once they are reduced.
    pub fn divides_state(self) -> bool {
        self != Self::None
    }

    /// Whether gradients are divided after each micro-batch, and so reduced once for each.
    pub fn divides_gradients(self) -> bool {
        matches!(self, Self::Gradients | Self::Full)
    }
}

/// How gradients are reduced.
#[derive(Clone, Copy, Debug)]
pub struct DistributionSettings {
    /// What is divided.
    pub sharding: Sharding,
    /// When a bucket is closed. Where gradients are divided always after each segment, so that few are whole at once.
    pub bucket_rule: BucketRule,
    /// To what a bucket is filled up (`ddp.pad_buckets_for_high_nccl_busbw`).
    pub padding: BucketPadding,
    /// Whether backward goes on while gradients are reduced.
    pub reduction: Reduction,
    /// Who divides by the number of ranks.
    pub average: Averaging,
    /// Whether parameters are gathered while others are computed with.
    pub gather: Gather,
    /// As what weights are gathered that their layers cast to 8 bits, where parameters are sharded.
    pub cast_weights: CastWeights,
}

impl DistributionSettings {
    /// Whether weights are gathered as codes: where they are sharded, so that each rank keeps the values of what it owns.
    pub fn gathers_codes(&self) -> bool {
        self.cast_weights == CastWeights::Codes && self.sharding == Sharding::Full
    }

    /// How buckets are made that are divided over so many ranks.
    pub fn layout(&self, counts: ShardCounts) -> BucketLayout {
        let rule = if self.sharding.divides_gradients() { BucketRule::Segment } else { self.bucket_rule };
        BucketLayout { rule, padding: self.padding, counts }
    }
}

impl Default for DistributionSettings {
    /// Nothing is divided, and there is one bucket.
    fn default() -> Self {
        Self {
            sharding: Sharding::None,
            bucket_rule: BucketRule::One,
            padding: BucketPadding::EqualParts,
            reduction: Reduction::Waiting,
            average: Averaging::InLoss,
            gather: Gather::Waiting,
            cast_weights: CastWeights::Values,
        }
    }
}

/// What a rank does while gradients are on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// It waits: once at the end of the step or, where gradients are divided, after each segment.
    #[default]
    Waiting,
    /// Its backward goes on (`ddp.overlap_grad_reduce`).
    DuringBackward,
}

/// When parameters are gathered that sharded optimizers have updated, or that are sharded themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gather {
    /// All before the step ends; those of a region just before it runs, where they are sharded.
    #[default]
    Waiting,
    /// While the next forward pass runs; those of the next region while one runs, where they are sharded (`ddp.overlap_param_gather`).
    DuringForward,
}

/// As what weights travel that layers cast to 8 bits with one scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CastWeights {
    /// As all parameters do.
    #[default]
    Values,
    /// As codes, which ranks make of what they own with one scale (`ddp.fp8_param_gather`).
    Codes,
}

/// Who divides gradients by the number of data-parallel ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Averaging {
    /// The loss was divided; gradients are summed.
    #[default]
    InLoss,
    /// The collective averages.
    InCollective,
}
