//! Says at once that a signal has arrived and what follows: the run itself looks only between steps
//! and micro-batches. A run whose look comes first says it itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::config::RunConfig;
use crate::logging::ProgressSink;
use crate::resilience::{Signal, SignalFlag};

/// Polling interval.
const INTERVAL: Duration = Duration::from_millis(50);

/// Steps that take longer are left in their middle, about a second after a signal at the latest.
const LONG: Duration = Duration::from_secs(2);

/// A thread that waits for a signal, until this is dropped.
pub(in crate::train) struct StopNotice {
    shared: Arc<Shared>,
    progress: Arc<dyn ProgressSink>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    is_over: AtomicBool,
    /// True if the notice is printed.
    is_told: AtomicBool,
    /// Milliseconds that the last step took; 0 before the first one.
    step: AtomicU64,
    saves: bool,
    /// Seconds after which the process is ended.
    deadline: Option<f64>,
}

impl StopNotice {
    /// Begins to wait. Without a thread nothing is said.
    pub fn begin(flag: SignalFlag, progress: Arc<dyn ProgressSink>, config: &RunConfig) -> Self {
        let shared = Arc::new(Shared::new(config));
        let (waiting, terminal) = (Arc::clone(&shared), Arc::clone(&progress));
        let wait = move || {
            while !waiting.is_over.load(Ordering::Relaxed) {
                if let Some(signal) = flag.received() {
                    return waiting.tell(signal, terminal.as_ref());
                }
                std::thread::park_timeout(INTERVAL);
            }
        };
        let thread = std::thread::Builder::new().name("stop notice".into()).spawn(wait).ok();
        Self { shared, progress, thread }
    }

    /// Says that `signal` has arrived, unless that is said.
    pub fn tell(&self, signal: Signal) {
        self.shared.tell(signal, self.progress.as_ref());
    }

    /// Says how long the last step took.
    pub fn step_took(&self, seconds: f64) {
        self.shared.step.store((seconds * 1000.0).max(1.0) as u64, Ordering::Relaxed);
    }
}

impl Shared {
    fn new(config: &RunConfig) -> Self {
        Self::with_deadline(config.checkpoint.save.is_some(), config.train.exit_signal_deadline_s)
    }

    fn with_deadline(saves: bool, deadline: Option<f64>) -> Self {
        let (is_over, is_told) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { is_over, is_told, step: AtomicU64::new(0), saves, deadline }
    }

    fn tell(&self, signal: Signal, progress: &dyn ProgressSink) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            progress.suspend(&mut || eprintln!("{}", self.text(signal)));
        }
    }

    fn text(&self, signal: Signal) -> String {
        let step = Duration::from_millis(self.step.load(Ordering::Relaxed));
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
            .deadline
            .map_or_else(String::new, |seconds| format!("; the process ends in {seconds} s at the latest"));
        let how = if self.saves { "without saving" } else { "at once" };
        format!("{signal}: {what}{within}; Ctrl-C again to stop {how}")
    }
}

impl Drop for StopNotice {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It does not panic, and nothing is lost if it did.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_depends_on_the_length_of_a_step() {
        let text = |saves, milliseconds| {
            let shared = Shared { step: AtomicU64::new(milliseconds), ..Shared::with_deadline(saves, None) };
            shared.text(Signal::Int)
        };
        let again = "; Ctrl-C again to stop without saving";
        assert_eq!(text(true, 1200), format!("SIGINT: saving after this step, 1.2 s{again}"));
        let before = "SIGINT: saving the state before this step (which takes 10 s), after this micro-batch";
        assert_eq!(text(true, 10_000), format!("{before}{again}"));
        assert!(text(true, 0).contains("no step is done yet"));
        let limited = Shared { step: AtomicU64::new(1200), ..Shared::with_deadline(true, Some(30.0)) };
        assert!(limited.text(Signal::Term).contains("1.2 s; the process ends in 30 s at the latest; Ctrl-C"));
        assert!(text(false, 900).contains("checkpoint.save is not set; Ctrl-C again to stop at once"));
    }
}
