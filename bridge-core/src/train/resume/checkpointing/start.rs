//! Checkpoint that a run starts from: the one that the recipe names, the run's own, or a temporary
//! save that is newer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_dist::mesh::ProcessGroups;

use super::foreign::{import, pretrained_root};
use super::temporary::{Newer, find_newer};
use crate::checkpoint::{
    Checkpoint, CheckpointError, CheckpointStore, LoadRequest, NamedManager, Resolution, TrainState, Verification,
    Verifier, verify_with_all_ranks,
};
use crate::config::{ConfigError, ErrorKind, OnDamaged, RunConfig};
use crate::train::data::registry::WeightFormat;
use crate::train::ranks::agreement;
use crate::train::resume::error::ResumeError;

/// Checkpoint that a run starts from.
pub(in crate::train) struct Start {
    /// The checkpoint, verified.
    pub(in crate::train) checkpoint: Arc<Checkpoint>,
    /// True if only the weights are loaded and the run starts at step 0.
    pub(in crate::train) weights_only: bool,
    /// True if it is `checkpoint.pretrained_checkpoint`.
    pub(in crate::train) is_pretrained: bool,
    /// True if it is a temporary save, which is deleted when the run ends well.
    pub(in crate::train) is_non_persistent: bool,
    /// Root of `checkpoint.pretrained_checkpoint`, if it is set.
    pub(super) pretrained_root: Option<PathBuf>,
    /// Message for the user; empty on all ranks but the first.
    pub(in crate::train) message: String,
    /// A folder that is only there until the checkpoint is loaded, on the rank that deletes it.
    pub(super) assembled: Option<PathBuf>,
}

impl Start {
    /// The counters the run starts from.
    pub(in crate::train) fn train_state(&self) -> Result<TrainState, ResumeError> {
        if self.weights_only { Ok(TrainState::default()) } else { Ok(self.checkpoint.train_state()?) }
    }

    /// All ranks have loaded the checkpoint.
    pub(in crate::train) fn is_loaded(&self) {
        if let Some(folder) = &self.assembled {
            // Leftover files are removed when the next checkpoint is assembled.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// Finds the checkpoint that the run starts from: the newest intact one among the result of
/// [`find_persistent`] and the temporary saves of this run. All ranks call this together.
pub(in crate::train) fn find_start(
    config: &RunConfig,
    formats: &[WeightFormat],
    groups: &ProcessGroups,
    manager: Option<&NamedManager>,
) -> Result<Option<Start>, ResumeError> {
    let fetched = if agreement::is_rank_zero(groups) { fetch(config, manager) } else { Ok(String::new()) };
    let fetched = agreement::agree(groups, "fetching a checkpoint", fetched)?;
    let start = find_here(config, formats, groups)?;
    Ok(start.map(|start| Start { message: format!("{fetched}{}", start.message), ..start }))
}

/// Brings a newer checkpoint that a manager keeps to the run's folder. Returns notes for the user.
fn fetch(config: &RunConfig, manager: Option<&NamedManager>) -> Result<String, ResumeError> {
    let settings = &config.checkpoint;
    let (Some(manager), Some(save)) = (manager, &settings.save) else { return Ok(String::new()) };
    if settings.load.as_ref().is_some_and(|load| load != save) {
        return Ok(String::new());
    }
    let notes = manager.fetch(save, settings.ckpt_step.map(|step| step as u64))?;
    Ok(notes.into_iter().map(|note| format!("{note}\n")).collect())
}

/// [`find_start`] among the checkpoints in folders.
fn find_here(
    config: &RunConfig,
    formats: &[WeightFormat],
    groups: &ProcessGroups,
) -> Result<Option<Start>, ResumeError> {
    let persistent = find_persistent(config, formats, groups);
    let above = match &persistent {
        Ok(Some(start)) if !start.is_pretrained => Some(start.checkpoint.iteration()),
        Ok(_) => None,
        Err(error) => {
            let is_damage = |error: &CheckpointError| matches!(error, CheckpointError::NothingIntact { .. });
            let is_damage = matches!(error, ResumeError::Checkpoint(error) if is_damage(error));
            match agreement::any(groups.world(), is_damage) {
                Ok(true) => None,
                Ok(false) | Err(_) => return persistent,
            }
        }
    };
    let (newer, notes) = find_newer(config, groups, above)?;
    let notes: String = notes.into_iter().map(|note| format!("{note}\n")).collect();
    match (newer, persistent) {
        (Some(Newer { checkpoint, assembled, message }), persistent) => {
            let damage = persistent.err().filter(|_| agreement::is_rank_zero(groups));
            let damage = damage.map(|error| format!("{error}\n")).unwrap_or_default();
            let message =
                if agreement::is_rank_zero(groups) { format!("{damage}{notes}{message}") } else { String::new() };
            let pretrained_root = pretrained_root(config, formats);
            Ok(Some(Start {
                checkpoint: checkpoint.into(),
                weights_only: false,
                is_pretrained: false,
                is_non_persistent: true,
                pretrained_root,
                message,
                assembled,
            }))
        }
        (None, Ok(Some(start))) => Ok(Some(Start { message: format!("{notes}{}", start.message), ..start })),
        (None, persistent) => persistent,
    }
}

/// Finds the checkpoint that `checkpoint.load` (by default `checkpoint.save`), `ckpt_step` and
/// `pretrained_checkpoint` select. All ranks call this together: the first rank searches, all ranks
/// verify their shares of the candidates, and the other ranks open the result.
fn find_persistent(
    config: &RunConfig,
    formats: &[WeightFormat],
    groups: &ProcessGroups,
) -> Result<Option<Start>, ResumeError> {
    let looked = verify_with_all_ranks(groups.world(), |verifier| look(config, formats, verifier))?;
    let found = agreement::agree(groups, "looking for a checkpoint", looked.unwrap_or(Ok(None)))?;
    if groups.world().size() == 1 {
        return Ok(found);
    }
    let mut shared = [NONE, 0];
    if let Some(start) = &found {
        let place = if start.is_pretrained { PRETRAINED } else { LOADED };
        shared = [place, start.checkpoint.iteration() as i64];
    }
    groups.world().broadcast((&mut shared).into(), 0)?;
    let opened = if agreement::is_rank_zero(groups) { Ok(found) } else { open_found(config, formats, shared) };
    agreement::agree(groups, "opening a checkpoint", opened)
}

/// Code for the place at which the first rank found a checkpoint.
const NONE: i64 = 0;
const LOADED: i64 = 1;
const PRETRAINED: i64 = 2;

/// Opens the checkpoint that the first rank has verified.
fn open_found(
    config: &RunConfig,
    formats: &[WeightFormat],
    [place, iteration]: [i64; 2],
) -> Result<Option<Start>, ResumeError> {
    let settings = &config.checkpoint;
    let is_pretrained = place == PRETRAINED;
    let root = match place {
        NONE => return Ok(None),
        PRETRAINED => pretrained_root(config, formats),
        _ => load_root(config).map(Path::to_owned),
    };
    let message = "rank 0 found a checkpoint in its recipe's folder, and the recipe of this rank has no such folder: \
                   start all ranks with the same recipe";
    let root = root.ok_or_else(|| ConfigError::new(ErrorKind::Missing, "checkpoint.load", message))?;
    let checkpoint = CheckpointStore::open(root)?.open_iteration(iteration as u64, Verification::Sizes)?;
    let weights_only = is_pretrained || settings.finetune;
    let pretrained_root = pretrained_root(config, formats);
    Ok(Some(Start {
        checkpoint: begun_from(checkpoint, weights_only)?,
        weights_only,
        is_pretrained,
        is_non_persistent: false,
        pretrained_root,
        message: String::new(),
        assembled: None,
    }))
}

/// A checkpoint that a run continues, or takes weights of: then those that were evaluated.
fn begun_from(checkpoint: Checkpoint, weights_only: bool) -> Result<Arc<Checkpoint>, ResumeError> {
    Ok(Arc::new(if weights_only { checkpoint.with_evaluated_weights()? } else { checkpoint }))
}

fn load_root(config: &RunConfig) -> Option<&Path> {
    config.checkpoint.load.as_deref().or(config.checkpoint.save.as_deref())
}

fn look(config: &RunConfig, formats: &[WeightFormat], verifier: &Verifier<'_>) -> Result<Option<Start>, ResumeError> {
    let settings = &config.checkpoint;
    let request = LoadRequest {
        ckpt_step: settings.ckpt_step.map(|step| step as u64),
        fallback: settings.on_damaged == OnDamaged::Fallback,
        ..LoadRequest::default()
    };
    let load = load_root(config);
    if let Some(load) = load
        && let Resolution::Found(found) = CheckpointStore::open(load)?.resolve_with(&request, verifier)?
    {
        let mut message = String::new();
        if !found.report.is_empty() {
            message = format!("{}\n", found.report);
        }
        message += &format!(
            "{} from {} (iteration {})",
            if settings.finetune { "fine-tuning" } else { "resuming" },
            found.checkpoint.path().display(),
            found.checkpoint.iteration()
        );
        // An adapter goes on with its base, and preferences with their reference.
        if config.peft.is_some() || config.dpo.is_some() {
            message.extend(import(config, formats)?.map(|imported| format!("\n{imported}")));
        }
        return Ok(Some(Start {
            checkpoint: begun_from(found.checkpoint, settings.finetune)?,
            weights_only: settings.finetune,
            is_pretrained: false,
            is_non_persistent: false,
            pretrained_root: pretrained_root(config, formats),
            message,
            assembled: None,
        }));
    }
    if let Some(pretrained) = pretrained_root(config, formats) {
        let imported = import(config, formats)?;
        let request = LoadRequest { ckpt_step: None, ..request };
        return match CheckpointStore::open(&pretrained)?.resolve_with(&request, verifier)? {
            Resolution::Found(found) => {
                let message = format!("starting from the weights in {}", found.checkpoint.path().display());
                let message = imported.into_iter().chain([message]).collect::<Vec<_>>().join("\n");
                Ok(Some(Start {
                    checkpoint: begun_from(found.checkpoint, true)?,
                    weights_only: true,
                    is_pretrained: true,
                    is_non_persistent: false,
                    pretrained_root: Some(pretrained),
                    message,
                    assembled: None,
                }))
            }
            Resolution::NothingFound { searched } => {
                Err(ResumeError::NoCheckpoint { key: "checkpoint.pretrained_checkpoint", path: searched })
            }
        };
    }
    match (&settings.load, load) {
        (_, Some(path)) if settings.exit_on_missing_checkpoint => {
            Err(ResumeError::NoCheckpoint { key: "checkpoint.load", path: path.to_owned() })
        }
        (Some(path), _) if settings.ckpt_step.is_some() => {
            Err(ResumeError::NoCheckpoint { key: "checkpoint.load", path: path.clone() })
        }
        _ => Ok(None),
    }
}
