//! A checkpoint root, or one checkpoint folder, as it is on disk. Which checkpoint to use is not
//! decided here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};

use super::error::{CheckpointError, Damage, DamagedCheckpoint, SkippedCheckpoint};
use super::fsio::FileId;
use super::journal::{JournalState, Pointer, read_best, read_journal, read_pointer};
use super::names::{LATEST_FILE, METADATA_FILE, RootName, iteration_folder_name, parse_iteration, parse_root_name};
use super::reader::Checkpoint;
use super::retention::{RetentionPolicy, disposable};
use super::verify::{Verification, verify_folder};

/// A folder with the name of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RootEntry {
    pub(super) path: PathBuf,
    /// Distinguishes it from one that later has the same name; `None` if it vanished while being
    /// inspected.
    id: Option<FileId>,
}

/// The state of a root at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RootState {
    /// Entries, sorted by iteration.
    pub(super) entries: BTreeMap<u64, RootEntry>,
    pub(super) pointer: Pointer,
    pub(super) journal: JournalState,
}

impl RootState {
    /// Reads it, possibly while a writer is at work: if the journal is the same before and after,
    /// everything read in between is consistent.
    pub(super) fn read(root: &Path) -> Result<Self, CheckpointError> {
        /// Attempts; a writer takes only a few small steps per save, so it cannot stay ahead of a
        /// reader for longer.
        const ATTEMPTS: usize = 100;
        let mut journal = read_journal(root)?;
        for _ in 0..ATTEMPTS {
            let pointer = read_pointer(root)?;
            let entries = read_entries(root)?;
            let after = read_journal(root)?;
            if after == journal {
                return Ok(Self { entries, pointer, journal });
            }
            journal = after;
        }
        Ok(Self { entries: read_entries(root)?, pointer: read_pointer(root)?, journal })
    }
}

pub(super) fn read_entries(root: &Path) -> Result<BTreeMap<u64, RootEntry>, CheckpointError> {
    let reading = || CheckpointError::io("read folder", root);
    let listing = match fs::read_dir(root) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(root).is_err() => {
            return Ok(BTreeMap::new());
        }
        listing => listing.map_err(reading())?,
    };
    let (mut published, mut displaced) = (BTreeMap::new(), BTreeMap::new());
    for entry in listing {
        let path = entry.map_err(reading())?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let (entries, iteration) = match parse_root_name(name) {
            RootName::Checkpoint(iteration) => (&mut published, iteration),
            RootName::Displaced(iteration) => (&mut displaced, iteration),
            RootName::Leftover | RootName::Other => continue,
        };
        // Of `iter_100` and `iter_0000100`, takes the one that Bridge writes.
        if !entries.contains_key(&iteration) || name == iteration_folder_name(iteration) {
            let id = fs::metadata(&path).ok().map(|metadata| FileId::from_metadata(&metadata));
            entries.insert(iteration, RootEntry { path, id });
        }
    }
    // A checkpoint that was moved aside counts as long as no other has its name.
    for (iteration, entry) in displaced {
        published.entry(iteration).or_insert(entry);
    }
    Ok(published)
}

/// The kind of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// A folder with checkpoints, or a path that does not exist yet.
    Root(PathBuf),
    /// One checkpoint.
    Folder(PathBuf),
}

/// Root from which checkpoints are loaded. Opening writes nothing; any number of processes may read
/// while one writes.
#[derive(Debug, Clone)]
pub struct CheckpointStore {
    pub(super) place: Place,
}

/// An entry of [`CheckpointStore::list`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointSummary {
    /// The step; `None` for a damaged folder whose name does not contain it.
    pub iteration: Option<u64>,
    /// Folder of the checkpoint.
    pub path: PathBuf,
    /// Bytes of its files, without the metadata. 0 when damaged.
    pub bytes: u64,
    /// When it was saved; when its folder last changed, if it is damaged.
    pub saved_at: Option<SystemTime>,
    /// Damage that can be found without reading whole files. Empty for a complete checkpoint.
    pub damage: Vec<Damage>,
}

impl CheckpointSummary {
    /// True if all files exist with their sizes. Their contents were not checked.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.damage.is_empty()
    }
}

/// Iterations that the files of a root name; `None` without such a file, or if it names no
/// checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pointers {
    /// The checkpoint to resume from.
    pub latest: Option<u64>,
    /// The checkpoint with the lowest validation loss.
    pub best: Option<u64>,
}

impl CheckpointStore {
    /// Opens `path`: a root with `iter_` folders, or one such folder under any name, also as
    /// [`named`] has it. A path that does not exist counts as an empty root.
    ///
    /// # Errors
    /// If `path` is not a folder, or is a dangling link.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, CheckpointError> {
        let path = named(path.into())?;
        let named_like_one = path.file_name().and_then(|name| name.to_str()).and_then(parse_iteration).is_some();
        let place = match fs::metadata(&path) {
            Ok(metadata) if !metadata.is_dir() => return Err(CheckpointError::NotAFolder { path }),
            Ok(_) if named_like_one || path.join(METADATA_FILE).exists() => Place::Folder(path),
            Ok(_) => Place::Root(path),
            // A path that names one checkpoint does not mean an empty root.
            Err(e) if e.kind() == io::ErrorKind::NotFound && named_like_one => Place::Folder(path),
            Err(e) if e.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => Place::Root(path),
            Err(e) => return Err(CheckpointError::io("open", &path)(e)),
        };
        Ok(Self { place })
    }

    /// The path given to [`open`](Self::open).
    #[must_use]
    pub fn path(&self) -> &Path {
        match &self.place {
            Place::Root(path) | Place::Folder(path) => path,
        }
    }

    /// All checkpoints, oldest first, including damaged ones. Reads metadata and sizes, not
    /// contents.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn list(&self) -> Result<Vec<CheckpointSummary>, CheckpointError> {
        Ok(match &self.place {
            Place::Folder(path) => vec![summarise(path)],
            Place::Root(root) => read_entries(root)?.values().map(|entry| summarise(&entry.path)).collect(),
        })
    }

    /// Iterations that the files of a root name. A single folder has no such files.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn pointers(&self) -> Result<Pointers, CheckpointError> {
        let named = |pointer| match pointer {
            Pointer::Iteration(iteration) => Some(iteration),
            Pointer::Missing | Pointer::Garbage(_) => None,
        };
        match &self.place {
            Place::Folder(_) => Ok(Pointers::default()),
            Place::Root(root) => Ok(Pointers { latest: named(read_pointer(root)?), best: named(read_best(root)?) }),
        }
    }

    /// Checkpoints that [`CheckpointWriter::prune`](super::CheckpointWriter::prune) would delete
    /// under `policy`, oldest first. Writes nothing. A single folder has nothing to delete.
    ///
    /// # Errors
    /// If the disk reports an error.
    pub fn disposable(&self, policy: &RetentionPolicy) -> Result<Vec<u64>, CheckpointError> {
        match &self.place {
            Place::Folder(_) => Ok(Vec::new()),
            Place::Root(root) => Ok(disposable(root, policy, None, None)?.into_keys().collect()),
        }
    }

    /// Opens the checkpoint of one iteration, without resolving the latest and without falling
    /// back.
    ///
    /// # Errors
    /// If there is no such checkpoint, or it is damaged.
    pub fn open_iteration(&self, step: u64, verification: Verification) -> Result<Checkpoint, CheckpointError> {
        let path = match &self.place {
            Place::Folder(path) => path.clone(),
            Place::Root(root) => {
                let entries = read_entries(root)?;
                let missing = || self.step_not_found(step, entries.keys().copied().collect());
                entries.get(&step).ok_or_else(missing)?.path.clone()
            }
        };
        let checkpoint = verify_folder(&path, verification).map_err(|damage| {
            let checkpoint = SkippedCheckpoint { path: path.clone(), iteration: Some(step), damage };
            CheckpointError::Damaged(Box::new(DamagedCheckpoint { checkpoint, intact: None }))
        })?;
        match checkpoint.iteration() {
            found if found == step => Ok(checkpoint),
            found => Err(self.step_not_found(step, vec![found])),
        }
    }

    pub(super) fn step_not_found(&self, step: u64, available: Vec<u64>) -> CheckpointError {
        CheckpointError::StepNotFound { root: self.path().to_owned(), step, available }
    }
}

/// Resolves `ROOT/best` and `ROOT/latest` if there is no such folder: to the checkpoint with the
/// lowest validation loss, and to the root itself, of which the latest checkpoint is loaded.
/// Returns all other paths unchanged.
///
/// # Errors
/// If the root has no pointer to the best checkpoint, or cannot be read.
pub fn named(path: PathBuf) -> Result<PathBuf, CheckpointError> {
    let (Some(root), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(path);
    };
    // Only a folder with checkpoints has one of these; elsewhere they are names like all others.
    if !matches!(name, "best" | "latest") || fs::symlink_metadata(&path).is_ok() || !root.join(LATEST_FILE).is_file() {
        return Ok(path);
    }
    if name == "latest" {
        return Ok(root.to_owned());
    }
    match read_best(root)? {
        Pointer::Iteration(best) => Ok(root.join(iteration_folder_name(best))),
        Pointer::Missing | Pointer::Garbage(_) => Err(CheckpointError::NoBest { root: root.to_owned() }),
    }
}

pub(super) fn iteration_of(path: &Path) -> Option<u64> {
    match parse_root_name(path.file_name()?.to_str()?) {
        RootName::Checkpoint(iteration) | RootName::Displaced(iteration) => Some(iteration),
        RootName::Leftover | RootName::Other => None,
    }
}

fn summarise(path: &Path) -> CheckpointSummary {
    match verify_folder(path, Verification::Sizes) {
        Ok(checkpoint) => {
            let metadata = checkpoint.metadata();
            CheckpointSummary {
                iteration: Some(metadata.iteration),
                path: path.to_owned(),
                bytes: metadata.files.values().map(|file| file.size).sum(),
                saved_at: UNIX_EPOCH.checked_add(Duration::from_secs(metadata.saved_at_unix_seconds)),
                damage: Vec::new(),
            }
        }
        Err(damage) => CheckpointSummary {
            iteration: iteration_of(path),
            path: path.to_owned(),
            bytes: 0,
            saved_at: fs::metadata(path).and_then(|metadata| metadata.modified()).ok(),
            damage,
        },
    }
}
