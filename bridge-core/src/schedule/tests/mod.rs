//! Tests of the schedules, one file each.

mod flops;
mod loss_scaler;
mod num_microbatches;
mod scheduler;
