//! Output of a run: records of steps and the sinks that take them, trackers, traces, timers, and
//! statistics of tensors.

pub mod http;
pub mod inspect;
pub mod logging;
pub mod timers;
