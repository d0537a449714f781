//! Time of the updates of a step, without copies of gradients and parameters.

use std::time::{Duration, Instant};

use crate::timers::{TimerLevel, Timers};

/// Parts of the updates of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CopyTimes {
    /// Gradients on their way to float32.
    pub gradients: Duration,
    /// Updated float32 values on their way to the dtype of the parameters.
    pub parameters: Duration,
}

/// Times the updates of a step, copies apart.
pub(super) struct UpdateTimer<'a> {
    timers: &'a Timers,
    started: Instant,
}

impl<'a> UpdateTimer<'a> {
    pub fn start(timers: &'a Timers) -> Self {
        Self { timers, started: timers.now_at(TimerLevel::Phase) }
    }

    pub fn stop(self, copies: CopyTimes) {
        let all = self.timers.now_at(TimerLevel::Phase) - self.started;
        for (name, elapsed) in [
            ("optimizer-copy-to-main-grad", copies.gradients),
            ("optimizer-inner-step", all.saturating_sub(copies.gradients + copies.parameters)),
            ("optimizer-copy-main-to-model-params", copies.parameters),
        ] {
            self.timers.record(name, TimerLevel::Phase, elapsed);
        }
    }
}
