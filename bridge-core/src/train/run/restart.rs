//! Starting a run again after a fault, inside the process, for ranks that are its threads
//! (`[inprocess_restart]`). If a rank fails, all ranks end and start again as new threads. A thread
//! that hangs can neither be ended nor abandoned, since it holds resources of the run. Then the
//! process executes its program again and keeps its process ID.

use std::any::Any;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bridge_dist::comm::CommErrorKind;
use bridge_dist::comm::thread::panic_message;
use bridge_dist::mesh::ProcessGroups;

use crate::config::{InProcessRestartConfig, RawConfig, RestartGranularity, RunConfig, World};
use crate::resilience::{Heartbeat, Section};
use crate::train::error::{Classified, ErrorClass};
use crate::train::ranks::device::LocalRank;
use crate::train::ranks::rank_env::{RankEnv, RankUnit};
use crate::train::resume::progress::Progress;
use crate::train::run::error::TrainError;
use crate::train::run::launch::{rank_timeout, run_on_threads};

/// Seconds that are as good as for ever, and fit into a duration.
const LONGEST: f64 = 1e9;

/// Program of a rank.
type Program<'a, T> = dyn Fn(&RunConfig, ProcessGroups, RankEnv) -> Result<T, TrainError> + Sync + 'a;

/// The process that restarts happen in.
pub struct Host<'a> {
    /// The recipe, with `overrides` over it.
    pub recipe: &'a dyn Fn(&[String]) -> Result<RawConfig, TrainError>,
    /// Number of ranks, spare ones included.
    pub ranks: usize,
    /// Faults of this run before this process was started.
    pub faults: u32,
    /// Reports an event on a line.
    pub tell: &'a (dyn Fn(&str) + Sync),
    /// True if a stop was requested.
    pub is_stopped: &'a dyn Fn() -> bool,
    /// Leaves the process, of which a thread hangs.
    pub leave: &'a dyn Fn(Leave) -> Infallible,
}

/// End of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The process restarts after this number of faults, with these overrides.
    BeginAnew(u32, Vec<String>),
    /// The run fails, for this reason.
    Fail(String),
}

/// Runs `program` on the ranks of `config`, as [`run_on_threads`] does, and again after a fault, as
/// `[inprocess_restart]` says.
///
/// # Errors
/// The last fault, when another start is not allowed or would end the same way.
pub fn run_with_restarts<T: Send>(
    mut config: RunConfig,
    host: &Host<'_>,
    program: impl Fn(&RunConfig, ProcessGroups, RankEnv) -> Result<T, TrainError> + Sync,
) -> Result<Vec<T>, TrainError> {
    let settings = config.inprocess_restart.clone().unwrap_or_default();
    let (mut progress, mut faults) = (Progress::new(config.checkpoint.clone()), host.faults);
    let mut places = Places::new(&settings, config.parallel.world_size, host.ranks);
    loop {
        let on_hung = |ranks: &[usize]| {
            let progress = progress.after_a_start();
            let ranks = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            let hung = format!("no sign of life of ranks [{ranks}] for {} s", settings.hard_timeout);
            let allowed = if (host.is_stopped)() { Err("the run was asked to stop".to_owned()) } else { Ok(()) };
            match allowed.and_then(|()| allows(&settings, faults + 1, &progress)) {
                Err(why) => (host.leave)(Leave::Fail(format!("{hung}; {why}"))),
                Ok(()) => {
                    let from = progress.place();
                    (host.tell)(&format!("{hung}; restart {}: the process begins anew, from {from}", faults + 1));
                    (host.leave)(Leave::BeginAnew(faults + 1, progress.overrides()))
                }
            }
        };
        let (error, ranks) = match start(&config, &settings, &places, faults, &program, &on_hung) {
            Ok(results) => return Ok(results),
            Err(fault) => fault,
        };
        if error.is_bad_input() || matches!(error, TrainError::Stopped(_)) || (host.is_stopped)() {
            return Err(error);
        }
        (progress, faults) = (progress.after_a_start(), faults + 1);
        if let Err(why) = allows(&settings, faults, &progress) {
            (host.tell)(&format!("the run is not started again: {why}"));
            return Err(error);
        }
        (host.tell)(&format!("{error}; restart {faults} in the process, from {}", progress.place()));
        places.replace(&ranks).iter().for_each(|line| (host.tell)(line));
        let overrides = progress.overrides();
        if !overrides.is_empty() {
            config = (host.recipe)(&overrides)?.finalize(&World { size: host.ranks })?;
        }
    }
}

/// Checks that another start is allowed after this number of faults; the error is the reason.
fn allows(settings: &InProcessRestartConfig, faults: u32, progress: &Progress) -> Result<(), String> {
    let faults = faults as usize;
    if settings.max_iterations.is_some_and(|most| faults >= most) {
        return Err("inprocess_restart.max_iterations allows no more starts".to_owned());
    }
    if settings.max_rank_faults.is_some_and(|most| faults > most) {
        return Err("inprocess_restart.max_rank_faults allows no more faults".to_owned());
    }
    progress.check()
}

/// Assignment of started ranks to ranks of the run.
struct Places {
    places: Vec<usize>,
    spares: Vec<usize>,
    started: usize,
}

impl Places {
    fn new(settings: &InProcessRestartConfig, active: usize, started: usize) -> Self {
        // A machine that is replaced as a whole leaves no spare ranks.
        let spares = match settings.granularity {
            RestartGranularity::Rank => (active..started).rev().collect(),
            RestartGranularity::Node => Vec::new(),
        };
        Self { places: (0..active).collect(), spares, started }
    }

    /// Replaces `ranks` by spare ranks, while there are any. Returns messages.
    fn replace(&mut self, ranks: &[usize]) -> Vec<String> {
        let mut lines = Vec::new();
        for rank in ranks {
            if let Some(place) = self.places.get_mut(*rank)
                && let Some(spare) = self.spares.pop()
            {
                let failed = std::mem::replace(place, spare);
                lines.push(format!("rank {rank}: spare rank {spare} takes the place of {failed}"));
            }
        }
        lines
    }

    fn local_rank(&self, rank: usize) -> Option<LocalRank> {
        let place = self.places.get(rank).copied().unwrap_or(rank);
        (self.started > self.places.len()).then_some(LocalRank { rank: place, size: self.started })
    }
}

/// Ends the process where these ranks hang.
type OnHung<'a> = dyn Fn(&[usize]) -> Infallible + 'a;

/// Starts the ranks, and watches over them until they have ended or are found to hang.
///
/// # Errors
/// The message of the first rank that failed, and the ranks that are known to have failed first.
fn start<T: Send>(
    config: &RunConfig,
    settings: &InProcessRestartConfig,
    places: &Places,
    faults: u32,
    program: &Program<'_, T>,
    on_hung: &OnHung<'_>,
) -> Result<Vec<T>, (TrainError, Vec<usize>)> {
    let heartbeats: Vec<Arc<Heartbeat>> = (0..config.parallel.world_size).map(|_| Arc::default()).collect();
    let failed: Mutex<BTreeSet<usize>> = Mutex::default();
    let interval = Duration::from_secs_f64(settings.progress_watchdog_interval.min(LONGEST));
    let (ended, end) = channel();
    std::thread::scope(|scope| {
        let (heartbeats, failed) = (&heartbeats, &failed);
        scope.spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                run_on_threads(config, rank_timeout(config), |groups| {
                    let rank = groups.world().rank();
                    let _ending = Ending(&heartbeats[rank]);
                    let (heartbeat, place) = (Arc::clone(&heartbeats[rank]), places.local_rank(rank));
                    let rank_env = RankEnv { unit: RankUnit::Thread, heartbeat, place, faults, ..RankEnv::default() };
                    program(config, groups, rank_env).inspect_err(|error| {
                        if !follows_from_another(error) {
                            failed.lock().unwrap_or_else(PoisonError::into_inner).insert(rank);
                        }
                    })
                })
            }));
            // The loop below receives the outcome.
            let _ = ended.send(outcome.unwrap_or_else(|panic| Err(of_panic(panic.as_ref()))));
        });
        let mut is_seen = false;
        loop {
            match end.recv_timeout(interval) {
                Ok(Ok(results)) => return Ok(results),
                Ok(Err(error)) => {
                    let failed = failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    let ranks = culprits(&error, failed);
                    return Err((error, ranks));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let hung = hung(heartbeats, Duration::from_secs_f64(settings.hard_timeout.min(LONGEST)));
                    // A second look sees all of those that fell silent at about the same time.
                    if !hung.is_empty() && std::mem::replace(&mut is_seen, true) {
                        match on_hung(&hung) {}
                    }
                    is_seen &= !hung.is_empty();
                }
            }
        }
    })
}

/// Ranks whose last sign of life is longer ago than `limit`. Getting ready may take any time.
fn hung(heartbeats: &[Arc<Heartbeat>], limit: Duration) -> Vec<usize> {
    let is_hung = |heartbeat: &Heartbeat| {
        !matches!(heartbeat.section(), Section::Setup | Section::Ended) && heartbeat.silence() > limit
    };
    (0..heartbeats.len()).filter(|rank| is_hung(&heartbeats[*rank])).collect()
}

/// The error of a world of one rank that panicked.
fn of_panic(panic: &(dyn Any + Send)) -> TrainError {
    TrainError::RankPanicked {
        rank: 0,
        message: panic_message(panic),
        operation: "not recorded for a single rank".to_owned(),
    }
}

/// True if a rank failed only because another one did.
fn follows_from_another(error: &TrainError) -> bool {
    match error.class() {
        ErrorClass::OtherRank(_) => true,
        ErrorClass::Communication(error) => !matches!(&*error.kind, CommErrorKind::InvalidArgument { .. }),
        _ => false,
    }
}

/// Ranks at fault: ranks that failed first, or did not join an operation in which others waited.
fn culprits(error: &TrainError, failed: BTreeSet<usize>) -> Vec<usize> {
    let mut ranks = failed;
    if let TrainError::RankPanicked { rank, .. } = error {
        ranks.insert(*rank);
    }
    if let ErrorClass::Communication(error) = error.class() {
        ranks.extend(error.root_cause().missing_ranks().into_iter().flatten());
    }
    ranks.into_iter().collect()
}

/// Notes that a rank has ended, however it did.
struct Ending<'a>(&'a Heartbeat);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.enter(Section::Ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CheckpointConfig;

    #[test]
    fn spare_ranks_take_the_places_of_those_that_failed() {
        let settings =
            InProcessRestartConfig { granularity: RestartGranularity::Rank, ..InProcessRestartConfig::default() };
        let mut places = Places::new(&settings, 2, 4);
        assert_eq!(places.replace(&[1]), ["rank 1: spare rank 2 takes the place of 1"]);
        assert_eq!(places.local_rank(1), Some(LocalRank { rank: 2, size: 4 }));
        assert_eq!(places.local_rank(0), Some(LocalRank { rank: 0, size: 4 }));
        assert_eq!(places.replace(&[0, 1]).len(), 1, "there was one more");
        let whole = InProcessRestartConfig::default();
        assert!(Places::new(&whole, 2, 4).replace(&[1]).is_empty());
        assert_eq!(Places::new(&whole, 2, 2).local_rank(1), None);
    }

    #[test]
    fn starts_are_limited() {
        let settings = InProcessRestartConfig::default();
        let (fresh, mut stuck) =
            (Progress::new(CheckpointConfig::default()), Progress::new(CheckpointConfig::default()));
        for _ in 0..3 {
            assert!(allows(&settings, 100, &stuck).is_ok());
            stuck = stuck.after_a_start();
        }
        assert!(allows(&settings, 100, &stuck).is_err());
        let two_starts = InProcessRestartConfig { max_iterations: Some(2), ..settings.clone() };
        assert!(allows(&two_starts, 1, &fresh).is_ok() && allows(&two_starts, 2, &fresh).is_err());
        let one_fault = InProcessRestartConfig { max_rank_faults: Some(1), ..settings };
        assert!(allows(&one_fault, 1, &fresh).is_ok() && allows(&one_fault, 2, &fresh).is_err());
    }
}
