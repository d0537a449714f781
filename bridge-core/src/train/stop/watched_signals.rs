//! Signals that a run watches.

use crate::config::RunConfig;
use crate::resilience::{Signal, SignalError, SignalWatcher};
use crate::train::ranks::rank_env::RankUnit;
use crate::train::settings;

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

/// The signals that a run watches.
pub(in crate::train) fn watch_signals(
    config: &RunConfig,
    watch: WatchSignals,
    unit: RankUnit,
) -> Result<Option<SignalWatcher>, SignalError> {
    let configured = settings::signal(config.train.exit_signal);
    let mut signals = Vec::new();
    if config.train.exit_signal_handler || watch == WatchSignals::Process {
        signals.push(configured);
    }
    if config.train.exit_signal_handler_for_training || watch == WatchSignals::Process {
        signals.extend([Signal::Int, Signal::Term]);
    }
    // A terminal that goes away ends a run in order too, unless `nohup` has said that it should
    // not.
    if watch == WatchSignals::Process && !Signal::Hup.is_ignored() {
        signals.push(Signal::Hup);
    }
    // mpirun hands this one on to all ranks; after SIGTERM it kills them within a second.
    if watch == WatchSignals::Process && unit == RankUnit::Process {
        signals.push(Signal::Usr1);
    }
    let mut unique = Vec::new();
    for signal in signals {
        if !unique.contains(&signal) {
            unique.push(signal);
        }
    }
    Ok(if unique.is_empty() { None } else { Some(SignalWatcher::install(&unique)?) })
}
