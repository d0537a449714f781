//! Signals as flags that a loop can poll. The reaction (save, exit) is up to the loop.
//!
//! The action of a signal belongs to the process, so the count of watchers per signal is
//! process-wide as well; it is the only shared state here.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::low_level::{pipe, unregister};
use signal_hook::{SigId, flag};

/// A signal that can be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// The terminal went away.
    Hup,
    /// Ctrl-C.
    Int,
    /// A polite request to end; schedulers send it before they kill.
    Term,
    /// User-defined; `sbatch --signal` can send it ahead of the time limit.
    Usr1,
    /// User-defined.
    Usr2,
}

impl Signal {
    /// All signals that can be watched.
    pub const ALL: [Self; 5] = [Self::Hup, Self::Int, Self::Term, Self::Usr1, Self::Usr2];

    /// The name, as in `SIGTERM`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hup => "SIGHUP",
            Self::Int => "SIGINT",
            Self::Term => "SIGTERM",
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
        }
    }

    /// The number on this platform.
    pub fn number(self) -> i32 {
        match self {
            Self::Hup => SIGHUP,
            Self::Int => SIGINT,
            Self::Term => SIGTERM,
            Self::Usr1 => SIGUSR1,
            Self::Usr2 => SIGUSR2,
        }
    }

    /// Exit code of a process that ended because of this signal: 128 + number.
    pub fn exit_code(self) -> i32 {
        128 + self.number()
    }

    /// True if this process ignores the signal, as one that `nohup` started ignores
    /// [`Signal::Hup`]. False if the system does not report it.
    pub fn is_ignored(self) -> bool {
        is_in_mask("SigIgn:", self.number())
    }

    fn from_number(number: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.number() as usize == number)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The operating system refused to watch a signal.
#[derive(Debug, thiserror::Error)]
#[error("cannot watch {signal}: {source}")]
pub struct SignalError {
    /// The signal.
    pub signal: Signal,
    /// Why not.
    pub source: io::Error,
}

/// Flag with the watched signal that arrived; clones share their state.
#[derive(Clone, Debug, Default)]
pub struct SignalFlag(Arc<AtomicUsize>);

impl SignalFlag {
    /// The signal that arrived last, if any did.
    pub fn received(&self) -> Option<Signal> {
        Signal::from_number(self.0.load(Ordering::SeqCst))
    }

    /// Records a signal that another rank received, unless one is recorded. True if it is new.
    pub fn arrived_elsewhere(&self, signal: Signal) -> bool {
        self.0.compare_exchange(0, signal.number() as usize, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Forgets what arrived.
    pub fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// Watches signals until it is dropped, which restores their previous actions.
///
/// A watched signal only sets the flag. The exception is SIGINT: when any watched signal has
/// arrived before, Ctrl-C ends the process at once, so that a user need not wait for an unwanted
/// checkpoint.
#[derive(Debug)]
pub struct SignalWatcher {
    flag: SignalFlag,
    actions: Vec<(Signal, Vec<SigId>)>,
}

impl SignalWatcher {
    /// Starts watching.
    ///
    /// # Errors
    /// [`SignalError`] when the operating system refuses; then no signal is watched.
    pub fn install(signals: &[Signal]) -> Result<Self, SignalError> {
        let mut watcher = Self { flag: SignalFlag::default(), actions: Vec::new() };
        let is_second = Arc::new(AtomicBool::new(false));
        for signal in signals {
            // On failure the watcher is dropped, which undoes the signals before this one.
            watcher.watch(*signal, &is_second).map_err(|source| SignalError { signal: *signal, source })?;
        }
        Ok(watcher)
    }

    /// Watches all signals except those that `nohup` told this process to ignore.
    ///
    /// # Errors
    /// [`SignalError`], as [`SignalWatcher::install`].
    pub fn install_all() -> Result<Self, SignalError> {
        let heeded: Vec<Signal> = Signal::ALL.into_iter().filter(|signal| !signal.is_ignored()).collect();
        Self::install(&heeded)
    }

    /// Writes a byte to `pipe` whenever a watched signal arrives, after the flag is set.
    ///
    /// # Errors
    /// If the pipe cannot be registered for a signal.
    pub fn notify(&mut self, pipe: &UnixStream) -> io::Result<()> {
        for (signal, ids) in &mut self.actions {
            ids.push(pipe::register(signal.number(), pipe.try_clone()?)?);
        }
        Ok(())
    }

    /// True if any signal is watched.
    pub fn watches_any(&self) -> bool {
        !self.actions.is_empty()
    }

    /// A handle that says what arrived.
    pub fn flag(&self) -> SignalFlag {
        self.flag.clone()
    }

    /// The signal that arrived last, if any did.
    pub fn received(&self) -> Option<Signal> {
        self.flag.received()
    }

    fn watch(&mut self, signal: Signal, is_second: &Arc<AtomicBool>) -> io::Result<()> {
        let number = signal.number();
        let mut table = Dispositions::lock();
        let original = original_action(number);
        let slot = table.entry(number).or_insert(Slot { original, num_watchers: 0, parked: None });
        slot.num_watchers += 1;
        // Pushed first, so that a failure below is undone by drop.
        self.actions.push((signal, Vec::new()));
        let Some((_, ids)) = self.actions.last_mut() else { return Ok(()) };
        if signal == Signal::Int {
            // Runs before the flag is set: the first signal finds it false.
            ids.push(flag::register_conditional_default(number, is_second.clone())?);
        }
        ids.push(flag::register(number, is_second.clone())?);
        ids.push(flag::register_usize(number, self.flag.0.clone(), number as usize)?);
        if let Some(parked) = slot.parked.take() {
            unregister(parked);
        }
        Ok(())
    }
}

impl Drop for SignalWatcher {
    fn drop(&mut self) {
        let mut table = Dispositions::lock();
        for (signal, ids) in self.actions.drain(..) {
            let number = signal.number();
            if let Some(slot) = table.get_mut(&number) {
                slot.num_watchers -= 1;
                if slot.num_watchers == 0 && slot.original == Action::Default && slot.parked.is_none() {
                    // signal-hook keeps its handler installed, so the default action has to be an
                    // action of its own.
                    slot.parked = flag::register_conditional_default(number, Arc::new(AtomicBool::new(true))).ok();
                }
            }
            for id in ids {
                unregister(id);
            }
        }
    }
}

/// Action of a signal before anyone watched it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// Ends the process.
    Default,
    /// No action, or the host program's own handler, which signal-hook keeps calling.
    Other,
}

/// One signal's entry in the process-wide table.
struct Slot {
    original: Action,
    num_watchers: usize,
    /// Handler that performs the default action while the signal is not watched.
    parked: Option<SigId>,
}

struct Dispositions;

impl Dispositions {
    fn lock() -> MutexGuard<'static, BTreeMap<i32, Slot>> {
        static TABLE: Mutex<BTreeMap<i32, Slot>> = Mutex::new(BTreeMap::new());
        TABLE.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads from `/proc` whether a signal is ignored or caught. Where there is no `/proc` it is taken
/// to be neither.
fn original_action(number: i32) -> Action {
    if is_in_mask("SigIgn:", number) || is_in_mask("SigCgt:", number) { Action::Other } else { Action::Default }
}

/// True if a mask of signals in `/proc/self/status` has one. False without `/proc`.
fn is_in_mask(mask: &str, number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix(mask)).map(str::trim);
    bits.and_then(|bits| u64::from_str_radix(bits, 16).ok()).is_some_and(|bits| bits >> (number - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus};

    use signal_hook::low_level::raise;

    use super::*;

    /// Signals end processes, so each test acts in a child: this test binary again, told to run the
    /// same test.
    fn in_child(test: &str, act: fn()) -> Option<ExitStatus> {
        const MARK: &str = "BRIDGE_SIGNAL_TEST_CHILD";
        if std::env::var_os(MARK).is_some() {
            act();
            std::process::exit(0);
        }
        let path = module_path!().split_once("::").map(|(_, path)| format!("{path}::{test}")).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &path, "--test-threads=1"]).env(MARK, "1");
        Some(child.output().unwrap().status)
    }

    fn send(signal: Signal) {
        raise(signal.number()).unwrap();
    }

    #[test]
    fn a_signal_sets_the_flag() {
        let status = in_child("a_signal_sets_the_flag", || {
            let watcher = SignalWatcher::install(&[Signal::Term, Signal::Usr1]).unwrap();
            let flag = watcher.flag();
            assert_eq!(flag.received(), None);
            send(Signal::Usr1);
            assert_eq!(flag.received(), Some(Signal::Usr1));
            send(Signal::Term);
            send(Signal::Term);
            assert_eq!(watcher.received(), Some(Signal::Term), "a scheduler may send it twice");
            flag.clear();
            assert_eq!(watcher.received(), None);
            assert!(flag.arrived_elsewhere(Signal::Usr1) && !flag.arrived_elsewhere(Signal::Term));
            assert_eq!(watcher.received(), Some(Signal::Usr1), "the first one counts");
        });
        assert_eq!(status.and_then(|status| status.code()), Some(0));
    }

    #[test]
    fn a_second_ctrl_c_kills() {
        let status = in_child("a_second_ctrl_c_kills", || {
            let watcher = SignalWatcher::install(&[Signal::Int]).unwrap();
            send(Signal::Int);
            assert_eq!(watcher.received(), Some(Signal::Int));
            send(Signal::Int);
        });
        assert_eq!(status.and_then(|status| status.signal()), Some(SIGINT));
    }

    #[test]
    fn dropping_the_watcher_restores_the_default() {
        let status = in_child("dropping_the_watcher_restores_the_default", || {
            let outer = SignalWatcher::install(&[Signal::Term]).unwrap();
            drop(SignalWatcher::install(&[Signal::Term]).unwrap());
            send(Signal::Term);
            assert_eq!(outer.received(), Some(Signal::Term), "another watcher is still there");
            drop(outer);
            let again = SignalWatcher::install(&[Signal::Term]).unwrap();
            send(Signal::Term);
            assert_eq!(again.received(), Some(Signal::Term));
            drop(again);
            send(Signal::Term);
        });
        assert_eq!(status.and_then(|status| status.signal()), Some(SIGTERM));
    }

    #[test]
    fn exit_codes() {
        assert_eq!((Signal::Int.exit_code(), Signal::Term.exit_code()), (130, 143));
    }
}
