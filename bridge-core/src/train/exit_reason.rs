//! Why a run ends.

use crate::resilience::Signal;

/// Why training ended.
#[derive(Clone, Debug, PartialEq)]
pub enum ExitReason {
    /// All iterations are done.
    Completed,
    /// A subsystem has ended training before the last iteration, for this reason.
    Over(String),
    /// A watched signal arrived.
    Signal(Signal),
    /// The cancel handle was used.
    Cancelled,
    /// `train.exit_duration_in_mins` is over; the minutes that passed.
    Duration(f64),
    /// `train.exit_interval` divides the step.
    Interval(u64),
    /// The rerun state machine ends the process with this code.
    Rerun(i32),
    /// A subsystem ends the process with this code, and says why.
    Subsystem(i32, String),
}

impl ExitReason {
    /// True if training has ended, rather than stopped early.
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Completed | Self::Over(_))
    }

    /// Exit code of the process: 0, 16 or 17 from the rerun state machine, the code of a
    /// subsystem's request, 128 + n after signal n.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Completed | Self::Over(_) | Self::Cancelled | Self::Duration(_) | Self::Interval(_) => 0,
            Self::Signal(signal) => signal.exit_code(),
            Self::Rerun(code) | Self::Subsystem(code, _) => *code,
        }
    }
}

impl std::fmt::Display for ExitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Completed => f.write_str("training is done"),
            Self::Over(why) => write!(f, "training is done: {why}"),
            Self::Signal(signal) => write!(f, "exiting program after receiving {}", signal.name()),
            Self::Cancelled => f.write_str("exiting because the run was cancelled"),
            Self::Duration(minutes) => write!(f, "exiting program after {minutes:.1} minutes"),
            Self::Interval(step) => write!(f, "exiting program at iteration {step}"),
            Self::Rerun(16) => {
                f.write_str("exiting with code 16: resume the run to tell a hardware fault from a real result")
            }
            Self::Subsystem(code, why) => write!(f, "exiting with code {code}: {why}"),
            Self::Rerun(code) => write!(f, "exiting with code {code}: a result did not pass validation"),
        }
    }
}
