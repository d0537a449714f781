//! Model at the start of a run, even if the run resumes from a later checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use bridge_dist::mesh::ProcessGroups;
use burn::tensor::Tensor;

use super::base::{AdapterBase, open_together};
use super::foreign::{import_to, root_of};
use super::restore::{begin, load_from, restore};
use super::start::Start;
use crate::checkpoint::{Checkpoint, CheckpointStore, LoadRequest, Resolution};
use crate::config::RunConfig;
use crate::model::{ModelChunk, Replacement};
use crate::train::data::registry::WeightFormat;
use crate::train::error::CommonError;
use crate::train::ranks::agreement;
use crate::train::resume::error::ResumeError;
use crate::train::step::training_run::TrainingRun;

/// The folder of an imported teacher in that of the run's logs.
const TEACHER_FOLDER: &str = "imported-teacher";

/// Restores a run from `start`, if there is one, and makes the model that its objective compares
/// with, if it has one, whose checkpoint is returned. All ranks call this together.
pub(in crate::train) fn restore_all(
    run: &mut TrainingRun,
    start: Option<&Start>,
) -> Result<Option<AdapterBase>, ResumeError> {
    let Some(start) = start else { return Ok(None) };
    let compares = run.state.config.dpo.is_some();
    let begun = if compares { beginnings(&run.training.chunks) } else { BTreeMap::new() };
    restore(run, start)?;
    let mut compared = None;
    if compares {
        let (chunks, base) = reference(run, start, &begun)?;
        run.training.reference = Some(chunks);
        compared = Some(base);
    }
    start.is_loaded();
    Ok(compared)
}

/// The values that an adapter's parameters begin with, before a checkpoint is loaded.
fn beginnings(chunks: &[Box<dyn ModelChunk>]) -> BTreeMap<String, Tensor<1>> {
    let mut values = BTreeMap::new();
    for chunk in chunks {
        let inference = chunk.inference();
        let of_adapter = |name: &str| chunk.parameters().iter().any(|info| info.of_adapter && info.name == name);
        inference.visit_parameters(&mut |name, value| {
            if of_adapter(name) {
                values.insert(name.to_owned(), value);
            }
        });
    }
    values
}

/// The model of `start` or of its base, with an adapter that has no effect yet. Frozen parameters
/// share the memory of the run's model. All ranks call this together, after the run has loaded
/// `start`.
///
/// # Errors
/// If there is no such checkpoint, or it is not of this model.
fn reference(
    run: &TrainingRun,
    start: &Start,
    beginnings: &BTreeMap<String, Tensor<1>>,
) -> Result<(Vec<Box<dyn ModelChunk>>, AdapterBase), ResumeError> {
    let opened = if start.is_pretrained { None } else { Some(open_pretrained(run, start)?) };
    let checkpoint = opened.as_ref().unwrap_or(&start.checkpoint);
    let mut chunks: Vec<_> = run.training.chunks.iter().map(|chunk| chunk.inference()).collect();
    let loaded = chunks.iter_mut().try_for_each(|chunk| {
        load_from(chunk.as_mut(), &|info| (info.trainable && !info.of_adapter).then_some(checkpoint))?;
        chunk.update_parameters(&mut |name, old| match beginnings.get(name) {
            Some(value) => Replacement::Value(value.clone()),
            None => old.into(),
        });
        match &run.training.adapter {
            Some(adapter) => begin(chunk.as_mut(), adapter.as_ref(), checkpoint),
            None => Ok(()),
        }
    });
    agreement::agree(&run.groups, "loading the reference", loaded.map_err(ResumeError::from))?;
    Ok((chunks, AdapterBase::from_checkpoint(checkpoint)))
}

/// Opens the newest checkpoint of `checkpoint.pretrained_checkpoint`.
fn open_pretrained(run: &TrainingRun, start: &Start) -> Result<Checkpoint, ResumeError> {
    let key = "checkpoint.pretrained_checkpoint";
    let missing = || CommonError::Internal(format!("{key} is not there"));
    open_newest(start.pretrained_root.as_deref().ok_or_else(missing)?, key, &run.groups)
}

/// Opens the teacher of a run; weights of another program become a checkpoint first.
pub(in crate::train) fn find_teacher(
    config: &RunConfig,
    path: &Path,
    formats: &[WeightFormat],
    groups: &ProcessGroups,
) -> Result<Checkpoint, ResumeError> {
    let imported = config.logger.log_dir.join(TEACHER_FOLDER);
    let made = if agreement::is_rank_zero(groups) { import_to(path, formats, &imported).map(drop) } else { Ok(()) };
    agreement::agree(groups, "importing the teacher", made)?;
    open_newest(&root_of(path, formats, &imported), "distillation.teacher", groups)
}

/// Opens the newest checkpoint of a folder. All ranks call this together.
fn open_newest(root: &Path, key: &'static str, groups: &ProcessGroups) -> Result<Checkpoint, ResumeError> {
    open_together(root, "looking for a model", groups, |verifier| {
        match CheckpointStore::open(root)?.resolve_with(&LoadRequest::default(), verifier)? {
            Resolution::Found(found) => Ok(found.checkpoint.with_evaluated_weights()?),
            Resolution::NothingFound { searched } => Err(ResumeError::NoCheckpoint { key, path: searched }),
        }
    })
}
