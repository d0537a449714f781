//! A run from start to end: set-up, loop, evaluation, exit, restarts.

pub(in crate::train) mod build_data;
pub(in crate::train) mod error;
pub(in crate::train) mod evaluate;
pub(in crate::train) mod exit;
pub(in crate::train) mod last_layer;
pub(in crate::train) mod launch;
pub(in crate::train) mod outputs_check;
pub(in crate::train) mod preparation;
pub(in crate::train) mod pretrain;
pub(in crate::train) mod restart;
pub(in crate::train) mod run_options;
pub(in crate::train) mod setup;
pub(in crate::train) mod train_loop;
