//! Staying right and alive: results that are checked by running a step again, spiky losses, slow ranks, runs that stand still, signals.
//! Decisions only; who restores random state, saves checkpoints and exits is the training loop.

mod pulse;
pub mod rerun;
mod section_times;
mod signal;
mod spiky_loss;
mod stall;
pub mod stragglers;

pub use pulse::{Pulse, Section};
pub use section_times::{FT_STATE_FILE, Heartbeat, SectionLimits};
pub use signal::{Signal, SignalError, SignalFlag, SignalWatcher};
pub use spiky_loss::{LossChecks, SpikyLossDetector};
pub use stall::{Learning, Stall};
