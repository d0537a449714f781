//! Own time of a rank in an iteration, without waiting for others: the measure of both straggler
//! reports. It counts from one report of a step to the next, without saves, because rank 0 has more
//! to do there than the others.

use std::time::{Duration, Instant};

use bridge_dist::mesh::ProcessGroups;

use crate::resilience::stragglers::RankTimes;
use crate::train::reporting::report::StepReport;

/// A clock of one rank's iterations.
#[derive(Debug, Default)]
pub(super) struct OwnTime {
    /// The moment when it was started, and the time in calls of communicators then.
    started: Option<(Instant, Duration)>,
    elapsed: Duration,
    in_calls: Duration,
}

impl OwnTime {
    /// Goes on counting.
    pub fn start(&mut self, groups: &ProcessGroups) {
        self.started = Some((Instant::now(), groups.time_in_calls()));
    }

    /// Stops counting.
    pub fn pause(&mut self, groups: &ProcessGroups) {
        if let Some((moment, in_calls)) = self.started.take() {
            self.elapsed += moment.elapsed();
            self.in_calls += groups.time_in_calls() - in_calls;
        }
    }

    /// Goes on if it has counted: it stands still until the first step is over, which takes longer
    /// than others.
    pub fn resume(&mut self, groups: &ProcessGroups) {
        if self.elapsed > Duration::ZERO {
            self.start(groups);
        }
    }

    /// Ends an iteration; its times, if it was counted from its beginning.
    pub fn end_iteration(&mut self, groups: &ProcessGroups, step: &StepReport) -> Option<RankTimes> {
        self.pause(groups);
        let (elapsed, in_calls) = (std::mem::take(&mut self.elapsed), std::mem::take(&mut self.in_calls));
        if elapsed.is_zero() {
            return None;
        }
        let own = elapsed.saturating_sub(in_calls).as_secs_f64();
        let data = step.own_data_seconds.min(own);
        Some(RankTimes { compute: own - data, data, communication: in_calls.as_secs_f64() })
    }
}
