//! Ranks of a run: agreement between them, devices, threads.

pub(in crate::train) mod agreement;
pub(in crate::train) mod device;
pub(in crate::train) mod device_ranks;
pub(in crate::train) mod error;
pub(in crate::train) mod rank_env;
pub(in crate::train) mod threads;
