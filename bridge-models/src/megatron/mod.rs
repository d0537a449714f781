//! Checkpoints of Megatron-LM and Megatron Bridge (`ckpt_format = "torch_dist"`) as weights to
//! start from. Optimizer states stay behind.

mod archive;
mod folder;
mod names;
mod pickle;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_core::checkpoint::{
    CheckpointError, DType, Element, RunFiles, ShardTensor, Snapshot, TensorGroup, TensorStream, TrainState,
};
use bridge_core::config::{RawConfig, TransformerConfig};
use bridge_core::train::WeightFormat;
use bridge_data::untrusted_io;

use folder::{Folder, METADATA};

use crate::fingerprint::fingerprint_of;

/// The recipe that Megatron Bridge saves with each checkpoint.
const RECIPE: &str = "run_config.yaml";
/// The stored word embedding, whose rows are the padded vocabulary.
const EMBEDDING: &str = "embedding.word_embeddings.weight";
/// The pointer to the newest checkpoint of a run.
const TRACKER: &str = "latest_checkpointed_iteration.txt";

/// Why a folder cannot be imported.
#[derive(thiserror::Error)]
pub enum MegatronError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// A file is malformed.
    #[error("{path}: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Cause of the error.
        reason: String,
    },
    /// No file describes the model.
    #[error(
        "{path}: there is no run_config.yaml, so nothing says which model the weights are of: `bridge convert import {path} OUTPUT --recipe \
         RECIPE` takes that from the [model] of a recipe"
    )]
    NoRecipe {
        /// The folder.
        path: PathBuf,
    },
    /// The recipe cannot be read.
    #[error("{reason}")]
    Recipe {
        /// The file.
        path: PathBuf,
        /// Cause of the error.
        reason: String,
    },
}

/// Checkpoints of Megatron as weights that a run may start from.
pub(crate) const MEGATRON: WeightFormat =
    WeightFormat { fingerprint, open, remark: |path| find(path).and_then(|folder| left_out(&folder, None)) };

type Error = Box<dyn std::error::Error + Send + Sync>;

fn open(path: &Path) -> Result<Snapshot, Error> {
    Ok(snapshot(path, None)?)
}

/// The folder of one checkpoint: `path` itself, or the newest in it. `None` if `path` is not such a
/// folder.
pub fn find(path: &Path) -> Option<PathBuf> {
    let is_one = |folder: &Path| folder.join(METADATA).is_file() && has_parts(folder);
    if is_one(path) {
        return Some(path.to_owned());
    }
    let newest = untrusted_io::read_text(&path.join(TRACKER), 64).ok()?;
    let newest = match newest.trim() {
        "release" => "release".to_owned(),
        step => format!("iter_{:07}", step.parse::<u64>().ok()?),
    };
    Some(path.join(newest)).filter(|folder| is_one(folder))
}

fn has_parts(folder: &Path) -> bool {
    let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| entry.path().extension().is_some_and(|extension| extension == "distcp"))
}

/// The place, and name, size and time of the last change of each file.
fn fingerprint(path: &Path) -> Option<String> {
    let folder = find(path)?;
    let files = std::fs::read_dir(&folder).ok()?.flatten().map(|entry| entry.path());
    fingerprint_of(files.filter(|path| path.is_file()).collect())
}

/// A parameter on its way to a checkpoint.
struct Parameter {
    folder: Arc<Folder>,
    tensor: String,
    places: Vec<usize>,
    shape: Vec<usize>,
}

impl TensorStream for Parameter {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn write(&self, write: &mut dyn FnMut(&[u8]) -> Result<(), CheckpointError>) -> Result<(), CheckpointError> {
        let values = self.folder.values(&self.tensor, &self.places);
        let values = values.map_err(|error| CheckpointError::InvalidTensor { reason: error.to_string() })?;
        write(f32::as_bytes(&values))
    }
}

/// The weights of a folder as a checkpoint to be written: its parameters in float32, of which one
/// at a time is in memory when they are written, and a recipe with the model that they are of: that
/// of `recipe`, or of the folder's `run_config.yaml`.
///
/// # Errors
/// If a file cannot be read or is damaged, or nothing says which model it is.
pub fn snapshot(path: &Path, recipe: Option<&Path>) -> Result<Snapshot, MegatronError> {
    let path = find(path).unwrap_or_else(|| path.to_owned());
    let folder = Arc::new(Folder::open(&path)?);
    let mut raw = model_of(&path, recipe)?.0;
    if let Some(embedding) = folder.tensors().get(EMBEDDING) {
        let rows = embedding.shape.first().copied().unwrap_or_default();
        fit_vocabulary(&mut raw, rows).map_err(|reason| MegatronError::Recipe { path: path.join(RECIPE), reason })?;
    }
    let mut tensors = BTreeMap::new();
    for (name, tensor) in folder.tensors().iter().filter(|(name, _)| names::is_of_model(name)) {
        let reason = || format!("{name} has the shape {:?}, which has no room for its layers or experts", tensor.shape);
        let damaged = || MegatronError::Damaged { path: path.join(METADATA), reason: reason() };
        for part in names::parts(name, &tensor.shape).ok_or_else(damaged)? {
            let parameter = Parameter {
                folder: Arc::clone(&folder),
                tensor: name.clone(),
                shape: tensor.shape[part.places.len()..].to_vec(),
                places: part.places,
            };
            let streamed = ShardTensor::streamed(&part.parameter, Arc::new(parameter));
            if tensors.insert(part.parameter.clone(), streamed).is_some() {
                let reason = format!("two tensors have the parameter {}", part.parameter);
                return Err(MegatronError::Damaged { path: path.join(METADATA), reason });
            }
        }
    }
    let mut model = RawConfig::default();
    model.model = raw.model.clone();
    let run = RunFiles { train_state: TrainState::default(), run_config: model.to_toml(), ..RunFiles::default() };
    Ok(Snapshot { run, groups: vec![TensorGroup { name: "model".into(), tensors: tensors.into_values().collect() }] })
}

/// One line about the settings of the saved configuration that an import does not take; `None` if
/// it takes all.
pub fn left_out(folder: &Path, recipe: Option<&Path>) -> Option<String> {
    let (raw, mut left) = model_of(folder, recipe).ok()?;
    left.extend(raw.remarks().iter().cloned());
    let head = "taken of the saved configuration: what decides the function of the model; not taken:";
    (!left.is_empty()).then(|| format!("{head} {}", left.join(", ")))
}

/// Makes the vocabulary that the configuration states agree with the rows of the stored embedding,
/// which tensor-parallel ranks may have padded.
fn fit_vocabulary(raw: &mut RawConfig, rows: usize) -> Result<(), String> {
    let stated = raw.model.vocab_size.unwrap_or(rows);
    if stated > rows {
        return Err(format!("model.vocab_size: expected at most {rows}, the rows of {EMBEDDING}, found {stated}"));
    }
    let model = &mut raw.model;
    model.vocab_size = Some(stated);
    model.should_pad_vocab = stated < rows;
    let divisor = model.make_vocab_size_divisible_by.max(1);
    if !model.should_pad_vocab {
        model.make_vocab_size_divisible_by = TransformerConfig::default().make_vocab_size_divisible_by;
    } else if stated.next_multiple_of(divisor) != rows {
        model.make_vocab_size_divisible_by = rows;
    }
    Ok(())
}

/// The recipe whose model the weights are of, and the settings of it that say nothing of the
/// model's function.
fn model_of(folder: &Path, recipe: Option<&Path>) -> Result<(RawConfig, Vec<String>), MegatronError> {
    let path = match recipe {
        Some(recipe) => recipe.to_owned(),
        None => folder.join(RECIPE),
    };
    if !path.exists() && recipe.is_none() {
        return Err(MegatronError::NoRecipe { path: folder.to_owned() });
    }
    let kinds = crate::registry().kinds();
    let read = RawConfig::model_from_file(&path, &kinds);
    read.map_err(|errors: bridge_core::config::ConfigErrors| MegatronError::Recipe { path, reason: errors.to_string() })
}

#[cfg(test)]
mod tests;
