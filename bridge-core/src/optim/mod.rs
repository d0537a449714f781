//! The optimizer: parameter groups, float32 master weights, clipping, and one update of all
//! parameters by a rule of `rules`.
//!
//! With many ranks: `bucket` has the layout of gradients and parameters that travel together,
//! `settings` says what is divided and when, `distribution` who reduces, owns and counts which
//! parameter, `sharing` which ranks hold the same, `reducer` adds gradients up while backward goes
//! on, `sharded` gathers parameters of which each rank updates a part, `packing` puts buckets
//! together on a device, `cast_gather` gathers weights as codes of 8 bits; `frozen` reads and
//! writes what is not trained. `slot` is what is kept of a parameter, `scales` what ranks agree on
//! where that is in units of a scale, `offload` what of it is in host memory though the parameter
//! is on a GPU.
//!
//! The fused arithmetic of updates is in bridge-kernels; which learning rate and decay hold at a
//! step is in [`crate::schedule`].

mod bucket;
mod cast_gather;
mod distribution;
mod flat;
mod frozen;
mod gradients;
mod groups;
mod offload;
#[cfg(test)]
mod offload_tests;
mod optimizer;
mod packing;
mod reducer;
pub mod rules;
mod saved;
mod scales;
mod settings;
mod sharded;
#[cfg(test)]
mod sharded_tests;
mod sharing;
mod slot;
#[cfg(test)]
mod tests;
mod update_times;

pub use bucket::{
    Bucket, BucketEntry, BucketLayout, BucketPadding, BucketParameter, BucketRule, BucketSize, ShardCounts,
    bucket_sizes, buckets, code_len, owned_range, padded_part, padded_part_of,
};
pub use distribution::{Distribution, ModelSize, SavedGradient};
pub use gradients::{AccumulationDType, GradientBuffer};
pub use groups::{
    DecayQkLayernorm, GroupSettings, HiddenRates, OverrideProvider, ParameterGroup, ParameterOverride,
    StandardOverrides,
};
pub use offload::{OffloadSettings, OffloadedElements, Transfers, offloaded};
pub use optimizer::{CutParameter, GroupRates, Optimizer, OptimizerSettings, StepOutcome, StepScales};
pub use reducer::{GradientPart, GradientReducer, OwnGradients, ReductionTimes, Wire};
pub(crate) use saved::MASTER;
pub use saved::OptimizerState;
pub use settings::{Averaging, CastWeights, DistributionSettings, Gather, Reduction, Sharding};
pub use sharded::ShardedParameters;
pub use sharing::ROW_COPIES;
