//! Stop requests of a run: signals, the cancel handle, the clock. Stop requests are agreed across
//! ranks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bridge_dist::comm::CommError;
use bridge_dist::mesh::ProcessGroups;

use crate::config::RunConfig;
use crate::resilience::{Heartbeat, Signal, SignalError, SignalWatcher};
use crate::train::exit_reason::ExitReason;
use crate::train::ranks::agreement;
use crate::train::ranks::rank_env::RankUnit;
use crate::train::settings;
use crate::train::stop::watchdog::Watchdog;

/// Signals that a run watches. A watched signal saves a checkpoint and stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchSignals {
    /// SIGINT, SIGTERM, SIGHUP (unless it is ignored) and `train.exit_signal`: for programs that
    /// are the run. With a process for each rank SIGUSR1 too.
    Process,
    /// Only what `train.exit_signal_handler` and `exit_signal_handler_for_training` ask for: for
    /// services that have signal handlers of their own.
    #[default]
    AsConfigured,
}

impl WatchSignals {
    /// Starts watching the signals of a run.
    pub(in crate::train) fn install(self, config: &RunConfig, unit: RankUnit) -> Result<SignalWatcher, SignalError> {
        let (settings, is_process) = (&config.train, self == Self::Process);
        let configured = settings::signal(settings.exit_signal);
        let is_watched = |signal: &Signal| match signal {
            signal if *signal == configured && (settings.exit_signal_handler || is_process) => true,
            Signal::Int | Signal::Term => settings.exit_signal_handler_for_training || is_process,
            // A terminal that goes away ends a run in order too, unless `nohup` has said that it
            // should not.
            Signal::Hup => is_process && !signal.is_ignored(),
            // mpirun hands this one on to all ranks; after SIGTERM it kills them within a second.
            Signal::Usr1 => is_process && unit == RankUnit::Process,
            Signal::Usr2 => false,
        };
        SignalWatcher::install(&Signal::ALL.into_iter().filter(is_watched).collect::<Vec<_>>())
    }
}

/// Asks a run to stop, between two micro-batches. Clones ask the same run.
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(Arc<AtomicBool>);

impl CancelHandle {
    /// Asks the run to save a checkpoint (if it saves any) and stop. An incomplete step is
    /// discarded.
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

/// Everything that can ask one rank of a run to stop.
pub(in crate::train) struct StopRequests {
    /// Handlers write to the pipe of the watchdog, so they are removed before it.
    signals: SignalWatcher,
    cancel: CancelHandle,
    /// When the program began.
    started: Instant,
    polls: PollSchedule,
    watchdog: Option<Watchdog>,
    /// Heartbeat of the rank: reading requests is a sign of life.
    heartbeat: Arc<Heartbeat>,
}

impl StopRequests {
    /// All ranks call this together.
    pub fn new(
        groups: &ProcessGroups,
        signals: SignalWatcher,
        watchdog: Option<Watchdog>,
        cancel: CancelHandle,
        started: Instant,
        heartbeat: Arc<Heartbeat>,
    ) -> Result<Self, CommError> {
        let is_possible = agreement::any(groups.world(), signals.watches_any() || cancel.is_shared())?;
        let polls = PollSchedule { is_possible, pace: None, micro_batches: 0, last: Instant::now() };
        Ok(Self { signals, cancel, started, polls, watchdog, heartbeat })
    }

    /// Cancels the deadline, because the run has ended.
    pub fn run_ended(&self) {
        if let Some(watchdog) = &self.watchdog {
            watchdog.run_ended();
        }
    }

    /// Stop request from outside, on any rank, so that all ranks decide alike: a watched signal
    /// that arrived (the one with the largest number), or cancellation. Returns the largest
    /// `figure` of all ranks too. All ranks call this together.
    pub fn poll_signals(&self, groups: &ProcessGroups, figure: f64) -> Result<(Option<ExitReason>, f64), CommError> {
        self.heartbeat.beat();
        let signal = self.signals.received().map_or(0, Signal::number);
        let mut figures = [f64::from(signal), f64::from(u8::from(self.cancel.is_cancelled())), figure];
        agreement::max(groups.world(), &mut figures)?;
        let [signal, cancelled, figure] = figures;
        let signal = Signal::ALL.into_iter().find(|known| f64::from(known.number()) == signal);
        if let (Some(signal), Some(watchdog)) = (signal, &self.watchdog) {
            watchdog.signal_arrived(signal);
        }
        let reason = signal.map(ExitReason::Signal).or_else(|| (cancelled > 0.0).then_some(ExitReason::Cancelled));
        Ok((reason, figure))
    }

    /// The signal, cancellation or clock of any rank that asks for an exit. All ranks call this
    /// together.
    pub fn poll(&self, config: &RunConfig, groups: &ProcessGroups) -> Result<Option<ExitReason>, CommError> {
        // Of several clocks the one that is ahead.
        let (reason, minutes) = self.poll_signals(groups, self.started.elapsed().as_secs_f64() / 60.0)?;
        let is_over = config.train.exit_duration_in_mins.is_some_and(|limit| minutes > limit);
        Ok(reason.or_else(|| is_over.then_some(ExitReason::Duration(minutes))))
    }

    /// A step begins.
    pub fn begin_step(&mut self) {
        self.polls.begin_step();
    }

    /// Number of micro-batches of a step to run before the next [`Self::poll_within_step`]; at most
    /// `most`.
    pub fn micro_batches_until_poll(&self, most: usize) -> usize {
        self.heartbeat.beat();
        self.polls.remaining(most)
    }

    /// Counts `count` more micro-batches of a step that is not complete, and polls signals and
    /// cancellation if that is due.
    pub fn poll_within_step(&mut self, groups: &ProcessGroups, count: usize) -> Result<Option<ExitReason>, CommError> {
        self.polls.micro_batches += count;
        if self.polls.micro_batches < self.polls.interval() {
            return Ok(None);
        }
        let mine = self.polls.last.elapsed().as_secs_f64() / self.polls.micro_batches as f64;
        let (reason, pace) = self.poll_signals(groups, mine)?;
        self.polls.pace = Some(pace);
        self.polls.begin_step();
        Ok(reason)
    }
}

/// Approximate interval of the polls for stop requests within a step.
const INTERVAL: Duration = Duration::from_secs(1);

/// Schedule of the polls for stop requests within a step.
///
/// All ranks must poll after the same micro-batch, or some would wait for ranks that have left. So
/// ranks agree on the time of a micro-batch at each poll, and compute from it the number of
/// micro-batches until the next poll. Steps that take no longer than [`INTERVAL`] cost nothing.
#[derive(Debug)]
struct PollSchedule {
    /// True if a stop request is possible.
    is_possible: bool,
    /// Seconds that a micro-batch takes on the slowest rank, once that is known.
    pace: Option<f64>,
    /// Micro-batches since the last poll.
    micro_batches: usize,
    last: Instant,
}

impl PollSchedule {
    /// Called when a step begins, after the ranks polled.
    fn begin_step(&mut self) {
        (self.micro_batches, self.last) = (0, Instant::now());
    }

    /// Number of micro-batches between polls.
    fn interval(&self) -> usize {
        match self.pace {
            _ if !self.is_possible => usize::MAX,
            None => 1,
            Some(pace) => ((INTERVAL.as_secs_f64() / pace.max(1e-9)) as usize).max(1),
        }
    }

    /// Number of micro-batches until the next poll; at most `most`.
    fn remaining(&self, most: usize) -> usize {
        self.interval().saturating_sub(self.micro_batches).clamp(1, most.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_come_once_a_second_at_the_agreed_pace() {
        let polls = |pace, micro_batches| PollSchedule { is_possible: true, pace, micro_batches, last: Instant::now() };
        assert_eq!(polls(None, 0).remaining(8), 1, "the pace is not known yet");
        assert_eq!(polls(Some(0.1), 0).remaining(100), 10);
        assert_eq!(polls(Some(0.1), 4).remaining(100), 6);
        assert_eq!(polls(Some(0.1), 0).remaining(8), 8);
        assert_eq!(polls(Some(30.0), 0).remaining(8), 1);
        assert_eq!(PollSchedule { is_possible: false, ..polls(None, 0) }.remaining(8), 8, "nobody can ask");
    }
}
