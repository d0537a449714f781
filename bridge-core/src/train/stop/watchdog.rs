//! Watchdog of stop signals. It tells the user at once that a signal has arrived and what follows,
//! and ends the process at the deadline (`train.exit_signal_deadline_s`; while a run is set up, a
//! few seconds). It has a thread of its own, because a write that does not return, a missing rank,
//! or a long computation such as the index of a dataset may keep the run.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bridge_dist::mesh::ProcessGroups;

use crate::checkpoint::CheckpointStore;
use crate::config::{ConfigError, ErrorKind, RunConfig};
use crate::logging::ProgressSink;
use crate::resilience::{EXIT_CODE_NOT_SAVED_IN_TIME, Heartbeat, Section, Signal, SignalFlag, SignalWatcher};
use crate::train::error::CommonError;
use crate::train::ranks::agreement;
use crate::train::ranks::rank_env::{RankEnv, RankUnit};
use crate::train::stop::stop_requests::WatchSignals;

const KEY: &str = "train.exit_signal_deadline_s";

/// Time to end for a run that is being set up, unless the recipe sets another one. Files are
/// published whole, so nothing is lost.
const SETUP_LIMIT: Duration = Duration::from_secs(3);

/// Time limit for reading the disk's state.
const LOOK: Duration = Duration::from_millis(300);

/// Seconds that are as good as for ever, and fit into a duration.
const LONGEST: f64 = 1e9;

/// Steps that take longer are left in their middle, about a second after a signal at the latest.
const LONG: Duration = Duration::from_secs(2);

/// Thread that waits for signals, until the value is dropped.
pub(in crate::train) struct Watchdog {
    watch: Arc<Watch>,
    /// Wakes the thread. Signal handlers have copies.
    pipe: UnixStream,
    thread: Option<JoinHandle<()>>,
}

/// State that the thread and the run share.
struct Watch {
    /// The deadline of the recipe, if it sets one.
    limit: Option<Duration>,
    /// True if the run saves.
    saves: bool,
    /// The folder whose pointer says what is saved; `None` where a manager has to have it too.
    root: Option<PathBuf>,
    /// The rank, where each has a process of its own.
    rank: Option<usize>,
    flag: SignalFlag,
    heartbeat: Arc<Heartbeat>,
    progress: Arc<dyn ProgressSink>,
    /// True if the notice is printed, which only rank 0 does.
    is_told: AtomicBool,
    /// True if the run has ended, and with it the deadline.
    is_over: AtomicBool,
}

impl Watchdog {
    /// Starts the thread on one rank of each process, if the run owns the process. Fails if the
    /// recipe sets a deadline and the run does not own the process, or the thread cannot be
    /// started.
    pub fn start(
        config: &RunConfig,
        groups: &ProcessGroups,
        watched: WatchSignals,
        rank_env: &RankEnv,
        signals: &mut SignalWatcher,
        progress: Arc<dyn ProgressSink>,
    ) -> Result<Option<Self>, CommonError> {
        let seconds = config.train.exit_signal_deadline_s;
        if watched != WatchSignals::Process {
            if seconds.is_none() {
                return Ok(None);
            }
            let message =
                "ends the process when it is over, which this program has not allowed (`WatchSignals::Process` does)";
            let error = ConfigError::new(ErrorKind::NotImplemented, KEY, message).with_location(config.location(KEY));
            return Err(error.into());
        }
        let rank = (rank_env.unit == RankUnit::Process).then(|| groups.world().rank());
        if rank.is_none() && !agreement::is_rank_zero(groups) {
            return Ok(None);
        }
        let settings = &config.checkpoint;
        let watch = Watch {
            limit: seconds.map(|seconds| Duration::from_secs_f64(seconds.min(LONGEST))),
            saves: settings.save.is_some(),
            root: settings.save.clone().filter(|_| settings.custom_manager_class.is_none()),
            rank,
            flag: signals.flag(),
            heartbeat: Arc::clone(&rank_env.heartbeat),
            progress,
            is_told: AtomicBool::new(!agreement::is_rank_zero(groups)),
            is_over: AtomicBool::new(false),
        };
        let started = Self::spawn(watch, signals);
        started.map(Some).map_err(|error| CommonError::log(format!("the thread of {KEY}"), error))
    }

    fn spawn(watch: Watch, signals: &mut SignalWatcher) -> std::io::Result<Self> {
        let (wakes, pipe) = UnixStream::pair()?;
        signals.notify(&pipe)?;
        let watch = Arc::new(watch);
        let waiting = Arc::clone(&watch);
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(move || waiting.wait(wakes))?;
        Ok(Self { watch, pipe, thread: Some(thread) })
    }

    /// Takes a signal that a rank received: tells the user of it, unless the thread has.
    pub fn signal_arrived(&self, signal: Signal) {
        if self.watch.flag.arrived_elsewhere(signal) {
            // The deadline begins. A full pipe wakes the thread as well.
            let _ = (&self.pipe).write(&[0]);
        }
        self.watch.tell(signal);
    }

    /// Cancels the deadline, because the run has ended.
    pub fn run_ended(&self) {
        self.watch.is_over.store(true, Ordering::SeqCst);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // The thread does not panic, and nothing is lost if it did.
        let _ = self.pipe.shutdown(Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Watch {
    /// Answers signals, each of which writes to the pipe, until the pipe is shut down.
    fn wait(&self, mut wakes: UnixStream) {
        let mut since = None;
        loop {
            if let Some(signal) = self.flag.received() {
                self.tell(signal);
                let waited = since.get_or_insert_with(Instant::now).elapsed();
                let in_setup = self.heartbeat.section() == Section::Setup;
                let limit = self.limit.or(in_setup.then_some(SETUP_LIMIT));
                let limit = limit.filter(|_| !self.is_over.load(Ordering::SeqCst));
                let left = limit.map(|limit| limit.saturating_sub(waited));
                if left == Some(Duration::ZERO) {
                    let (text, code) = self.end(signal);
                    self.progress.suspend(&mut || eprintln!("{text}"));
                    // Handlers of the process's end may wait for what hangs.
                    signal_hook::low_level::exit(code);
                }
                // A time above zero is accepted. The thread looks again when it is over.
                let _ = wakes.set_read_timeout(left);
            }
            if matches!(wakes.read(&mut [0]), Ok(0)) {
                return;
            }
        }
    }

    /// Tells the user of a signal, unless that is done.
    fn tell(&self, signal: Signal) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            let text = self.notice(signal, self.heartbeat.last_step());
            self.progress.suspend(&mut || eprintln!("{text}"));
        }
    }

    /// Notice that `signal` has arrived, and what follows where the last step took that long.
    fn notice(&self, signal: Signal, step: Duration) -> String {
        let seconds = step.as_secs_f64();
        let what = match (self.saves, step) {
            (_, Duration::ZERO) => "stopping as soon as possible; no step is done yet in this run".to_owned(),
            (true, step) if step > LONG => {
                format!("saving the state before this step (which takes {seconds:.0} s), after this micro-batch")
            }
            (true, _) => format!("saving after this step, {seconds:.1} s"),
            (false, step) if step > LONG => "stopping after this micro-batch; checkpoint.save is not set".to_owned(),
            (false, _) => format!("stopping after this step, {seconds:.1} s; checkpoint.save is not set"),
        };
        let within = self
            .limit
            .map_or_else(String::new, |limit| format!("; the process ends in {} s at the latest", limit.as_secs_f64()));
        let how = if self.saves { "without saving" } else { "at once" };
        format!("{signal}: {what}{within}; Ctrl-C again to stop {how}")
    }

    /// The checkpoint that the folder's pointer names, if that is one of this run's and can be read
    /// at once: a save may be there before its last note is written.
    fn published(&self, done: u64) -> Option<u64> {
        let root = self.root.clone()?;
        let (sender, latest) = std::sync::mpsc::channel();
        let look = move || {
            let pointers = CheckpointStore::open(root).and_then(|store| store.pointers());
            // The receiver is gone if the disk took too long.
            let _ = sender.send(pointers.ok().and_then(|pointers| pointers.latest));
        };
        std::thread::Builder::new().name("pointer".into()).spawn(look).ok()?;
        latest.recv_timeout(LOOK).ok().flatten().filter(|step| *step <= done)
    }

    /// Message at the deadline, and the exit code.
    fn end(&self, signal: Signal) -> (String, i32) {
        let done = self.heartbeat.steps_done();
        let saved = self.published(done).unwrap_or_else(|| self.heartbeat.saved_step());
        let rank = self.rank.map_or_else(String::new, |rank| format!("rank {rank}: "));
        let Some(limit) = self.limit else {
            return (format!("{rank}{signal}: the run ends while it is set up"), signal.exit_code());
        };
        let over = format!("{rank}{signal}: the {} s of {KEY} are over", limit.as_secs_f64());
        let at = match self.heartbeat.section() {
            Section::Setup => "being set up",
            Section::Step => "in a step",
            Section::Checkpointing => "saving",
            Section::OutOfSection => "evaluating, or between two steps",
            Section::Ended => "writing what is left",
        };
        if saved == done {
            return (format!("{over}; the run was {at}, and nothing that it did is lost"), signal.exit_code());
        }
        let kept = match saved {
            0 => "there is no checkpoint of this run".to_owned(),
            saved => format!("the newest checkpoint is of iteration {saved}"),
        };
        let lost = format!("iteration {done} could not be saved in time: the run was still {at}; {kept}");
        (format!("{over}; {lost}"), EXIT_CODE_NOT_SAVED_IN_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::NoProgress;

    /// Watch of a run without a deadline that saves, with `done` steps, of which `saved` are saved.
    fn watch(done: u64, saved: u64) -> Watch {
        let heartbeat = Arc::new(Heartbeat::default());
        heartbeat.step_done(done);
        heartbeat.checkpoint_saved(saved);
        Watch {
            limit: None,
            saves: true,
            root: None,
            rank: None,
            flag: SignalFlag::default(),
            heartbeat,
            progress: Arc::new(NoProgress),
            is_told: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
        }
    }

    #[test]
    fn what_is_lost_decides_what_is_said_and_the_exit_code() {
        let end = |rank, done: u64, saved: u64, section| {
            let watch = Watch { limit: Some(Duration::from_secs_f64(2.5)), rank, ..watch(done, saved) };
            watch.heartbeat.enter(section);
            watch.end(Signal::Term)
        };
        let (text, code) = end(None, 12, 10, Section::Checkpointing);
        let over = "SIGTERM: the 2.5 s of train.exit_signal_deadline_s are over";
        let lost = "iteration 12 could not be saved in time: the run was still saving; the newest checkpoint is of iteration 10";
        assert_eq!((text, code), (format!("{over}; {lost}"), 18));
        let (text, code) = end(Some(3), 12, 0, Section::Step);
        assert!(text.starts_with("rank 3: SIGTERM") && text.ends_with("in a step; there is no checkpoint of this run"));
        assert_eq!(code, 18);
        for (done, saved) in [(0, 0), (12, 12)] {
            let (text, code) = end(None, done, saved, Section::Ended);
            assert!(text.ends_with("the run was writing what is left, and nothing that it did is lost"), "{text}");
            assert_eq!(code, 143);
        }
    }

    #[test]
    fn a_run_that_is_set_up_ends_without_a_deadline() {
        let watch = Watch { rank: Some(1), ..watch(0, 0) };
        assert_eq!(watch.end(Signal::Int), ("rank 1: SIGINT: the run ends while it is set up".to_owned(), 130));
    }

    /// The pointer is there before the save has ended.
    #[test]
    fn what_the_folder_has_is_saved() {
        let folder = tempfile::tempdir().unwrap();
        let end = |pointer: &str| {
            std::fs::write(folder.path().join("latest_checkpointed_iteration.txt"), pointer).unwrap();
            let (limit, root) = (Some(Duration::from_secs(1)), Some(folder.path().to_owned()));
            Watch { limit, root, ..watch(12, 8) }.end(Signal::Term)
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

    fn watchdog(watch: Watch) -> Watchdog {
        Watchdog::spawn(watch, &mut SignalWatcher::install(&[]).unwrap()).unwrap()
    }

    #[test]
    fn a_signal_that_another_rank_had_counts_from_when_it_is_told() {
        let watchdog = watchdog(watch(0, 0));
        assert_eq!(watchdog.watch.flag.received(), None);
        watchdog.signal_arrived(Signal::Usr1);
        watchdog.signal_arrived(Signal::Term);
        assert_eq!(watchdog.watch.flag.received(), Some(Signal::Usr1));
    }

    /// The deadline would end the process of the tests.
    #[test]
    fn a_run_that_has_ended_has_a_notice_and_no_deadline() {
        let watch = Watch { limit: Some(Duration::from_millis(20)), is_told: false.into(), ..watch(12, 8) };
        // A signal that arrives before the thread waits is seen.
        watch.flag.arrived_elsewhere(Signal::Term);
        watch.is_over.store(true, Ordering::SeqCst);
        let watchdog = watchdog(watch);
        let started = Instant::now();
        while !watchdog.watch.is_told.load(Ordering::Relaxed) {
            assert!(started.elapsed() < Duration::from_secs(30), "the notice is missing");
            std::thread::sleep(Duration::from_millis(40));
        }
    }

    #[test]
    fn what_follows_depends_on_the_length_of_a_step() {
        let text = |saves, milliseconds| {
            Watch { saves, ..watch(0, 0) }.notice(Signal::Int, Duration::from_millis(milliseconds))
        };
        let again = "; Ctrl-C again to stop without saving";
        assert_eq!(text(true, 1200), format!("SIGINT: saving after this step, 1.2 s{again}"));
        let before = "SIGINT: saving the state before this step (which takes 10 s), after this micro-batch";
        assert_eq!(text(true, 10_000), format!("{before}{again}"));
        assert!(text(true, 0).contains("no step is done yet"));
        let limited = Watch { limit: Some(Duration::from_secs(30)), ..watch(0, 0) };
        let text_of_limited = limited.notice(Signal::Term, Duration::from_millis(1200));
        assert!(text_of_limited.contains("1.2 s; the process ends in 30 s at the latest; Ctrl-C"));
        assert!(text(false, 900).contains("checkpoint.save is not set; Ctrl-C again to stop at once"));
    }
}
