//! Tests of the schedules, one file each.

mod loss_scaler;
mod num_microbatches;
mod scheduler;
