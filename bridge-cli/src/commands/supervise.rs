//! `bridge train --max-restarts N`: runs the training in a process of its own, and starts it again
//! after it crashed or was killed, for as long as it makes progress. The run itself chooses the
//! checkpoint to resume from.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use bridge_core::config::CheckpointConfig;
use bridge_core::logging::health::{Restart, Supervision};
use bridge_core::logging::terminal::complain;
use bridge_core::resilience::rerun::{EXIT_CODE_FAILED_ON_RESULT_VALIDATION, EXIT_CODE_RESUME_TO_DISAMBIGUATE};
use bridge_core::resilience::{EXIT_CODE_NOT_SAVED_IN_TIME, Signal, SignalWatcher};
use bridge_core::train::{Progress, new_run_name};

use super::monitor::{MONITOR_VARIABLE, Monitor, unix_time};
use super::restarts::{RESTARTS_VARIABLE, RUN_VARIABLE};
use super::worlds::Worlds;
use crate::failure::Failure;
use crate::output::for_child;
use crate::process::hand_on;

/// The option that starts it, which the run itself is not given.
pub const OPTION: &str = "--max-restarts";

/// Wait before a restart; after each fruitless run twice as long as before.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Interval between two polls of the process and of signals.
const INTERVAL: Duration = Duration::from_millis(20);
/// Interval between two writes of the ranks' states.
const TELLING: Duration = Duration::from_secs(2);

/// End of a run.
enum End {
    /// The run ended normally, or another start would end the same way. Has the exit code.
    Final(u8),
    /// The run failed, and another start may help. Has the exit code and the reason.
    Failed(u8, String),
}

impl End {
    fn from_status(status: ExitStatus) -> Self {
        let stops = Signal::ALL.map(Signal::exit_code);
        match (status.code(), status.signal()) {
            (Some(0 | 2 | EXIT_CODE_RESUME_TO_DISAMBIGUATE | EXIT_CODE_FAILED_ON_RESULT_VALIDATION), _) => {
                Self::Final(exit_code(status.code()))
            }
            // The run received a stop request, and has saved or reported that it could not.
            (Some(code), _) if stops.contains(&code) || code == EXIT_CODE_NOT_SAVED_IN_TIME => {
                Self::Final(exit_code(Some(code)))
            }
            (Some(code), _) => Self::Failed(exit_code(Some(code)), format!("ended with exit code {code}")),
            (None, Some(signal)) => {
                Self::Failed(exit_code(Some(128 + signal)), format!("was killed by signal {signal}"))
            }
            (None, None) => Self::Failed(1, "ended without saying how".to_owned()),
        }
    }
}

fn exit_code(code: Option<i32>) -> u8 {
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Supervises the starts of a run, whose checkpoints are where `settings` say; returns its last
/// exit code. Once the run has saved, it resumes from its own save instead of its original start.
/// Fails if signals cannot be watched, or the process cannot be started.
pub fn supervise(
    max_restarts: u32,
    worlds: &Worlds,
    settings: &CheckpointConfig,
    log_dir: &Path,
    monitored: Option<&Path>,
) -> Result<u8, Failure> {
    let signals = SignalWatcher::install_all().map_err(Failure::run)?;
    let (mut restarts, mut progress) = (0, Progress::new(settings.clone()));
    let mut told = Told {
        log_dir,
        run: new_run_name(),
        last: Instant::now(),
        content: Supervision { max_restarts, ..Supervision::default() },
    };
    let mut arguments = worlds.next().map_err(Failure::run)?;
    loop {
        let monitor = monitored.map(Monitor::open).transpose()?;
        let status =
            run_once(&signals, monitor.as_ref(), restarts, &mut told, &arguments[..], &progress.overrides()[..])?;
        told.take_down(monitor.as_ref());
        let (code, why) = match End::from_status(status) {
            End::Final(code) => return Ok(code),
            End::Failed(code, why) => (code, why),
        };
        progress = progress.after_a_start();
        let give_up = |because: &str| complain(&format!("the run {why}; {because}"));
        if signals.received().is_some() {
            give_up("it was asked to stop, so it is not started again");
        } else if let Err(why) = progress.check() {
            give_up(&format!("{why}, so it is not started again"));
        } else if restarts >= max_restarts {
            give_up(&format!("all restarts are used ({OPTION} {max_restarts})"));
        } else {
            restarts += 1;
            let wait = (FIRST_WAIT * 2_u32.pow(progress.fruitless())).min(LONGEST_WAIT);
            let (from, seconds) = (progress.place(), wait.as_secs_f64());
            complain(&format!("the run {why}; restart {restarts} of {max_restarts} in {seconds} s, from {from}"));
            told.content.restarted(Restart { number: restarts, at: unix_time(), why: why.clone(), from: from.clone() });
            told.write();
            if is_asked_to_stop(&signals, wait) {
                return Ok(code);
            }
            match worlds.next() {
                Ok(next) => {
                    arguments = next;
                    continue;
                }
                Err(why) => give_up(&format!("{why}, so it is not started again")),
            }
        }
        return Ok(code);
    }
}

/// State of a supervised run, for other programs.
struct Told<'a> {
    log_dir: &'a Path,
    /// Name of the run in all its starts.
    run: String,
    /// When it was last written.
    last: Instant,
    content: Supervision,
}

impl Told<'_> {
    /// Records the monitor's heartbeats at intervals.
    fn heard(&mut self, monitor: Option<&Monitor>) {
        if self.last.elapsed() >= TELLING {
            self.take_down(monitor);
        }
    }

    /// Records the monitor's heartbeats.
    fn take_down(&mut self, monitor: Option<&Monitor>) {
        if let Some(monitor) = monitor {
            let ranks = monitor.ranks();
            // A run that was just restarted has not sent heartbeats yet: keep the last state of the
            // previous run.
            if !ranks.is_empty() {
                self.content.ranks = ranks;
            }
            self.write();
        }
    }

    /// A full disk does not end the run.
    fn write(&mut self) {
        (self.last, self.content.written) = (Instant::now(), unix_time());
        let _ = self.content.write(self.log_dir);
    }
}

/// Starts this program again with `arguments` and `overrides`, in a process group of its own, and
/// hands signals on until it ends.
fn run_once(
    signals: &SignalWatcher,
    monitor: Option<&Monitor>,
    restarts: u32,
    told: &mut Told,
    arguments: &[OsString],
    overrides: &[String],
) -> Result<ExitStatus, Failure> {
    let program = std::env::current_exe().map_err(Failure::run)?;
    let mut run = Command::new(program);
    if let Some(monitor) = monitor {
        run.env(MONITOR_VARIABLE, monitor.path());
    }
    let mut child = run
        .args(arguments)
        .args(overrides)
        .env(RESTARTS_VARIABLE, restarts.to_string())
        .env(RUN_VARIABLE, &told.run)
        .process_group(0)
        .stdout(for_child())
        .spawn()
        .map_err(|error| Failure::run(format!("the run cannot be started: {error}")))?;
    let mut handed_on = None;
    loop {
        if let Some(status) = child.try_wait().map_err(Failure::run)? {
            return Ok(status);
        }
        let received = signals.received();
        if let Some(signal) = received.filter(|_| received != handed_on) {
            hand_on(&child, "the run", signal, signal);
            handed_on = received;
        }
        told.heard(monitor);
        if let Some(late) = monitor.and_then(Monitor::late) {
            complain(&format!("{}; the run is ended", late.why));
            end(&mut child, late.process);
            return child.wait().map_err(Failure::run);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Ends a run that may be beyond hearing: all of its group, and the process of the rank that is
/// late, which a launcher may have put elsewhere.
fn end(child: &mut Child, process: Option<u32>) {
    let group = i32::try_from(child.id()).map_or(0, |id| -id);
    let process = process.and_then(|id| i32::try_from(id).ok()).unwrap_or(0);
    for target in [process, group].into_iter().filter(|target| *target != 0) {
        // SAFETY: `kill` reads its arguments only; the run was not waited for, so that its number
        // is still its own.
        let sent = unsafe { libc::kill(target, libc::SIGKILL) };
        if sent != 0 && target == group {
            // The process group cannot be killed, so kill only the process itself.
            let _ = child.kill();
        }
    }
}

/// Waits; true as soon as a signal has arrived.
fn is_asked_to_stop(signals: &SignalWatcher, wait: Duration) -> bool {
    let started = Instant::now();
    while started.elapsed() < wait {
        if signals.received().is_some() {
            return true;
        }
        std::thread::sleep(INTERVAL);
    }
    signals.received().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ends_that_another_start_may_mend_are_failures() {
        // As `wait` reports them: the exit code in the second byte, a signal in the first.
        for (raw, is_final, code) in [
            (0, true, 0),
            (2 << 8, true, 2),
            (16 << 8, true, 16),
            (17 << 8, true, 17),
            (143 << 8, true, 143),
            (18 << 8, true, 18),
            (1 << 8, false, 1),
            (101 << 8, false, 101),
            // Exit code of mpirun if a rank was killed.
            (137 << 8, false, 137),
            (9, false, 137),
            (15, false, 143),
        ] {
            let found = match End::from_status(ExitStatus::from_raw(raw)) {
                End::Final(code) => (true, code),
                End::Failed(code, _) => (false, code),
            };
            assert_eq!(found, (is_final, code), "{raw:#x}");
        }
    }
}
