//! Requests to stop: signals, cancellation, deadlines, and the time they leave.

pub(in crate::train) mod deadline;
pub(in crate::train) mod exits;
pub(in crate::train) mod stop_notice;
pub(in crate::train) mod watched_signals;
