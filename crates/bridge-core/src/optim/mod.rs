//! The optimizer: parameter groups, float32 master weights, moments, clipping, and one update of all parameters.
//!
//! The arithmetic of an update is in bridge-kernels; which learning rate and decay hold at a step is in
//! [`crate::schedule`].

mod bucket;
mod distribution;
mod gradients;
mod groups;
mod optimizer;
mod reducer;
#[cfg(test)]
mod tests;

pub use bucket::{Bucket, BucketEntry, BucketParameter, ReplicaCounts, buckets, owned_range};
pub use distribution::{Averaging, Distribution, DistributionSettings, Sharding};
pub use gradients::{AccumulationDType, GradientBuffer};
pub use groups::{
    DecayQkLayernorm, GroupSettings, NoOverrides, OverrideProvider, ParameterGroup, ParameterOverride,
    StandardOverrides,
};
pub use optimizer::{Algorithm, GroupRates, Optimizer, OptimizerSettings, OptimizerState, StepOutcome, StepScales};
pub use reducer::{GradientReducer, Wire};
