//! The base of an adapter, which checkpoints of a run with `[peft]` name by a checksum.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::checkpoint::{Checkpoint, CheckpointStore, Checksum, LoadRequest, Resolution, Verification};
use crate::train::TrainError;

/// The key of [`AdapterBase`] in `train_state.json`.
const KEY: &str = "adapter_base";

/// What a checkpoint of an adapter says of its base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterBase {
    /// The folder of the base's checkpoint, where the run had it.
    pub path: PathBuf,
    /// The number of that.
    pub iteration: u64,
    /// Of its parameters' files.
    pub checksum: String,
}

impl AdapterBase {
    /// What `base` is named by.
    pub(super) fn of(base: &Checkpoint) -> Self {
        let metadata = base.metadata();
        let of_model = metadata.tensors.values().filter(|tensor| tensor.group == "model");
        let files: BTreeMap<&str, String> = of_model
            .flat_map(|tensor| &tensor.slices)
            .filter_map(|slice| Some((slice.file.as_str(), metadata.files.get(&slice.file)?.checksum.to_string())))
            .collect();
        let listed: String = files.iter().map(|(file, checksum)| format!("{file} {checksum}\n")).collect();
        let path = std::path::absolute(base.path()).unwrap_or_else(|_| base.path().to_owned());
        Self { path, iteration: base.iteration(), checksum: Checksum::of(listed.as_bytes()).to_string() }
    }

    /// What `checkpoint` says; `None` if it is one of a whole model.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn named_by(checkpoint: &Checkpoint) -> Result<Option<Self>, TrainError> {
        let value = checkpoint.train_state()?.extra.remove(KEY);
        value.map(serde_json::from_value).transpose().map_err(|error| TrainError::BadState {
            path: checkpoint.path().to_owned(),
            field: KEY.to_owned(),
            message: error.to_string(),
        })
    }

    /// Puts it into what a checkpoint says of its run.
    pub(super) fn put(&self, extra: &mut Map<String, Value>) {
        let Self { path, iteration, checksum } = self;
        extra.insert(KEY.to_owned(), json!({ "path": path, "iteration": iteration, "checksum": checksum }));
    }
}

/// Opens the base at `root`, which `checkpoint`, one of an adapter, must have been trained on. Of several checkpoints there, the one that it names is
/// taken.
///
/// # Errors
/// If there is no checkpoint, it is damaged, or it is another one.
pub fn open_base(root: &Path, checkpoint: &Checkpoint) -> Result<Checkpoint, TrainError> {
    let named = AdapterBase::named_by(checkpoint)?;
    let store = CheckpointStore::open(root)?;
    let named_one = named.as_ref().and_then(|named| store.open_iteration(named.iteration, Verification::Contents).ok());
    let base = match named_one {
        Some(base) => base,
        None => match store.resolve(&LoadRequest::default())? {
            Resolution::Found(found) => found.checkpoint,
            Resolution::NothingFound { searched } => {
                return Err(TrainError::NoCheckpoint { key: "checkpoint.pretrained_checkpoint", path: searched });
            }
        },
    };
    let found = AdapterBase::of(&base);
    let expected = named.map_or_else(|| "no adapter".to_owned(), |named| named.checksum);
    if expected == found.checksum {
        return Ok(base);
    }
    Err(TrainError::AnotherBase {
        checkpoint: checkpoint.path().to_owned(),
        base: base.path().to_owned(),
        expected,
        found: found.checksum,
    })
}
