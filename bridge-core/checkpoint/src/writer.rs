//! Saving: a folder filled under a temporary name, synced, and published by one rename. Loading
//! does not belong here.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use std::{fmt, fs, io};

use super::checksum::{Checksum, seal};
use super::error::CheckpointError;
use super::fsio::{
    FileWriter, create_folder_durably, exists, parent_of, remove_all, rename_durably, swap, sync_folder,
};
use super::journal::{Journal, Pointer, read_best, read_pointer, write_best, write_journal, write_pointer};
use super::manager::NamedManager;
use super::metadata::{FORMAT_VERSION, FileRecord, Metadata, merge_shards};
use super::names::{
    METADATA_FILE, RUN_CONFIG_FILE, RootName, TRAIN_STATE_FILE, displaced_name, file_name_problem,
    iteration_folder_name, parse_root_name, staging_name,
};
use super::progress::{ProgressFn, ProgressMeter};
use super::retention::{RetentionPolicy, move_to_trash, prune};
use super::shard::{WrittenShard, plan_shards, write_shards};
use super::snapshot::{RunFiles, Snapshot, TensorGroup};

/// Options of writing checkpoints.
#[derive(Clone)]
pub struct SaveOptions {
    /// A shard file is closed before it would exceed this many bytes.
    pub max_shard_bytes: u64,
    /// Shard files written concurrently, into which each group of tensors is divided.
    pub storage_writers: NonZeroUsize,
    /// Policy of deleting checkpoints after a save.
    pub retention: RetentionPolicy,
    /// The program and version named in the metadata.
    pub producer: String,
    /// Receives the progress of each save.
    pub progress: Option<ProgressFn>,
    /// Keeps each checkpoint in another place too.
    pub manager: Option<NamedManager>,
}

impl Default for SaveOptions {
    /// Shards of at most 5 GB written one after the other, nothing deleted, no progress reported.
    fn default() -> Self {
        Self {
            max_shard_bytes: 5_000_000_000,
            storage_writers: NonZeroUsize::MIN,
            retention: RetentionPolicy::default(),
            producer: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
            progress: None,
            manager: None,
        }
    }
}

impl fmt::Debug for SaveOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaveOptions")
            .field("max_shard_bytes", &self.max_shard_bytes)
            .field("storage_writers", &self.storage_writers)
            .field("retention", &self.retention)
            .field("producer", &self.producer)
            .field("manager", &self.manager)
            .finish_non_exhaustive()
    }
}

/// The result of a save.
#[derive(Debug)]
pub struct SaveReport {
    /// The iteration saved.
    pub iteration: u64,
    /// Folder of the saved checkpoint.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Wall-clock seconds from the first byte until it was durable, without deletions.
    pub seconds: f64,
    /// The iterations that the retention policy deleted afterwards.
    pub pruned: Vec<u64>,
    /// Why older checkpoints could not be deleted. The save itself succeeded.
    pub prune_error: Option<CheckpointError>,
}

/// Writes checkpoints into one root. A root may have only one writer at a time, among all
/// processes: in a parallel run the writer belongs to the first rank, and other ranks write through
/// [`Staging::join`].
#[derive(Debug, Clone)]
pub struct CheckpointWriter {
    root: PathBuf,
    options: SaveOptions,
}

impl CheckpointWriter {
    /// Opens `root`, creating it if it is missing, and cleans up after a killed writer: its
    /// temporary folders are deleted, and a checkpoint that it had moved aside gets its name back.
    ///
    /// # Errors
    /// If `root` is not a folder or cannot be created or written.
    pub fn open(root: impl Into<PathBuf>, options: SaveOptions) -> Result<Self, CheckpointError> {
        let root = root.into();
        if fs::metadata(&root).is_ok_and(|metadata| !metadata.is_dir()) {
            return Err(CheckpointError::NotAFolder { path: root });
        }
        create_folder_durably(&root)?;
        clear_up(&root)?;
        options.manager.as_ref().map_or(Ok(()), NamedManager::clear_up)?;
        Ok(Self { root, options })
    }

    /// The folder that checkpoints are written into.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Options of writing checkpoints.
    #[must_use]
    pub fn options(&self) -> &SaveOptions {
        &self.options
    }

    /// Saves a run of one rank. When this returns, the checkpoint survives a power failure. A
    /// checkpoint of the same iteration is replaced atomically.
    ///
    /// # Errors
    /// If the snapshot is invalid, or the disk is full or reports an error. Incomplete files are
    /// removed, and earlier checkpoints are untouched.
    pub fn save(&self, snapshot: &Snapshot) -> Result<SaveReport, CheckpointError> {
        let staging = self.begin(snapshot.run.train_state.step)?;
        match staging.write_shards(0, &snapshot.groups) {
            Ok(shards) => self.publish(staging, &snapshot.run, &shards),
            Err(error) => {
                staging.discard();
                Err(error)
            }
        }
    }

    /// Begins a save that several ranks take part in: other ranks [join](Staging::join) after this
    /// has returned, all ranks [write their shards](Staging::write_shards), and this writer
    /// [publishes](Self::publish) the reported shards.
    ///
    /// # Errors
    /// If the temporary folder cannot be created.
    pub fn begin(&self, iteration: u64) -> Result<Staging, CheckpointError> {
        let folder = self.root.join(staging_name(iteration));
        remove_all(&folder)?;
        fs::create_dir(&folder).map_err(CheckpointError::io("create folder", &folder))?;
        Ok(Staging::new(folder, iteration, self.options.clone()))
    }

    /// Completes a save with the shards that all ranks wrote.
    ///
    /// # Errors
    /// If the shards do not form whole tensors, one of them is not in the folder, `run` is of
    /// another step, or the disk is full or reports an error. The temporary folder is removed then.
    pub fn publish(
        &self,
        staging: Staging,
        run: &RunFiles,
        shards: &[WrittenShard],
    ) -> Result<SaveReport, CheckpointError> {
        let saved_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let outcome = staging.complete(run, shards, shards, saved_at).and_then(|(checksum, bytes)| {
            self.make_latest(&staging, checksum)?;
            self.mark_best(run.best)?;
            Ok(bytes)
        });
        let bytes = outcome.inspect_err(|_| staging.discard())?;
        let path = self.root.join(iteration_folder_name(staging.iteration));
        if let Some(manager) = &self.options.manager {
            manager.store(&path, staging.iteration)?;
        }
        let seconds = staging.started.elapsed().as_secs_f64();
        let iteration = staging.iteration;
        // The cleanup removes the old checkpoint of this iteration, whichever way it was replaced.
        let pruned = clear_up(&self.root)
            .and_then(|()| prune(&self.root, &self.options.retention, Some(iteration), run.protected));
        let pruned = pruned.and_then(|pruned| {
            self.prune_elsewhere(iteration, run.protected)?;
            Ok(pruned)
        });
        let (pruned, prune_error) = match pruned {
            Ok(pruned) => (pruned, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        Ok(SaveReport { iteration, path, bytes, seconds, pruned, prune_error })
    }

    /// Deletes checkpoints that the retention policy does not keep, and returns the deleted
    /// iterations. Every save does this as well; this is for a changed policy. Verifies a
    /// checkpoint that is kept before it deletes one.
    ///
    /// # Errors
    /// If the disk reports an error.
    pub fn prune(&self) -> Result<Vec<u64>, CheckpointError> {
        prune(&self.root, &self.options.retention, None, None)
    }

    /// Deletes checkpoints that the retention policy does not keep from the manager's storage.
    fn prune_elsewhere(&self, latest: u64, protected: Option<u64>) -> Result<(), CheckpointError> {
        let Some(manager) = &self.options.manager else { return Ok(()) };
        match read_best(&self.root)? {
            Pointer::Iteration(best) => manager.prune(&self.options.retention, latest, [Some(best), protected]),
            Pointer::Missing => manager.prune(&self.options.retention, latest, [None, protected]),
            // It is unknown which one is the best.
            Pointer::Garbage(_) => return Ok(()),
        }?;
        Ok(())
    }

    /// Points to the best checkpoint, if it is here: a run that goes on elsewhere has left it
    /// behind.
    fn mark_best(&self, best: Option<u64>) -> Result<(), CheckpointError> {
        match best {
            Some(best)
                if read_best(&self.root)? != Pointer::Iteration(best)
                    && exists(&self.root.join(iteration_folder_name(best)))? =>
            {
                write_best(&self.root, best)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Gives a complete folder its name and updates the pointer. Killed at any line, this leaves a
    /// state from which `resolve` finds the new checkpoint or the previous one without reporting
    /// damage.
    fn make_latest(&self, staging: &Staging, metadata_checksum: Checksum) -> Result<(), CheckpointError> {
        let iteration = staging.iteration;
        let previous = match read_pointer(&self.root)? {
            Pointer::Iteration(previous) => Some(previous),
            Pointer::Missing | Pointer::Garbage(_) => None,
        };
        write_journal(&self.root, &Journal::Saving { iteration, metadata_checksum, previous })?;
        let target = self.root.join(iteration_folder_name(iteration));
        if exists(&target)? {
            match swap(&staging.folder, &target) {
                Ok(()) => sync_folder(&self.root)?,
                Err(e) if e.kind() == io::ErrorKind::Unsupported => move_aside_and_publish(&self.root, staging)?,
                Err(e) => return Err(CheckpointError::io("replace", &target)(e)),
            }
        } else {
            rename_durably(&staging.folder, &target)?;
        }
        write_pointer(&self.root, iteration)?;
        write_journal(&self.root, &Journal::Saved { iteration })
    }
}

/// Replaces a checkpoint where two names cannot be swapped atomically. Between the two renames,
/// readers find the old one under the name to which it was moved.
pub(super) fn move_aside_and_publish(root: &Path, staging: &Staging) -> Result<(), CheckpointError> {
    let target = root.join(iteration_folder_name(staging.iteration));
    let displaced = root.join(displaced_name(staging.iteration));
    remove_all(&displaced)?;
    rename_durably(&target, &displaced)?;
    rename_durably(&staging.folder, &target)
}

/// Removes files that only an active writer needs.
fn clear_up(root: &Path) -> Result<(), CheckpointError> {
    let reading = || CheckpointError::io("read folder", root);
    for entry in fs::read_dir(root).map_err(reading())? {
        let path = entry.map_err(reading())?.path();
        match path.file_name().and_then(|name| name.to_str()).map(parse_root_name) {
            Some(RootName::Leftover) => remove_all(&path)?,
            Some(RootName::Displaced(iteration)) => {
                let published = root.join(iteration_folder_name(iteration));
                if exists(&published)? {
                    move_to_trash(root, &path, iteration)?;
                } else {
                    rename_durably(&path, &published)?;
                }
            }
            Some(RootName::Checkpoint(_) | RootName::Other) | None => {}
        }
    }
    Ok(())
}

/// A checkpoint being written, under a temporary name.
#[derive(Debug)]
pub struct Staging {
    folder: PathBuf,
    iteration: u64,
    options: SaveOptions,
    started: Instant,
}

impl Staging {
    fn new(folder: PathBuf, iteration: u64, options: SaveOptions) -> Self {
        Self { folder, iteration, options, started: Instant::now() }
    }

    /// Takes part in a save that another rank has [begun](CheckpointWriter::begin) in the same
    /// root.
    ///
    /// # Errors
    /// If the temporary folder is missing: the save has not begun, or the ranks do not share a file
    /// system.
    pub fn join(root: &Path, iteration: u64, options: SaveOptions) -> Result<Self, CheckpointError> {
        let folder = root.join(staging_name(iteration));
        let metadata = fs::metadata(&folder).map_err(CheckpointError::io("join the save in", &folder))?;
        if !metadata.is_dir() {
            return Err(CheckpointError::NotAFolder { path: folder });
        }
        Ok(Self::new(folder, iteration, options))
    }

    /// Writes and syncs the tensors of one rank. Call it once per rank, with all its groups.
    ///
    /// # Errors
    /// If names cannot be stored, or the disk is full or reports an error.
    pub fn write_shards(&self, rank: usize, groups: &[TensorGroup]) -> Result<Vec<WrittenShard>, CheckpointError> {
        let tensors = groups.iter().flat_map(|group| &group.tensors);
        let meter = ProgressMeter {
            progress: self.options.progress.clone(),
            iteration: self.iteration,
            done: AtomicU64::new(0),
            total: tensors.map(|tensor| tensor.source.num_bytes() as u64).sum(),
        };
        let writers = self.options.storage_writers;
        let plans = plan_shards(groups, rank, self.options.max_shard_bytes, writers)?;
        write_shards(&self.folder, &plans, writers.get(), &meter)
    }

    /// Removes the folder after an error. An error of the removal is ignored; the rest is removed
    /// at the next start.
    pub fn discard(&self) {
        let _ = remove_all(&self.folder);
    }

    /// The temporary folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes all files except shards, of which those that are `held` must be here, and syncs the
    /// folder. Returns the checksum of the metadata and the bytes of all files.
    pub(super) fn complete(
        &self,
        run: &RunFiles,
        shards: &[WrittenShard],
        held: &[WrittenShard],
        saved_at_unix_seconds: u64,
    ) -> Result<(Checksum, u64), CheckpointError> {
        if run.train_state.step != self.iteration {
            let reason = format!("its step is {}, the save is of iteration {}", run.train_state.step, self.iteration);
            return Err(CheckpointError::invalid_snapshot(TRAIN_STATE_FILE, reason));
        }
        let mut files = self.write_run_files(run)?;
        let tensors = merge_shards(shards, &mut files)?;
        for shard in held {
            let path = self.folder.join(&shard.file);
            let found = fs::metadata(&path).map_err(CheckpointError::io("find the shard", &path))?.len();
            if found != shard.size {
                let reason = format!("its rank wrote {} bytes, here it has {found}", shard.size);
                return Err(CheckpointError::invalid_snapshot(&shard.file, reason));
            }
        }
        let metadata = Metadata {
            format_version: FORMAT_VERSION,
            producer: self.options.producer.clone(),
            iteration: self.iteration,
            saved_at_unix_seconds,
            files,
            tensors,
        };
        let path = self.folder.join(METADATA_FILE);
        let (bytes, checksum) = seal(&metadata).map_err(|e| CheckpointError::io("write", &path)(e.into()))?;
        let mut file = FileWriter::create(&path)?;
        file.write(&bytes)?;
        let (metadata_size, _) = file.finish()?;
        sync_folder(&self.folder)?;
        Ok((checksum, metadata_size + metadata.files.values().map(|file| file.size).sum::<u64>()))
    }

    fn write_run_files(&self, run: &RunFiles) -> Result<BTreeMap<String, FileRecord>, CheckpointError> {
        let train_state = serde_json::to_vec_pretty(&run.train_state)
            .map_err(|e| CheckpointError::invalid_snapshot(TRAIN_STATE_FILE, e.to_string()))?;
        let own = [(RUN_CONFIG_FILE, run.run_config.as_bytes()), (TRAIN_STATE_FILE, &train_state[..])];
        let given = run.files.iter().map(|(name, content)| (name.as_str(), &content[..]));
        let (mut files, mut folders) = (BTreeMap::new(), BTreeSet::new());
        for (name, content) in own.into_iter().chain(given) {
            if let Some(problem) = file_name_problem(name) {
                return Err(CheckpointError::invalid_snapshot(name, format!("the file's name {problem}")));
            }
            if name == METADATA_FILE || files.contains_key(name) {
                return Err(CheckpointError::invalid_snapshot(name, "a file of this name belongs to every checkpoint"));
            }
            let path = self.folder.join(name);
            create_folder_durably(parent_of(&path))?;
            folders.insert(parent_of(&path).to_owned());
            let mut file = FileWriter::create(&path)?;
            file.write(content)?;
            let (size, checksum) = file.finish()?;
            files.insert(name.to_owned(), FileRecord { size, checksum });
        }
        folders.iter().try_for_each(|folder| sync_folder(folder))?;
        Ok(files)
    }
}
