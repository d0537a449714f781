//! Staying right and alive: results that are checked by running a step again, spiky losses, slow
//! ranks, runs that stand still, signals. Decisions only; who restores random state, saves
//! checkpoints and exits is the training loop.

mod heartbeat;
pub mod rerun;
mod section_times;
mod signal;
mod spiky_loss;
mod stall;
pub mod stragglers;

/// Exit code of a run that received a stop request and could not save its last state in time.
pub const EXIT_CODE_NOT_SAVED_IN_TIME: i32 = 18;

pub use heartbeat::{Heartbeat, Section};
pub use section_times::{FT_STATE_FILE, HeartbeatMessage, SectionLimits};
pub use signal::{Signal, SignalError, SignalFlag, SignalWatcher};
pub use spiky_loss::{LossChecks, SpikyLossDetector};
pub use stall::{Learning, Stall};
