//! Set-up of the process before a command begins, its environment variables, and signals to the
//! processes that it has started.

use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bridge_core::logging::terminal::complain;
use bridge_core::resilience::Signal;

use crate::failure::Failure;
use crate::output;

/// The threads that compute for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// The command starts its own, or computes nothing.
    Own,
    /// Threads of the process.
    OfTheProcess,
}

/// Most threads that the environment may ask for.
const MOST_THREADS: usize = 4096;

/// Prepares the process: limits that the system reports by a signal become errors, the thread pool
/// is started, and standard output is kept for results if `keeps_output`. Fails if the
/// environment's number of threads is invalid, or threads cannot be started.
pub fn prepare(pool: Pool, keeps_output: bool) -> Result<(), Failure> {
    if keeps_output {
        output::keep_for_results().map_err(|error| Failure::run(format!("standard output: {error}")))?;
    }
    // With the signal ignored, exceeding the file size limit is an error of the write instead of
    // the end of the process.
    let unread = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, unread).map_err(Failure::run)?;
    for name in ["RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS"] {
        let Some(found) = std::env::var_os(name) else { continue };
        let count = found.to_str().and_then(|text| text.parse::<usize>().ok());
        if count.is_none_or(|count| count > MOST_THREADS) {
            let found = found.display();
            return Err(Failure::input(format!("{name}: expected a number of at most {MOST_THREADS}, found {found}")));
        }
    }
    if pool == Pool::OfTheProcess {
        let built = rayon::ThreadPoolBuilder::new().build_global();
        built.map_err(|error| Failure::run(format!("the threads that compute could not be started: {error}")))?;
    }
    Ok(())
}

/// Hands a signal on to a child that was not waited for, as the signal `sent`.
pub fn hand_on(child: &Child, name: &str, signal: Signal, sent: Signal) {
    let Ok(process) = i32::try_from(child.id()) else { return };
    // SAFETY: `kill` reads its arguments only; the process was not waited for, so the number is
    // still its own.
    if unsafe { libc::kill(process, sent.number()) } != 0 {
        complain(&format!("{signal} cannot be handed on to {name}"));
    }
}
