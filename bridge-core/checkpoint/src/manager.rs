//! Copies of checkpoints in another place, such as an object store. Programs implement the trait
//! that stores them. A checkpoint exists once its manifest is stored, which comes last; incomplete
//! ones are ignored. The program chooses the place.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::checksum::unseal;
use super::error::CheckpointError;
use super::fsio::{create_folder_durably, parent_of, remove_all, rename_durably};
use super::journal::{Journal, write_journal, write_pointer};
use super::metadata::Metadata;
use super::names::{METADATA_FILE, STAGING_PREFIX, file_name_problem, iteration_folder_name};
use super::resolve::{LoadRequest, Resolution};
use super::retention::RetentionPolicy;
use super::store::CheckpointStore;
use super::verify::{Verification, verify_folder};

/// Error of a manager.
pub type ManagerError = Box<dyn Error + Send + Sync>;

/// Keeps checkpoints outside of a folder: in an object store or at another site. Only the first
/// rank calls its methods, one after the other, and from another thread if saves run in the
/// background. Names of files have `/` between folders.
pub trait CheckpointManager: Send + Sync {
    /// The iterations of the checkpoints that have been committed, in any order.
    ///
    /// # Errors
    /// If the place cannot be reached. A run does not begin then: it might begin anew, though there
    /// is a checkpoint.
    fn list(&self) -> Result<Vec<u64>, ManagerError>;

    /// Stores a file of a checkpoint that is not committed yet, in the place of one of that name.
    ///
    /// # Errors
    /// If it is not stored.
    fn put(&self, iteration: u64, name: &str, file: &Path) -> Result<(), ManagerError>;

    /// Stores the manifest, after which [`list`](Self::list) names the checkpoint, and all files of
    /// it can be fetched.
    ///
    /// # Errors
    /// If it is not stored. The checkpoint must then not be listed.
    fn commit(&self, iteration: u64, manifest: &[u8]) -> Result<(), ManagerError>;

    /// The manifest of a committed checkpoint.
    ///
    /// # Errors
    /// If it cannot be read.
    fn manifest(&self, iteration: u64) -> Result<Vec<u8>, ManagerError>;

    /// Writes a file of a committed checkpoint to `file`, which is not there yet; false if it is
    /// lost.
    ///
    /// # Errors
    /// If it cannot be fetched now.
    fn open(&self, iteration: u64, name: &str, file: &Path) -> Result<bool, ManagerError>;

    /// Deletes all files of a checkpoint, the manifest first. Does nothing if there is no
    /// checkpoint.
    ///
    /// # Errors
    /// If a file could not be deleted.
    fn delete(&self, iteration: u64) -> Result<(), ManagerError>;

    /// Deletes leftovers of interrupted saves: files of checkpoints without a manifest. Called
    /// before a run begins to save.
    ///
    /// # Errors
    /// If a file could not be deleted.
    fn clear_up(&self) -> Result<(), ManagerError> {
        Ok(())
    }
}

/// A manager under the name that recipes give it.
#[derive(Clone)]
pub struct NamedManager {
    /// `checkpoint.custom_manager_class`.
    pub name: String,
    /// Manager of this name.
    pub manager: Arc<dyn CheckpointManager>,
}

impl std::fmt::Debug for NamedManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NamedManager").field(&self.name).finish()
    }
}

impl NamedManager {
    fn failed(&self, doing: impl Into<String>) -> impl FnOnce(ManagerError) -> CheckpointError {
        let (manager, doing) = (self.name.clone(), doing.into());
        move |source| CheckpointError::Manager { manager, doing, source }
    }

    /// Deletes the files of unfinished earlier saves.
    pub(super) fn clear_up(&self) -> Result<(), CheckpointError> {
        self.manager.clear_up().map_err(self.failed("clear up"))
    }

    /// Stores a published checkpoint, its manifest last. One of the same iteration is deleted
    /// first, so that its manifest never refers to other files.
    pub(super) fn store(&self, folder: &Path, iteration: u64) -> Result<(), CheckpointError> {
        let path = folder.join(METADATA_FILE);
        let manifest = fs::read(&path).map_err(CheckpointError::io("read", &path))?;
        let of = |what: &str| format!("{what} iteration {iteration}");
        self.manager.delete(iteration).map_err(self.failed(of("replace")))?;
        for name in names(&manifest).ok_or_else(|| self.failed(of("read the manifest of"))("it is damaged".into()))? {
            let stored = self.manager.put(iteration, &name, &folder.join(&name));
            stored.map_err(self.failed(format!("store {name} of iteration {iteration}")))?;
        }
        self.manager.commit(iteration, &manifest).map_err(self.failed(of("commit")))
    }

    /// Deletes checkpoints that `policy` does not keep; returns their iterations.
    pub(super) fn prune(
        &self,
        policy: &RetentionPolicy,
        latest: u64,
        kept: [Option<u64>; 2],
    ) -> Result<Vec<u64>, CheckpointError> {
        let mut iterations = self.manager.list().map_err(self.failed("list"))?;
        iterations.sort_unstable();
        let disposable = policy.disposable(&iterations, latest, kept[0]);
        let disposable: Vec<u64> = disposable.into_iter().filter(|iteration| kept[1] != Some(*iteration)).collect();
        for iteration in &disposable {
            self.manager.delete(*iteration).map_err(self.failed(format!("delete iteration {iteration}")))?;
        }
        Ok(disposable)
    }

    /// Fetches the newest intact checkpoint, or that of a step, to the folder `root`, unless the
    /// checkpoint there is intact and as new. Returns messages for the user. A damaged checkpoint
    /// is reported, and the one before it is fetched.
    ///
    /// # Errors
    /// If the place cannot be reached, or the disk reports an error.
    pub fn fetch(&self, root: &Path, step: Option<u64>) -> Result<Vec<String>, CheckpointError> {
        let mut iterations = self.manager.list().map_err(self.failed("list"))?;
        iterations.sort_unstable();
        iterations.retain(|iteration| step.is_none_or(|step| step == *iteration));
        let request = LoadRequest { ckpt_step: step, fallback: true, ..LoadRequest::default() };
        let here = match CheckpointStore::open(root)?.resolve(&request) {
            Ok(Resolution::Found(found)) => Some(found.checkpoint.iteration()),
            Ok(Resolution::NothingFound { .. }) | Err(_) => None,
        };
        let mut notes = Vec::new();
        for iteration in iterations.into_iter().rev().take_while(|iteration| here.is_none_or(|here| *iteration > here))
        {
            match self.bring(root, iteration)? {
                None => {
                    notes.push(format!("fetched iteration {iteration} from {}", self.name));
                    break;
                }
                Some(damage) => {
                    notes.push(format!("iteration {iteration} of {} is damaged and skipped: {damage}", self.name))
                }
            }
        }
        Ok(notes)
    }

    /// Fetches a checkpoint and publishes it in `root`. Returns a description of the problem if the
    /// checkpoint is damaged.
    fn bring(&self, root: &Path, iteration: u64) -> Result<Option<String>, CheckpointError> {
        create_folder_durably(root)?;
        // Not the name of a save, because another process may be saving.
        let staging = root.join(format!("{STAGING_PREFIX}fetched-{}", iteration_folder_name(iteration)));
        remove_all(&staging)?;
        let folder = root.join(iteration_folder_name(iteration));
        let manifest = self
            .manager
            .manifest(iteration)
            .map_err(self.failed(format!("read the manifest of iteration {iteration}")))?;
        let Some(names) = names(&manifest) else { return Ok(Some("its manifest is damaged".into())) };
        for name in &names {
            let path = staging.join(name);
            create_folder_durably(parent_of(&path))?;
            let opened = self.manager.open(iteration, name, &path);
            if !opened.map_err(self.failed(format!("fetch {name} of iteration {iteration}")))? {
                remove_all(&staging)?;
                return Ok(Some(format!("{name}: missing")));
            }
        }
        let path = staging.join(METADATA_FILE);
        fs::write(&path, &manifest).map_err(CheckpointError::io("write", &path))?;
        if let Err(damage) = verify_folder(&staging, Verification::Contents) {
            remove_all(&staging)?;
            return Ok(Some(damage.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")));
        }
        remove_all(&folder)?;
        rename_durably(&staging, &folder)?;
        write_pointer(root, iteration)?;
        write_journal(root, &Journal::Saved { iteration })?;
        Ok(None)
    }
}

/// The files that a manifest names, if it can be read and they stay in their folder.
fn names(manifest: &[u8]) -> Option<BTreeSet<String>> {
    let (metadata, _) = unseal::<Metadata>(manifest).ok()?;
    let is_safe = |name: &String| file_name_problem(name).is_none();
    metadata.files.keys().all(is_safe).then(|| metadata.files.into_keys().collect())
}
