//! Starting a run again after a fault: inside the process for ranks that are its threads (`[inprocess_restart]`), and what any run that is started
//! again needs to be told. A rank that failed has ended, and so have the others: the ranks begin again as new threads. A thread that hangs can
//! neither be ended nor left alone, since it holds what the run needs; then the process begins anew, under its own number.

use std::any::Any;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bridge_dist::comm::{CommError, CommErrorKind};
use bridge_dist::mesh::ProcessGroups;

use super::TrainError;
use super::checkpointing::newest_save;
use super::device::LocalRank;
use super::launch::{rank_timeout, run_on_threads};
use crate::config::{CheckpointConfig, InProcessRestartConfig, RawConfig, RestartGranularity, RunConfig, World};
use crate::resilience::{Pulse, Section};

/// Starts in a row that may come to no newer save.
const FRUITLESS: u32 = 3;
/// Seconds that are as good as for ever, and fit into a duration.
const LONGEST: f64 = 1e9;

/// What a rank does.
type Program<'a, T> = dyn Fn(&RunConfig, ProcessGroups, Seat) -> Result<T, TrainError> + Sync + 'a;

/// Overrides with which a run that has saved goes on where it was: it may have begun from another run's checkpoint, or without some of the state of one.
pub fn overrides_of_restart(settings: &CheckpointConfig) -> Vec<String> {
    let began_elsewhere = settings.load.is_some() && settings.load != settings.save;
    let overrides = [
        (began_elsewhere || settings.ckpt_step.is_some(), "checkpoint.load=null"),
        (settings.ckpt_step.is_some(), "checkpoint.ckpt_step=null"),
        (settings.finetune, "checkpoint.finetune=false"),
        (settings.exit_on_missing_checkpoint, "checkpoint.exit_on_missing_checkpoint=false"),
        (!settings.load_optim && settings.save_optim, "checkpoint.load_optim=true"),
        (!settings.load_rng && settings.save_rng, "checkpoint.load_rng=true"),
    ];
    overrides.into_iter().filter(|(is_needed, _)| *is_needed).map(|(_, text)| text.to_owned()).collect()
}

/// The process that restarts happen in.
pub struct Host<'a> {
    /// The recipe, with `overrides` over it.
    pub recipe: &'a dyn Fn(&[String]) -> Result<RawConfig, TrainError>,
    /// How many ranks there are, spare ones included.
    pub ranks: usize,
    /// Faults of this run so far, where the process has begun anew.
    pub faults: u32,
    /// Says a line on what happens.
    pub tell: &'a (dyn Fn(&str) + Sync),
    /// Whether somebody asked the run to stop.
    pub is_stopped: &'a dyn Fn() -> bool,
    /// Leaves the process, of which a thread hangs.
    pub leave: &'a dyn Fn(Leave) -> Infallible,
}

/// How a process is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    /// It begins anew after so many faults, with these overrides.
    BeginAnew(u32, Vec<String>),
    /// It fails, for this reason.
    Fail(String),
}

/// What a rank is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankUnit {
    /// A thread among others of the process.
    #[default]
    Thread,
    /// A process.
    Process,
}

/// What a rank of one start is given.
#[derive(Clone, Debug, Default)]
pub struct Seat {
    /// What the rank is.
    pub unit: RankUnit,
    /// Where it shows that it is alive.
    pub pulse: Arc<Pulse>,
    /// Its place among all that were started, by which it finds its device; `None` for that of its number.
    pub place: Option<LocalRank>,
    /// Faults of the run before this start.
    pub faults: u32,
    /// The socket of the monitor that watches the run (`[ft]`).
    pub monitor: Option<PathBuf>,
}

/// Runs `program` on the ranks of `config`, as [`run_on_threads`] does, and again after a fault, as `[inprocess_restart]` says.
///
/// # Errors
/// The last fault, when another start is not allowed or would end the same way.
pub fn run_with_restarts<T: Send>(
    mut config: RunConfig,
    host: &Host<'_>,
    program: impl Fn(&RunConfig, ProcessGroups, Seat) -> Result<T, TrainError> + Sync,
) -> Result<Vec<T>, TrainError> {
    let settings = config.inprocess_restart.clone().unwrap_or_default();
    let (begun, mut faults, mut fruitless) = (newest_save(&config.checkpoint), host.faults, 0);
    let mut places = Places::new(&settings, config.parallel.world_size, host.ranks);
    loop {
        let before = newest_save(&config.checkpoint);
        // What the run is like after a fault: whether there may be another start, where it goes on, and with which overrides.
        let after_fault = |fruitless: u32| {
            let now = newest_save(&config.checkpoint);
            let fruitless = if now > before { 0 } else { fruitless + 1 };
            let overrides = if now > begun { overrides_of_restart(&config.checkpoint) } else { Vec::new() };
            let from = now.map_or_else(|| "the beginning".to_owned(), |step| format!("iteration {step}"));
            (fruitless, overrides, from)
        };
        let on_hung = |ranks: &[usize]| {
            let (fruitless, overrides, from) = after_fault(fruitless);
            let ranks = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            let hung = format!("no sign of life of ranks [{ranks}] for {} s", settings.hard_timeout);
            let allowed = if (host.is_stopped)() { Err("the run was asked to stop".to_owned()) } else { Ok(()) };
            match allowed.and_then(|()| allows(&settings, faults + 1, fruitless)) {
                Err(why) => (host.leave)(Leave::Fail(format!("{hung}; {why}"))),
                Ok(()) => {
                    (host.tell)(&format!("{hung}; restart {}: the process begins anew, from {from}", faults + 1));
                    (host.leave)(Leave::BeginAnew(faults + 1, overrides))
                }
            }
        };
        let (error, ranks) = match start(&config, &settings, (&places, faults), (&program, &on_hung)) {
            Ok(results) => return Ok(results),
            Err(fault) => fault,
        };
        if error.is_bad_input() || matches!(error, TrainError::Stopped(_)) || (host.is_stopped)() {
            return Err(error);
        }
        let (after, overrides, from) = after_fault(fruitless);
        (fruitless, faults) = (after, faults + 1);
        if let Err(why) = allows(&settings, faults, fruitless) {
            (host.tell)(&format!("the run is not started again: {why}"));
            return Err(error);
        }
        (host.tell)(&format!("{error}; restart {faults} in the process, from {from}"));
        places.replace(&ranks).iter().for_each(|line| (host.tell)(line));
        if !overrides.is_empty() {
            config = (host.recipe)(&overrides)?.finalize(&World { size: host.ranks })?;
        }
    }
}

/// Whether there may be another start after so many faults; otherwise why not.
fn allows(settings: &InProcessRestartConfig, faults: u32, fruitless: u32) -> Result<(), String> {
    let faults = faults as usize;
    if settings.max_iterations.is_some_and(|most| faults >= most) {
        return Err("inprocess_restart.max_iterations allows no more starts".to_owned());
    }
    if settings.max_rank_faults.is_some_and(|most| faults > most) {
        return Err("inprocess_restart.max_rank_faults allows no more faults".to_owned());
    }
    if fruitless >= FRUITLESS {
        return Err(format!("{FRUITLESS} starts in a row came to no newer save"));
    }
    Ok(())
}

/// Which of the ranks that were started does the work of which rank of the run.
struct Places {
    places: Vec<usize>,
    spares: Vec<usize>,
    started: usize,
}

impl Places {
    fn new(settings: &InProcessRestartConfig, active: usize, started: usize) -> Self {
        // Of a machine that is replaced as a whole nothing is left.
        let spares = match settings.granularity {
            RestartGranularity::Rank => (active..started).rev().collect(),
            RestartGranularity::Node => Vec::new(),
        };
        Self { places: (0..active).collect(), spares, started }
    }

    /// Lets spare ranks do the work of `ranks`, as far as there are some. Returns what to tell.
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

    fn of(&self, rank: usize) -> Option<LocalRank> {
        let place = self.places.get(rank).copied().unwrap_or(rank);
        (self.started > self.places.len()).then_some(LocalRank { rank: place, size: self.started })
    }
}

/// Ends the process where these ranks hang.
type OnHung<'a> = dyn Fn(&[usize]) -> Infallible + 'a;

/// Starts the ranks, and watches over them until they have ended or are found to hang.
///
/// # Errors
/// What the first rank that failed says, and which ranks failed by themselves, as far as that is known.
fn start<T: Send>(
    config: &RunConfig,
    settings: &InProcessRestartConfig,
    (places, faults): (&Places, u32),
    (program, on_hung): (&Program<'_, T>, &OnHung<'_>),
) -> Result<Vec<T>, (TrainError, Vec<usize>)> {
    let pulses: Vec<Arc<Pulse>> = (0..config.parallel.world_size).map(|_| Arc::default()).collect();
    let failed: Mutex<BTreeSet<usize>> = Mutex::default();
    let interval = Duration::from_secs_f64(settings.progress_watchdog_interval.min(LONGEST));
    let (ended, end) = channel();
    std::thread::scope(|scope| {
        let (pulses, failed) = (&pulses, &failed);
        scope.spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                run_on_threads(config, rank_timeout(config), |groups| {
                    let rank = groups.world().rank();
                    let _ending = Ending(&pulses[rank]);
                    let (pulse, place) = (Arc::clone(&pulses[rank]), places.of(rank));
                    let seat = Seat { unit: RankUnit::Thread, pulse, place, faults, monitor: None };
                    program(config, groups, seat).inspect_err(|error| {
                        if !follows_from_another(error) {
                            failed.lock().unwrap_or_else(PoisonError::into_inner).insert(rank);
                        }
                    })
                })
            }));
            // Somebody waits for it below.
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
                    let hung = hung(pulses, Duration::from_secs_f64(settings.hard_timeout.min(LONGEST)));
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
fn hung(pulses: &[Arc<Pulse>], limit: Duration) -> Vec<usize> {
    let is_hung =
        |pulse: &Pulse| !matches!(pulse.section(), Section::Setup | Section::Ended) && pulse.silence() > limit;
    (0..pulses.len()).filter(|rank| is_hung(&pulses[*rank])).collect()
}

/// The error of a world of one rank that panicked.
fn of_panic(panic: &(dyn Any + Send)) -> TrainError {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    let message = text.unwrap_or_else(|| "a panic without a message".to_owned());
    TrainError::RankPanicked { rank: 0, message, operation: "not recorded for a single rank".to_owned() }
}

/// Whether a rank failed only because another one did.
fn follows_from_another(error: &TrainError) -> bool {
    match error {
        TrainError::OtherRank { .. } => true,
        TrainError::Communication(error) => !matches!(&*error.kind, CommErrorKind::InvalidArgument { .. }),
        _ => false,
    }
}

/// The ranks at fault: those that failed by themselves, or did not come where others waited for them.
fn culprits(error: &TrainError, failed: BTreeSet<usize>) -> Vec<usize> {
    let mut ranks = failed;
    match error {
        TrainError::RankPanicked { rank, .. } => drop(ranks.insert(*rank)),
        TrainError::Communication(error) => {
            let cause: &CommError = error.root_cause();
            if let CommErrorKind::Timeout { missing, .. } = &*cause.kind {
                ranks.extend(missing.iter().filter_map(|(rank, _)| cause.world_ranks.get(*rank)));
            }
        }
        _ => {}
    }
    ranks.into_iter().collect()
}

/// Notes that a rank has ended, however it did.
struct Ending<'a>(&'a Pulse);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.enter(Section::Ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spare_ranks_take_the_places_of_those_that_failed() {
        let settings =
            InProcessRestartConfig { granularity: RestartGranularity::Rank, ..InProcessRestartConfig::default() };
        let mut places = Places::new(&settings, 2, 4);
        assert_eq!(places.replace(&[1]), ["rank 1: spare rank 2 takes the place of 1"]);
        assert_eq!(places.of(1), Some(LocalRank { rank: 2, size: 4 }));
        assert_eq!(places.of(0), Some(LocalRank { rank: 0, size: 4 }));
        assert_eq!(places.replace(&[0, 1]).len(), 1, "there was one more");
        let whole = InProcessRestartConfig::default();
        assert!(Places::new(&whole, 2, 4).replace(&[1]).is_empty());
        assert_eq!(Places::new(&whole, 2, 2).of(1), None);
    }

    #[test]
    fn starts_are_limited() {
        let settings = InProcessRestartConfig::default();
        assert!(allows(&settings, 100, 2).is_ok());
        assert!(allows(&settings, 100, 3).is_err());
        let two_starts = InProcessRestartConfig { max_iterations: Some(2), ..settings.clone() };
        assert!(allows(&two_starts, 1, 0).is_ok() && allows(&two_starts, 2, 0).is_err());
        let one_fault = InProcessRestartConfig { max_rank_faults: Some(1), ..settings };
        assert!(allows(&one_fault, 1, 0).is_ok() && allows(&one_fault, 2, 0).is_err());
    }

    #[test]
    fn only_what_would_begin_again_is_overridden() {
        let save = Some("b".into());
        let plain = CheckpointConfig { save: save.clone(), ..CheckpointConfig::default() };
        assert!(overrides_of_restart(&plain).is_empty());
        let same = CheckpointConfig { load: save.clone(), ..plain.clone() };
        assert!(overrides_of_restart(&same).is_empty());
        let tuned = CheckpointConfig { load: Some("a".into()), finetune: true, load_rng: false, ..plain };
        let expected = ["checkpoint.load=null", "checkpoint.finetune=false", "checkpoint.load_rng=true"];
        assert_eq!(overrides_of_restart(&tuned), expected);
    }
}
