//! Reports of steps and evaluations, and the reporter that hands them to the sinks.

pub(in crate::train) mod memory_check;
pub(in crate::train) mod rank_memory;
pub(in crate::train) mod report;
pub(in crate::train) mod reporter;
pub(in crate::train) mod routers;
