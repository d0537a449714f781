//! The optimizer: parameter groups, float32 master weights, moments, clipping, and one update of all parameters.
//!
//! The arithmetic of an update is in bridge-kernels; which learning rate and decay hold at a step is in
//! [`crate::schedule`].

mod gradients;
mod groups;
mod optimizer;
#[cfg(test)]
mod tests;

pub use gradients::{AccumulationDType, GradientBuffer};
pub use groups::{
    DecayQkLayernorm, GroupSettings, NoOverrides, OverrideProvider, ParameterGroup, ParameterOverride,
    StandardOverrides,
};
pub use optimizer::{Algorithm, GroupRates, Optimizer, OptimizerSettings, OptimizerState, StepOutcome, StepScales};
