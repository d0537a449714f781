//! Chooses the checkpoint to continue from: the latest intact one, with a report of all anomalies.
//! Writes nothing and never decides to start from scratch.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bridge_data::untrusted_io;

use super::checksum::{Checksum, stated_checksum};
use super::error::{CheckpointError, DamagedCheckpoint, RootFault, SkippedCheckpoint};
use super::fsio::parent_of;
use super::journal::{Journal, JournalState, Pointer};
use super::names::{LATEST_FILE, METADATA_FILE, iteration_folder_name};
use super::reader::Checkpoint;
use super::store::{CheckpointStore, Place, RootEntry, RootState, iteration_of};
use super::together::Verifier;
use super::verify::Verification;

/// Request to a [`CheckpointStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadRequest {
    /// Exactly this iteration. If it is missing or damaged, that is an error with and without
    /// `fallback`.
    pub ckpt_step: Option<u64>,
    /// True to skip and report damaged checkpoints, and take the newest intact one before them.
    /// Otherwise damage is an error that offers the intact one.
    pub fallback: bool,
    /// Thoroughness of the check for damage.
    pub verification: Verification,
}

/// An anomaly that does not prevent loading.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The last save was cut short, before or after its checkpoint was published.
    InterruptedSave {
        /// Iteration of the interrupted save.
        iteration: u64,
        /// The iteration that is loaded; the same if the checkpoint was already published.
        loaded: u64,
    },
    /// There are checkpoints newer than the latest, from a run that went back to an earlier
    /// iteration.
    NewerIgnored {
        /// The iteration that the pointer names.
        latest: u64,
        /// Iterations of the newer checkpoints.
        newer: Vec<u64>,
    },
    /// The checkpoint saved last is missing, and the pointer names another one that exists.
    LastSaveRemoved {
        /// The iteration saved last.
        saved: u64,
        /// The iteration that the pointer names.
        pointer: u64,
    },
    /// Damage that [`LoadRequest::fallback`] tolerates.
    Fault(RootFault),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InterruptedSave { iteration, loaded } if iteration == loaded => {
                write!(f, "the save of iteration {iteration} was interrupted after its checkpoint was complete")
            }
            Self::InterruptedSave { iteration, loaded } => {
                write!(f, "the save of iteration {iteration} was interrupted; iteration {loaded} is the latest")
            }
            Self::NewerIgnored { latest, newer } => {
                write!(f, "{LATEST_FILE} names iteration {latest}; newer ones exist and are not used: {newer:?}")
            }
            Self::LastSaveRemoved { saved, pointer } => {
                write!(f, "iteration {saved}, saved last, is missing; {LATEST_FILE} names iteration {pointer}")
            }
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

/// The anomalies found while resolving a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadReport {
    /// Damaged checkpoints that were skipped, newest first.
    pub skipped: Vec<SkippedCheckpoint>,
    /// Everything else.
    pub notices: Vec<Notice>,
}

impl LoadReport {
    /// True if there is nothing to report.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.skipped.is_empty() && self.notices.is_empty()
    }
}

impl fmt::Display for LoadReport {
    /// One paragraph for each entry; nothing for an empty report.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let notices = self.notices.iter().map(Notice::to_string);
        let skipped = self.skipped.iter().map(|skipped| format!("{skipped}\n  skipped"));
        f.write_str(&notices.chain(skipped).collect::<Vec<_>>().join("\n"))
    }
}

/// A checkpoint to continue from.
#[derive(Debug)]
pub struct Resolved {
    /// The checkpoint, verified.
    pub checkpoint: Checkpoint,
    /// Report for the user.
    pub report: LoadReport,
}

/// The result of [`CheckpointStore::resolve`].
#[derive(Debug)]
pub enum Resolution {
    /// Continue from this.
    Found(Box<Resolved>),
    /// No checkpoint was ever published here.
    NothingFound {
        /// Folder that was searched.
        searched: PathBuf,
    },
}

/// Checkpoint to load according to all files of a root.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    target: Target,
    fault: Option<RootFault>,
    notices: Vec<Notice>,
}

#[derive(Debug, PartialEq, Eq)]
enum Target {
    /// No checkpoint was ever published.
    Nothing,
    /// This one, which the journal confirms or which exists; otherwise one before it.
    Iteration(u64),
    /// The newest intact one; `named` is an iteration that only the pointer knows of.
    Newest { named: Option<u64> },
}

impl CheckpointStore {
    /// Finds, verifies and opens the checkpoint to continue from. May be called while a writer is
    /// at work.
    ///
    /// If the store is a single folder, that one is loaded or an error is returned, with and
    /// without [`LoadRequest::fallback`].
    ///
    /// # Errors
    /// If the requested checkpoint is missing or damaged; if, without [`LoadRequest::fallback`],
    /// the latest is damaged or unknown; if there are checkpoints, but none that may be used is
    /// intact; or if the disk reports an error.
    pub fn resolve(&self, request: &LoadRequest) -> Result<Resolution, CheckpointError> {
        self.resolve_with(request, &Verifier::ALONE)
    }

    /// As [`resolve`](Self::resolve), verifying with the ranks of `verifier`.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve), and when ranks cannot communicate.
    pub fn resolve_with(&self, request: &LoadRequest, verifier: &Verifier<'_>) -> Result<Resolution, CheckpointError> {
        /// Attempts; a writer changes one checkpoint in less time than that.
        const ATTEMPTS: usize = 50;
        const PAUSE: Duration = Duration::from_millis(5);
        let root = match &self.place {
            Place::Root(root) => root,
            Place::Folder(folder) => return self.resolve_folder(folder, request, verifier),
        };
        let mut state = RootState::read(root)?;
        for _ in 0..ATTEMPTS {
            let outcome = self.resolve_root(root, &state, request, verifier);
            if matches!(&outcome, Ok(Resolution::Found(found)) if found.report.is_empty()) {
                return outcome;
            }
            // The fault may be a writer's work in progress. If nothing has changed in the meantime,
            // the fault is real.
            let now = RootState::read(root)?;
            if now == state {
                return outcome;
            }
            state = now;
            std::thread::sleep(PAUSE);
        }
        self.resolve_root(root, &state, request, verifier)
    }

    fn resolve_folder(
        &self,
        folder: &Path,
        request: &LoadRequest,
        verifier: &Verifier<'_>,
    ) -> Result<Resolution, CheckpointError> {
        let found = match verifier.verify(folder, request.verification)? {
            Ok(found) => found,
            Err(damage) => {
                let iteration = iteration_of(folder);
                // Other checkpoints may be in the same root; errors in reading them are ignored,
                // because the user did not ask for them.
                let state = iteration.and_then(|_| RootState::read(parent_of(folder)).ok());
                let entries = state.map(|state| state.entries).unwrap_or_default();
                let before = iteration.map(|iteration| descending_before(&entries, iteration)).unwrap_or_default();
                let checkpoint = SkippedCheckpoint { path: folder.to_owned(), iteration, damage };
                return Err(damaged(checkpoint, first_intact(&before, &entries, verifier)?));
            }
        };
        match request.ckpt_step {
            Some(step) if step != found.iteration() => Err(self.step_not_found(step, vec![found.iteration()])),
            _ => Ok(Resolution::found(found, LoadReport::default())),
        }
    }

    fn resolve_root(
        &self,
        root: &Path,
        state: &RootState,
        request: &LoadRequest,
        verifier: &Verifier<'_>,
    ) -> Result<Resolution, CheckpointError> {
        if let Some(step) = request.ckpt_step {
            let available = || state.entries.keys().copied().collect();
            let entry = state.entries.get(&step).ok_or_else(|| self.step_not_found(step, available()))?;
            return match verifier.verify(&entry.path, request.verification)? {
                Ok(found) => Ok(Resolution::found(found, LoadReport::default())),
                Err(damage) => {
                    let checkpoint = SkippedCheckpoint { path: entry.path.clone(), iteration: Some(step), damage };
                    let before = descending_before(&state.entries, step);
                    Err(damaged(checkpoint, first_intact(&before, &state.entries, verifier)?))
                }
            };
        }
        let Plan { target, fault, notices } = plan(state);
        let candidates = match target {
            Target::Nothing => {
                return Ok(Resolution::NothingFound { searched: root.to_owned() });
            }
            Target::Iteration(iteration) => [vec![iteration], descending_before(&state.entries, iteration)].concat(),
            Target::Newest { named } => named.into_iter().chain(state.entries.keys().rev().copied()).collect(),
        };
        let mut report = LoadReport { skipped: Vec::new(), notices };
        if let Some(fault) = fault {
            if !request.fallback {
                let intact = first_intact(&candidates, &state.entries, verifier)?;
                return Err(CheckpointError::Root { root: root.to_owned(), fault, intact });
            }
            report.notices.push(Notice::Fault(fault));
        }
        for (index, &iteration) in candidates.iter().enumerate() {
            let folder = || root.join(iteration_folder_name(iteration));
            let path = state.entries.get(&iteration).map_or_else(folder, |entry| entry.path.clone());
            match verifier.verify(&path, request.verification)? {
                Ok(found) => return Ok(Resolution::found(found, report)),
                Err(damage) => {
                    let skipped = SkippedCheckpoint { path, iteration: Some(iteration), damage };
                    if !request.fallback {
                        let intact = first_intact(&candidates[index + 1..], &state.entries, verifier)?;
                        return Err(damaged(skipped, intact));
                    }
                    report.skipped.push(skipped);
                }
            }
        }
        let newer = candidates.first().map_or_else(Vec::new, |&first| newer_than(&state.entries, first));
        Err(CheckpointError::NothingIntact { root: root.to_owned(), skipped: report.skipped, newer })
    }
}

impl Resolution {
    fn found(checkpoint: Checkpoint, report: LoadReport) -> Self {
        Self::Found(Box::new(Resolved { checkpoint, report }))
    }
}

fn damaged(checkpoint: SkippedCheckpoint, intact: Option<u64>) -> CheckpointError {
    CheckpointError::Damaged(Box::new(DamagedCheckpoint { checkpoint, intact }))
}

fn descending_before(entries: &BTreeMap<u64, RootEntry>, iteration: u64) -> Vec<u64> {
    entries.range(..iteration).rev().map(|(&iteration, _)| iteration).collect()
}

fn newer_than(entries: &BTreeMap<u64, RootEntry>, iteration: u64) -> Vec<u64> {
    entries.keys().copied().filter(|&other| other > iteration).collect()
}

/// The first of `candidates` whose every byte is verified, to offer it to the user.
fn first_intact(
    candidates: &[u64],
    entries: &BTreeMap<u64, RootEntry>,
    verifier: &Verifier<'_>,
) -> Result<Option<u64>, CheckpointError> {
    for iteration in candidates {
        if let Some(entry) = entries.get(iteration)
            && verifier.verify(&entry.path, Verification::Contents)?.is_ok()
        {
            return Ok(Some(*iteration));
        }
    }
    Ok(None)
}

/// Decides from the pointer, the journal and the folders.
fn plan(state: &RootState) -> Plan {
    let mut plan = match &state.journal {
        JournalState::Valid(journal) => plan_with_journal(state, journal),
        JournalState::Missing => plan_without_journal(state, None),
        JournalState::Damaged(reason) => {
            plan_without_journal(state, Some(RootFault::JournalDamaged { reason: reason.clone() }))
        }
    };
    if let (Target::Iteration(latest), None) = (&plan.target, &plan.fault) {
        let newer = newer_than(&state.entries, *latest);
        if !newer.is_empty() {
            plan.notices.push(Notice::NewerIgnored { latest: *latest, newer });
        }
    }
    plan
}

/// The pointer alone decides, as in a folder that another program wrote.
fn plan_without_journal(state: &RootState, journal_fault: Option<RootFault>) -> Plan {
    let newest = Target::Newest { named: None };
    let (target, fault) = match &state.pointer {
        Pointer::Iteration(named) if state.entries.contains_key(named) => (Target::Iteration(*named), None),
        Pointer::Iteration(named) => (Target::Newest { named: Some(*named) }, None),
        Pointer::Garbage(text) => (newest, Some(RootFault::PointerGarbage { text: text.clone() })),
        Pointer::Missing if state.entries.is_empty() && journal_fault.is_none() => (Target::Nothing, None),
        Pointer::Missing => (newest, Some(RootFault::PointerMissing)),
    };
    Plan { target, fault: journal_fault.or(fault), notices: Vec::new() }
}

fn plan_with_journal(state: &RootState, journal: &Journal) -> Plan {
    let named = match &state.pointer {
        Pointer::Iteration(named) => Some(*named),
        Pointer::Missing | Pointer::Garbage(_) => None,
    };
    // The values of an undamaged pointer, and the iteration to load for each.
    let (saved, allowed, best) = match journal {
        Journal::Saved { iteration } => (*iteration, [Some(*iteration); 2], Some(*iteration)),
        Journal::Saving { iteration, metadata_checksum, previous } => {
            // The pointer moves only after the checkpoint was published. Before that, the checksum
            // tells the new checkpoint from an older one of the same iteration.
            let published = named == Some(*iteration) || is_published(state, *iteration, *metadata_checksum);
            let best = if published { Some(*iteration) } else { *previous };
            (*iteration, [Some(*iteration), *previous], best)
        }
    };
    let to_best = best.map_or(Target::Newest { named: None }, Target::Iteration);
    let is_there = |iteration: u64| state.entries.contains_key(&iteration);
    let (target, fault, notices) = match (&state.pointer, named) {
        (Pointer::Garbage(text), _) => (to_best, Some(RootFault::PointerGarbage { text: text.clone() }), Vec::new()),
        (_, named) if allowed.contains(&named) => match best {
            None if state.entries.is_empty() => (Target::Nothing, None, Vec::new()),
            None => (to_best, Some(RootFault::PointerMissing), Vec::new()),
            Some(loaded) => {
                let interrupted = matches!(journal, Journal::Saving { .. });
                let notice = interrupted.then_some(Notice::InterruptedSave { iteration: saved, loaded });
                (to_best, None, notice.into_iter().collect())
            }
        },
        (_, None) => (to_best, Some(RootFault::PointerMissing), Vec::new()),
        (_, Some(pointer)) if is_there(pointer) && !best.is_some_and(is_there) => {
            (Target::Iteration(pointer), None, vec![Notice::LastSaveRemoved { saved, pointer }])
        }
        (_, Some(pointer)) => {
            let saved = best.unwrap_or(saved);
            (to_best, Some(RootFault::PointerMismatch { pointer, saved }), Vec::new())
        }
    };
    Plan { target, fault, notices }
}

/// True if the folder of `iteration` is the checkpoint whose metadata has this checksum.
fn is_published(state: &RootState, iteration: u64, checksum: Checksum) -> bool {
    /// Enough for the beginning of the file, which contains the checksum.
    const OPENING_BYTES: u64 = 256;
    let Some(entry) = state.entries.get(&iteration) else { return false };
    let mut opening = Vec::new();
    let file = untrusted_io::open(&entry.path.join(METADATA_FILE));
    let read = file.and_then(|(file, _)| file.take(OPENING_BYTES).read_to_end(&mut opening));
    read.is_ok() && stated_checksum(&opening) == Ok(checksum)
}
