//! Stop requests from outside of the training loop. Signals and the cancel handle set a flag on
//! their rank. Between two micro-batches or steps the ranks agree on these flags and on the clock
//! (`stop_requests`). Meanwhile a thread tells the user of a signal and keeps the deadline
//! (`watchdog`).

pub(in crate::train) mod stop_requests;
pub(in crate::train) mod watchdog;
