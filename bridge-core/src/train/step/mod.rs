//! One training step, and the state of a run that steps change.

pub(in crate::train) mod error;
pub(in crate::train) mod micro_batches;
pub(in crate::train) mod outputs;
pub(in crate::train) mod predictions;
pub(in crate::train) mod step_flops;
pub(in crate::train) mod train_step;
pub(in crate::train) mod training;
pub(in crate::train) mod training_run;
