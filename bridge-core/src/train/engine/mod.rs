//! Execution of forward and backward passes: regions, pipeline schedules, graphs, observers.

pub(in crate::train) mod error;
pub(in crate::train) mod executor;
#[cfg(test)]
mod executor_tests;
pub(in crate::train) mod forward_step;
pub(in crate::train) mod global_state;
pub(in crate::train) mod graphs;
pub(in crate::train) mod hooks;
pub(in crate::train) mod offload;
pub mod pipeline;
pub(in crate::train) mod region_spans;
pub(in crate::train) mod residual_gradients;
pub(in crate::train) mod residual_stream;
