//! The base of an adapter, which checkpoints of a run with `[peft]` name by a checksum.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bridge_dist::mesh::ProcessGroups;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::checkpoint::{
    Checkpoint, CheckpointStore, Checksum, LoadRequest, Resolution, Verification, Verifier, verify_with_all_ranks,
};
use crate::train::error::CommonError;
use crate::train::ranks::agreement;
use crate::train::resume::error::ResumeError;

/// The key of [`AdapterBase`] in `train_state.json`.
const KEY: &str = "adapter_base";

/// Reference of an adapter's checkpoint to its base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterBase {
    /// The folder of the base's checkpoint, where the run had it.
    pub path: PathBuf,
    /// The number of that.
    pub iteration: u64,
    /// Checksum of the parameters' files.
    pub checksum: String,
}

impl AdapterBase {
    /// Reference to `base`.
    pub(in crate::train) fn from_checkpoint(base: &Checkpoint) -> Self {
        let metadata = base.metadata();
        let of_model = metadata.tensors.values().filter(|tensor| tensor.group == "model");
        let files: BTreeMap<&str, String> = of_model
            .flat_map(|tensor| &tensor.slices)
            .filter_map(|slice| Some((slice.file.as_str(), metadata.files.get(&slice.file)?.checksum.to_string())))
            .collect();
        let listed: String = files.iter().map(|(file, checksum)| format!("{file} {checksum}\n")).collect();
        let path = std::path::absolute(base.path()).unwrap_or_else(|_| base.path().to_owned());
        Self { path, iteration: base.iteration(), checksum: Checksum::compute(listed.as_bytes()).to_string() }
    }

    /// Reference in `checkpoint`; `None` if it is a checkpoint of a whole model.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn named_by(checkpoint: &Checkpoint) -> Result<Option<Self>, ResumeError> {
        let value = checkpoint.train_state()?.extra.remove(KEY);
        let bad = |error: serde_json::Error| {
            let (path, field) = (checkpoint.path().to_owned(), KEY.to_owned());
            CommonError::BadState { path, field, message: error.to_string() }.into()
        };
        value.map(serde_json::from_value).transpose().map_err(bad)
    }

    /// Adds the base to a checkpoint's training state.
    pub(super) fn put(&self, extra: &mut Map<String, Value>) {
        let Self { path, iteration, checksum } = self;
        extra.insert(KEY.to_owned(), json!({ "path": path, "iteration": iteration, "checksum": checksum }));
    }
}

/// Opens the base at `root` that the adapter of `checkpoint` was trained on. If `root` has several
/// checkpoints, the one that `checkpoint` names is opened.
///
/// # Errors
/// If there is no checkpoint, it is damaged, or it is another one.
pub fn open_base(root: &Path, checkpoint: &Checkpoint) -> Result<Checkpoint, ResumeError> {
    find_base(root, checkpoint, &Verifier::ALONE)
}

/// [`open_base`] by all ranks, which call this together: the first rank searches, each rank
/// verifies its share.
pub(super) fn open_base_together(
    root: &Path,
    checkpoint: &Checkpoint,
    groups: &ProcessGroups,
) -> Result<Checkpoint, ResumeError> {
    open_together(root, "looking for the base of an adapter", groups, |verifier| find_base(root, checkpoint, verifier))
}

/// Opens the checkpoint of the store at `root` that the first rank finds, for the weights by which
/// its run evaluated the model. All ranks call this together, and each verifies its share.
pub(super) fn open_together(
    root: &Path,
    doing: &str,
    groups: &ProcessGroups,
    find: impl Fn(&Verifier<'_>) -> Result<Checkpoint, ResumeError>,
) -> Result<Checkpoint, ResumeError> {
    let looked = verify_with_all_ranks(groups.world(), find)?;
    let found = agreement::agree(groups, doing, looked.transpose())?;
    let mut iteration = [found.as_ref().map_or(0, |found| found.iteration() as i64)];
    groups.world().broadcast((&mut iteration).into(), 0)?;
    let opened = match found {
        Some(found) => Ok(found),
        None => CheckpointStore::open(root)
            .and_then(|store| store.open_iteration(iteration[0] as u64, Verification::Sizes)?.with_evaluated_weights())
            .map_err(ResumeError::from),
    };
    agreement::agree(groups, doing, opened)
}

fn find_base(root: &Path, checkpoint: &Checkpoint, verifier: &Verifier<'_>) -> Result<Checkpoint, ResumeError> {
    let named = AdapterBase::named_by(checkpoint)?;
    let store = CheckpointStore::open(root)?;
    let of_name = |named: &AdapterBase| LoadRequest { ckpt_step: Some(named.iteration), ..LoadRequest::default() };
    let named_one = named.as_ref().map(|named| store.resolve_with(&of_name(named), verifier));
    let base = match named_one {
        Some(Ok(Resolution::Found(found))) => found.checkpoint,
        None | Some(Ok(Resolution::NothingFound { .. }) | Err(_)) => {
            match store.resolve_with(&LoadRequest::default(), verifier)? {
                Resolution::Found(found) => found.checkpoint,
                Resolution::NothingFound { searched } => {
                    return Err(ResumeError::NoCheckpoint { key: "checkpoint.pretrained_checkpoint", path: searched });
                }
            }
        }
    };
    let base = base.with_evaluated_weights()?;
    let found = AdapterBase::from_checkpoint(&base);
    let expected = named.map_or_else(|| "no adapter".to_owned(), |named| named.checksum);
    if expected == found.checksum {
        return Ok(base);
    }
    Err(ResumeError::AnotherBase {
        checkpoint: checkpoint.path().to_owned(),
        base: base.path().to_owned(),
        expected,
        found: found.checksum,
    })
}
