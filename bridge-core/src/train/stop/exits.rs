//! Stop requests of a run: signals, the cancel handle, the clock. Stop requests are agreed across
//! ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bridge_dist::comm::CommError;
use bridge_dist::mesh::ProcessGroups;

use crate::config::RunConfig;
use crate::logging::ProgressSink;
use crate::resilience::{Heartbeat, Signal, SignalWatcher};
use crate::train::error::CommonError;
use crate::train::exit_reason::ExitReason;
use crate::train::ranks::agreement;
use crate::train::ranks::rank_env::RankUnit;
use crate::train::stop::deadline::{Deadline, StopDeadline};
use crate::train::stop::stop_notice::StopNotice;
use crate::train::stop::watched_signals::WatchSignals;

/// Asks a run to stop, between two micro-batches. Clones ask the same run.
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(Arc<AtomicBool>);

impl CancelHandle {
    /// Asks the run to save a checkpoint (if it saves any) and stop. A step that is not complete
    /// then counts for nothing.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True if cancellation was requested.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// True if another handle to it exists.
    pub(in crate::train) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Stop requests on one rank.
#[derive(Clone, Copy)]
pub(in crate::train) struct Requests<'a> {
    pub signals: Option<&'a SignalWatcher>,
    pub cancel: &'a CancelHandle,
    /// Heartbeat of the rank: reading requests is a sign of life.
    pub heartbeat: &'a Heartbeat,
}

impl Requests<'_> {
    /// The number of the signal that arrived, and whether the run was cancelled: figures of which
    /// the largest over all ranks decide.
    pub fn figures(&self) -> [f64; 2] {
        self.heartbeat.beat();
        let signal = self.signals.and_then(SignalWatcher::received);
        [f64::from(signal.map_or(0, Signal::number)), f64::from(u8::from(self.cancel.is_cancelled()))]
    }

    /// True if a stop request is possible.
    pub fn can_come(&self) -> bool {
        self.signals.is_some() || self.cancel.is_shared()
    }

    /// Exit reason of the largest figures over all ranks.
    pub fn reason([signal, cancelled]: [f64; 2]) -> Option<ExitReason> {
        let signal = Signal::ALL.into_iter().find(|known| f64::from(known.number()) == signal);
        signal.map(ExitReason::Signal).or_else(|| (cancelled > 0.0).then_some(ExitReason::Cancelled))
    }
}

/// Everything that can ask one rank of a run to stop.
pub(in crate::train) struct Exits {
    signals: Option<SignalWatcher>,
    cancel: CancelHandle,
    /// When the program began.
    started: Instant,
    looks: StopLooks,
    notice: Option<StopNotice>,
    deadline: Option<Deadline>,
    stop_deadline: Arc<StopDeadline>,
    heartbeat: Arc<Heartbeat>,
}

impl Exits {
    /// All ranks call this together.
    pub fn new(
        groups: &ProcessGroups,
        signals: Option<SignalWatcher>,
        cancel: CancelHandle,
        started: Instant,
        heartbeat: Arc<Heartbeat>,
    ) -> Result<Self, CommError> {
        let can_come = Requests { signals: signals.as_ref(), cancel: &cancel, heartbeat: &heartbeat }.can_come();
        let is_possible = agreement::any(groups.world(), can_come)?;
        let looks = StopLooks { is_possible, pace: None, since: 0, last: Instant::now() };
        let stop_deadline = StopDeadline::new(Arc::clone(&heartbeat));
        Ok(Self { signals, cancel, started, looks, notice: None, deadline: None, stop_deadline, heartbeat })
    }

    /// Reports a signal on this rank as soon as it arrives.
    pub fn announce(&mut self, progress: Arc<dyn ProgressSink>, config: &RunConfig) {
        let flag = self.signals.as_ref().map(SignalWatcher::flag);
        self.notice = flag.map(|flag| StopNotice::begin(flag, progress, config));
    }

    /// Ends the process if the run has not ended within `train.exit_signal_deadline_s` of a signal.
    pub fn limit(
        &mut self,
        config: &RunConfig,
        groups: &ProcessGroups,
        watch_signals: WatchSignals,
        unit: RankUnit,
        progress: Arc<dyn ProgressSink>,
    ) -> Result<(), CommonError> {
        let flag = self.signals.as_ref().map(SignalWatcher::flag);
        self.deadline = Deadline::begin(config, groups, watch_signals, unit, flag, &self.stop_deadline, progress)?;
        Ok(())
    }

    /// Progress of the run, for the thread that ends the process at the deadline.
    pub fn stop_deadline(&self) -> &Arc<StopDeadline> {
        &self.stop_deadline
    }

    /// Cancels the deadline, because the run has ended.
    pub fn end(&mut self) {
        self.deadline = None;
    }

    /// A step is done.
    pub fn step_took(&self, seconds: f64) {
        if let Some(notice) = &self.notice {
            notice.step_took(seconds);
        }
    }

    /// Stop requests on this rank.
    pub fn requests(&self) -> Requests<'_> {
        Requests { signals: self.signals.as_ref(), cancel: &self.cancel, heartbeat: &self.heartbeat }
    }

    /// Stop request from outside, on any rank, so that all ranks decide alike: a watched signal
    /// that arrived (the one with the largest number), or cancellation. Returns the largest
    /// `figure` of all ranks too.
    fn on_all_ranks(&self, groups: &ProcessGroups, figure: f64) -> Result<(Option<ExitReason>, f64), CommError> {
        let [signal, cancelled] = self.requests().figures();
        let mut figures = [signal, cancelled, figure];
        agreement::max(groups.world(), &mut figures)?;
        let reason = Requests::reason([figures[0], figures[1]]);
        if let Some(ExitReason::Signal(signal)) = reason {
            self.stop_deadline.signal_arrived(signal);
        }
        Ok((reason, figures[2]))
    }

    /// Minutes since the program began.
    fn minutes(&self) -> f64 {
        self.started.elapsed().as_secs_f64() / 60.0
    }

    /// The signal, cancellation or clock of any rank that asks for an exit. All ranks call this
    /// together.
    pub fn requested(&self, config: &RunConfig, groups: &ProcessGroups) -> Result<Option<ExitReason>, CommError> {
        // Of several clocks the one that is ahead.
        let (reason, minutes) = self.on_all_ranks(groups, self.minutes())?;
        let is_over = config.train.exit_duration_in_mins.is_some_and(|limit| minutes > limit);
        if let (Some(ExitReason::Signal(signal)), Some(notice)) = (&reason, &self.notice) {
            notice.tell(*signal);
        }
        Ok(reason.or_else(|| is_over.then_some(ExitReason::Duration(minutes))))
    }

    /// The signal or cancellation that has asked for an exit on any rank, where nothing is left to
    /// do that could take time. All ranks call this together.
    pub fn asked_for(&self, groups: &ProcessGroups) -> Result<Option<ExitReason>, CommError> {
        Ok(self.on_all_ranks(groups, self.minutes())?.0)
    }

    /// A step begins.
    pub fn begin_step(&mut self) {
        self.looks.begin_step();
    }

    /// After how many more micro-batches of a step to look; at most `most`.
    pub fn wanted(&self, most: usize) -> usize {
        self.heartbeat.beat();
        self.looks.wanted(most)
    }

    /// Says that `count` more micro-batches of a step are done, of which there are more, and looks
    /// whether to stop if it is time to.
    pub fn look_within_step(&mut self, groups: &ProcessGroups, count: usize) -> Result<Option<ExitReason>, CommError> {
        self.looks.since += count;
        if self.looks.since < self.looks.interval() {
            return Ok(None);
        }
        let mine = self.looks.last.elapsed().as_secs_f64() / self.looks.since as f64;
        let (reason, pace) = self.on_all_ranks(groups, mine)?;
        self.looks.pace = Some(pace);
        self.looks.begin_step();
        Ok(reason)
    }
}

/// About how often ranks ask each other, within a step, whether to stop.
const INTERVAL: Duration = Duration::from_secs(1);

/// When ranks look, within a step, whether one of them was asked to stop.
///
/// All must look after the same micro-batch, or some would wait for others that have left. So they
/// agree on how long a micro-batch takes each time they look, and work out from that after how many
/// they look again. Steps that take no longer than [`INTERVAL`] cost nothing.
#[derive(Debug)]
struct StopLooks {
    /// True if a stop request is possible.
    is_possible: bool,
    /// Seconds that a micro-batch takes on the slowest rank, once that is known.
    pace: Option<f64>,
    /// Micro-batches since the last look.
    since: usize,
    last: Instant,
}

impl StopLooks {
    /// A step begins: ranks have looked after the one before.
    fn begin_step(&mut self) {
        (self.since, self.last) = (0, Instant::now());
    }

    /// After how many micro-batches to look.
    fn interval(&self) -> usize {
        match self.pace {
            _ if !self.is_possible => usize::MAX,
            None => 1,
            Some(pace) => ((INTERVAL.as_secs_f64() / pace.max(1e-9)) as usize).max(1),
        }
    }

    /// After how many more micro-batches to look; at most `most`.
    fn wanted(&self, most: usize) -> usize {
        self.interval().saturating_sub(self.since).clamp(1, most.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_once_a_second_at_the_agreed_pace() {
        let looks = |pace, since| StopLooks { is_possible: true, pace, since, last: Instant::now() };
        assert_eq!(looks(None, 0).wanted(8), 1, "the pace is not known yet");
        assert_eq!(looks(Some(0.1), 0).wanted(100), 10);
        assert_eq!(looks(Some(0.1), 4).wanted(100), 6);
        assert_eq!(looks(Some(0.1), 0).wanted(8), 8);
        assert_eq!(looks(Some(30.0), 0).wanted(8), 1);
        assert_eq!(StopLooks { is_possible: false, ..looks(None, 0) }.wanted(8), 8, "nobody can ask");
    }
}
