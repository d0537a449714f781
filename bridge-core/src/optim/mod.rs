//! The optimizer: parameter groups, float32 master weights, clipping, and one update of all
//! parameters by a rule of `rules`.
//!
//! `parameter_rules` has the settings that a recipe gives to single parameters.
//!
//! Modules for many ranks: `bucket` has the layout of gradients and parameters that travel
//! together, `settings` the sharded state and its timing, `distribution` the reduction, ownership
//! and counting of parameters, `sharing` the ranks that hold the same values, `reducer` the sums of
//! gradients during backward, `sharded` the gathering of parameters, `packing` buckets on a device,
//! `cast_gather` weights as codes of 8 bits, `whole` parameters that one rank updates whole;
//! `frozen` reads and writes parameters that are not trained. `slot` has the state of a parameter,
//! `averages` averages of weights, `scales` the scales that ranks agree on, `offload` state in host
//! memory of parameters on a GPU.
//!
//! The fused arithmetic of updates is in bridge-kernels; which learning rate and decay hold at a
//! step is in [`crate::schedule`].

mod averages;
mod bucket;
mod cast_gather;
mod distribution;
mod error;
mod flat;
mod frozen;
mod gradients;
mod groups;
mod offload;
#[cfg(test)]
mod offload_tests;
mod optimizer;
mod packing;
mod parameter_rules;
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
mod whole;

pub use bucket::{
    Bucket, BucketEntry, BucketLayout, BucketPadding, BucketParameter, BucketRule, BucketSize, ShardCounts,
    bucket_sizes, buckets, code_len, owned_range, padded_part, padded_part_of,
};
pub use distribution::{Distribution, ModelSize, SavedGradient};
pub use error::OptimizerError;
pub use gradients::{AccumulationDType, GradientBuffer};
pub use groups::{OverrideContext, OverrideProvider, ParameterGroup, StandardOverrides};
pub use offload::{OffloadSettings, OffloadedElements, TransferTiming, offloaded};
pub use optimizer::{Optimizer, OptimizerSettings, StepOutcome, StepScales};
pub use parameter_rules::{RuleOverrides, UnmatchedRule};
pub use reducer::{GradientPart, GradientReducer, ReduceDType, ReductionTimes};
pub use rules::AVERAGE;
pub(crate) use saved::MASTER;
pub use saved::{OptimizerState, StatePart};
pub use settings::{DistributionSettings, Sharding};
pub use sharded::ShardedParameters;
pub use sharing::ROW_COPIES;
pub use whole::{EXPERT_WHOLE, WHOLE};
pub(crate) use whole::{GATHERED, Holder, WholeLayout, holders, layout};

pub use crate::schedule::{GroupRates, GroupSettings};
