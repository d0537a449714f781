//! Deadline of a run after a stop signal (`train.exit_signal_deadline_s`; while a run is set up, a
//! few seconds). A separate thread ends the process at the deadline, because a write that does not
//! return, a missing rank, or a long computation such as the index of a dataset may keep the run.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bridge_dist::mesh::ProcessGroups;

use crate::checkpoint::CheckpointStore;
use crate::config::{ConfigError, ErrorKind, RunConfig};
use crate::logging::ProgressSink;
use crate::resilience::{EXIT_CODE_NOT_SAVED_IN_TIME, Heartbeat, Section, Signal, SignalFlag};
use crate::train::error::CommonError;
use crate::train::ranks::agreement;
use crate::train::ranks::rank_env::RankUnit;
use crate::train::stop::watched_signals::WatchSignals;

const KEY: &str = "train.exit_signal_deadline_s";

/// Polling interval of the thread.
const INTERVAL: Duration = Duration::from_millis(5);

/// Polling interval of a thread that only waits for the end of setting up.
const SELDOM: Duration = Duration::from_millis(100);

/// Time to end for a run that is being set up, unless the recipe sets another one. Files are
/// published whole, so nothing is lost.
const SETUP_LIMIT: Duration = Duration::from_secs(3);

/// Time limit for reading the disk's state.
const LOOK: Duration = Duration::from_millis(300);

/// Seconds that are as good as for ever, and fit into a duration.
const LONGEST: f64 = 1e9;

/// No step.
const NONE: u64 = u64::MAX;

/// Thread that ends the process at the deadline, until the value is dropped.
#[derive(Debug)]
pub(in crate::train) struct Deadline {
    stop_deadline: Arc<StopDeadline>,
    thread: Option<JoinHandle<()>>,
}

/// Progress of a run. The thread of a [`Deadline`] computes from it the steps that the run loses.
#[derive(Debug)]
pub(in crate::train) struct StopDeadline {
    /// Number of the signal that a rank received; 0 before.
    signal: AtomicU64,
    /// Steps that are done.
    done: AtomicU64,
    /// The step of the newest checkpoint that is complete, or that the run began with.
    saved: AtomicU64,
    heartbeat: Arc<Heartbeat>,
    is_over: AtomicBool,
}

/// State that the thread waits on.
struct Watch {
    /// The deadline of the recipe, if it sets one.
    limit: Option<Duration>,
    /// The rank, where each has a process of its own.
    rank: Option<usize>,
    flag: SignalFlag,
    stop_deadline: Arc<StopDeadline>,
    /// The folder whose pointer says what is saved; `None` where a manager has to have it too.
    root: Option<PathBuf>,
}

impl Deadline {
    /// Starts the thread on one rank of each process, if the recipe sets a deadline or the run owns
    /// the process.
    ///
    /// # Errors
    /// If the run does not own the process, or the thread cannot be started.
    pub fn begin(
        config: &RunConfig,
        groups: &ProcessGroups,
        watch: WatchSignals,
        unit: RankUnit,
        flag: Option<SignalFlag>,
        stop_deadline: &Arc<StopDeadline>,
        progress: Arc<dyn ProgressSink>,
    ) -> Result<Option<Self>, CommonError> {
        let seconds = config.train.exit_signal_deadline_s;
        if watch != WatchSignals::Process {
            if seconds.is_none() {
                return Ok(None);
            }
            let message =
                "ends the process when it is over, which this program has not allowed (`WatchSignals::Process` does)";
            let error = ConfigError::new(ErrorKind::NotImplemented, KEY, message).with_location(config.location(KEY));
            return Err(error.into());
        }
        let rank = (unit == RankUnit::Process).then(|| groups.world().rank());
        let Some(flag) = flag.filter(|_| rank.is_some() || agreement::is_first(groups)) else { return Ok(None) };
        let settings = &config.checkpoint;
        let root = settings.save.clone().filter(|_| settings.custom_manager_class.is_none());
        let limit = seconds.map(|seconds| Duration::from_secs_f64(seconds.min(LONGEST)));
        let watch = Watch { limit, rank, flag, stop_deadline: Arc::clone(stop_deadline), root };
        let thread = std::thread::Builder::new().name("deadline".into()).spawn(move || watch.wait(progress.as_ref()));
        let thread = thread.map_err(|error| CommonError::log(format!("the thread of {KEY}"), error))?;
        Ok(Some(Self { stop_deadline: Arc::clone(stop_deadline), thread: Some(thread) }))
    }
}

impl StopDeadline {
    /// State of a run that starts.
    pub fn new(heartbeat: Arc<Heartbeat>) -> Arc<Self> {
        let (signal, done, saved) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(NONE));
        Arc::new(Self { signal, done, saved, heartbeat, is_over: AtomicBool::new(false) })
    }

    /// Records that `step` steps are done.
    pub fn step_done(&self, step: u64) {
        self.done.store(step, Ordering::SeqCst);
    }

    /// Records that the checkpoint of this step is complete. Step 0 has no checkpoint.
    pub fn checkpoint_saved(&self, step: u64) {
        self.saved.store(if step == 0 { NONE } else { step }, Ordering::SeqCst);
    }

    /// Records a signal that a rank received. The first one counts.
    pub fn signal_arrived(&self, signal: Signal) {
        let number = u64::try_from(signal.number()).unwrap_or(0);
        // Keep an earlier signal.
        let _ = self.signal.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn signal(&self) -> Option<Signal> {
        let number = self.signal.load(Ordering::SeqCst);
        Signal::ALL.into_iter().find(|signal| u64::try_from(signal.number()) == Ok(number))
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.stop_deadline.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does not panic, and nothing is lost if it did.
            let _ = thread.join();
        }
    }
}

impl Watch {
    /// Ends the process when the time since the first signal is over.
    fn wait(&self, progress: &dyn ProgressSink) {
        let mut since = None;
        while !self.stop_deadline.is_over.load(Ordering::SeqCst) {
            let signal = self.flag.received().or_else(|| self.stop_deadline.signal());
            let in_setup = self.stop_deadline.heartbeat.section() == Section::Setup;
            let limit = self.limit.or(in_setup.then_some(SETUP_LIMIT));
            if let (Some(signal), Some(limit)) = (signal, limit)
                && since.get_or_insert_with(Instant::now).elapsed() >= limit
            {
                let (text, code) = self.end(signal);
                progress.suspend(&mut || eprintln!("{text}"));
                // Handlers of the process's end may wait for what hangs.
                signal_hook::low_level::exit(code);
            }
            std::thread::park_timeout(if self.limit.is_some() || signal.is_some() { INTERVAL } else { SELDOM });
        }
    }

    /// The checkpoint that the folder's pointer names, if that is one of this run's and can be read
    /// at once: a save may be there before its last note is written.
    fn published(&self, done: u64) -> Option<u64> {
        let root = self.root.clone()?;
        let (sender, latest) = std::sync::mpsc::channel();
        let look = move || {
            let pointers = CheckpointStore::open(root).and_then(|store| store.pointers());
            // Nobody waits for a disk that hangs.
            let _ = sender.send(pointers.ok().and_then(|pointers| pointers.latest));
        };
        std::thread::Builder::new().name("pointer".into()).spawn(look).ok()?;
        latest.recv_timeout(LOOK).ok().flatten().filter(|step| *step <= done)
    }

    /// Message at the deadline, and the exit code.
    fn end(&self, signal: Signal) -> (String, i32) {
        let done = self.stop_deadline.done.load(Ordering::SeqCst);
        let saved = self.published(done).unwrap_or_else(|| self.stop_deadline.saved.load(Ordering::SeqCst));
        let rank = self.rank.map_or_else(String::new, |rank| format!("rank {rank}: "));
        let Some(limit) = self.limit else {
            return (format!("{rank}{signal}: the run ends while it is set up"), signal.exit_code());
        };
        let over = format!("{rank}{signal}: the {} s of {KEY} are over", limit.as_secs_f64());
        let at = match self.stop_deadline.heartbeat.section() {
            Section::Setup => "being set up",
            Section::Step => "in a step",
            Section::Checkpointing => "saving",
            Section::OutOfSection => "evaluating, or between two steps",
            Section::Ended => "writing what is left",
        };
        if done == 0 || saved == done {
            return (format!("{over}; the run was {at}, and nothing that it did is lost"), signal.exit_code());
        }
        let kept = match saved {
            NONE => "there is no checkpoint of this run".to_owned(),
            saved => format!("the newest checkpoint is of iteration {saved}"),
        };
        let lost = format!("iteration {done} could not be saved in time: the run was still {at}; {kept}");
        (format!("{over}; {lost}"), EXIT_CODE_NOT_SAVED_IN_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_decides_what_is_said_and_the_exit_code() {
        let end = |rank, done: u64, saved: u64, section| {
            let stop_deadline = StopDeadline::new(Arc::default());
            stop_deadline.step_done(done);
            stop_deadline.checkpoint_saved(saved);
            stop_deadline.heartbeat.enter(section);
            let limit = Some(Duration::from_secs_f64(2.5));
            Watch { limit, rank, flag: SignalFlag::default(), stop_deadline, root: None }.end(Signal::Term)
        };
        let (text, code) = end(None, 12, 10, Section::Checkpointing);
        let over = "SIGTERM: the 2.5 s of train.exit_signal_deadline_s are over";
        let lost = "iteration 12 could not be saved in time: the run was still saving; the newest checkpoint is of iteration 10";
        assert_eq!((text, code), (format!("{over}; {lost}"), 18));
        let (text, code) = end(Some(3), 12, NONE, Section::Step);
        assert!(text.starts_with("rank 3: SIGTERM") && text.ends_with("in a step; there is no checkpoint of this run"));
        assert_eq!(code, 18);
        for (done, saved) in [(0, NONE), (12, 12)] {
            let (text, code) = end(None, done, saved, Section::Ended);
            assert!(text.ends_with("the run was writing what is left, and nothing that it did is lost"), "{text}");
            assert_eq!(code, 143);
        }
    }

    #[test]
    fn a_run_that_is_set_up_ends_without_a_deadline() {
        let stop_deadline = StopDeadline::new(Arc::default());
        let watch = Watch { limit: None, rank: Some(1), flag: SignalFlag::default(), stop_deadline, root: None };
        assert_eq!(watch.end(Signal::Int), ("rank 1: SIGINT: the run ends while it is set up".to_owned(), 130));
    }

    /// The pointer is there before the save has ended.
    #[test]
    fn what_the_folder_has_is_saved() {
        let folder = tempfile::tempdir().unwrap();
        let end = |pointer: &str| {
            std::fs::write(folder.path().join("latest_checkpointed_iteration.txt"), pointer).unwrap();
            let stop_deadline = StopDeadline::new(Arc::default());
            stop_deadline.step_done(12);
            stop_deadline.checkpoint_saved(8);
            let root = Some(folder.path().to_owned());
            let limit = Some(Duration::from_secs(1));
            Watch { limit, rank: None, flag: SignalFlag::default(), stop_deadline, root }.end(Signal::Term)
        };
        assert_eq!(end("12").1, 143);
        let (text, code) = end("10");
        assert!(text.ends_with("the newest checkpoint is of iteration 10") && code == 18, "{text}");
        // Of another run, or damaged.
        for pointer in ["13", "x"] {
            let (text, code) = end(pointer);
            assert!(text.ends_with("the newest checkpoint is of iteration 8") && code == 18, "{text}");
        }
    }

    #[test]
    fn a_signal_that_another_rank_had_counts_from_when_it_is_told() {
        let stop_deadline = StopDeadline::new(Arc::default());
        assert_eq!(stop_deadline.signal(), None);
        stop_deadline.signal_arrived(Signal::Usr1);
        stop_deadline.signal_arrived(Signal::Term);
        assert_eq!(stop_deadline.signal(), Some(Signal::Usr1));
    }
}
