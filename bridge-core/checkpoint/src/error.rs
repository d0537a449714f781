//! Errors of checkpoints, with file and found value. No decisions belong here.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use bridge_data::untrusted_io;
use bridge_dist::comm::CommError;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::checksum::Checksum;
use super::names::{BEST_FILE, JOURNAL_FILE, LATEST_FILE, METADATA_FILE};
use super::slices::TensorSlice;
use super::tensor::{DType, HostTensor};

/// One thing that is wrong with one checkpoint folder. `file` is relative to that folder.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Damage {
    /// The checkpoint is missing.
    #[error("the folder is missing")]
    FolderMissing,
    /// Something that is not a folder has the name of a checkpoint folder.
    #[error("it is not a folder")]
    NotAFolder,
    /// A file of the checkpoint is missing.
    #[error("{file}: missing{}", missing_hint(.file))]
    FileMissing {
        /// The file.
        file: String,
    },
    /// A file was truncated or grew.
    #[error("{file}: expected {expected} bytes, found {found}")]
    SizeMismatch {
        /// The file.
        file: String,
        /// Bytes when it was written.
        expected: u64,
        /// Bytes now.
        found: u64,
    },
    /// The bytes of a file are not those that were written.
    #[error("{file}: expected checksum {expected}, found {found}")]
    ChecksumMismatch {
        /// The file.
        file: String,
        /// The checksum when it was written.
        expected: Checksum,
        /// The checksum now.
        found: Checksum,
    },
    /// The operating system could not read a file.
    #[error("{file}: cannot be read: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// The operating system's error.
        reason: String,
    },
    /// A file is malformed.
    #[error("{file}: {reason}")]
    Malformed {
        /// The file.
        file: String,
        /// Description of the fault.
        reason: String,
    },
    /// A newer version of Bridge wrote the checkpoint.
    #[error("{file}: format version {found}, but this program reads versions up to {supported}")]
    UnsupportedVersion {
        /// The file.
        file: String,
        /// The version it states.
        found: u32,
        /// The newest version this program reads.
        supported: u32,
    },
    /// A checkpoint folder is named after another iteration.
    #[error("the folder's name says iteration {folder}, its {METADATA_FILE} says {metadata}")]
    WrongIteration {
        /// The iteration in the folder's name.
        folder: u64,
        /// The iteration that was saved.
        metadata: u64,
    },
}

impl Damage {
    /// The file it is about; `None` if it is about the folder.
    pub(super) fn file(&self) -> &str {
        match self {
            Self::FolderMissing | Self::NotAFolder | Self::WrongIteration { .. } => "",
            Self::FileMissing { file }
            | Self::SizeMismatch { file, .. }
            | Self::ChecksumMismatch { file, .. }
            | Self::Unreadable { file, .. }
            | Self::Malformed { file, .. }
            | Self::UnsupportedVersion { file, .. } => file,
        }
    }
}

fn missing_hint(file: &str) -> &'static str {
    if file == METADATA_FILE { " (not written by Bridge, or a copy that did not finish)" } else { "" }
}

/// Damage to the files of a root that say which checkpoint to resume from.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RootFault {
    /// There are checkpoints, but no file names the latest one.
    #[error("{LATEST_FILE} is missing")]
    PointerMissing,
    /// The pointer is not a decimal number.
    #[error("{LATEST_FILE}: expected a decimal iteration, found {text:?}")]
    PointerGarbage {
        /// The beginning of its content.
        text: String,
    },
    /// The pointer does not name the iteration saved last.
    #[error(
        "{LATEST_FILE} names iteration {pointer}, but the last save was of iteration {saved}; if that was changed on \
         purpose, ask for iteration {pointer} by number or delete {JOURNAL_FILE}"
    )]
    PointerMismatch {
        /// The iteration that the pointer names.
        pointer: u64,
        /// The iteration that was saved last, according to the journal.
        saved: u64,
    },
    /// The journal was modified or truncated.
    #[error("{JOURNAL_FILE}: {reason}")]
    JournalDamaged {
        /// Description of the fault.
        reason: String,
    },
}

/// A checkpoint that was verified and found damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedCheckpoint {
    /// Folder of the checkpoint.
    pub path: PathBuf,
    /// The iteration it is named after; `None` if the folder's name has none.
    pub iteration: Option<u64>,
    /// All damage that was found.
    pub damage: Vec<Damage>,
}

impl fmt::Display for SkippedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Lists only the first few, since a folder can lack thousands of files.
        const SHOWN: usize = 8;
        write!(f, "checkpoint {} is damaged", self.path.display())?;
        for damage in self.damage.iter().take(SHOWN) {
            write!(f, "\n  - {damage}")?;
        }
        match self.damage.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  - and {more} more"),
        }
    }
}

/// A checkpoint that cannot be used, and the one that could be used instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedCheckpoint {
    /// The requested checkpoint.
    pub checkpoint: SkippedCheckpoint,
    /// The newest verified checkpoint before it.
    pub intact: Option<u64>,
}

impl fmt::Display for DamagedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.checkpoint)?;
        offer(f, self.intact)
    }
}

fn offer(f: &mut fmt::Formatter<'_>, intact: Option<u64>) -> fmt::Result {
    match intact {
        Some(step) => write!(f, "iteration {step} is intact: load it by number, or allow falling back to it"),
        None => f.write_str("there is no intact checkpoint before it"),
    }
}

struct Offer(Option<u64>);

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        offer(f, self.0)
    }
}

fn list(steps: &[u64]) -> String {
    match steps {
        [] => "none".to_owned(),
        steps => steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn lines(skipped: &[SkippedCheckpoint]) -> String {
    skipped.iter().map(|s| format!("\n{s}")).collect()
}

fn nearest_name(nearest: Option<&String>) -> String {
    nearest.map_or_else(String::new, |name| format!("; the nearest name is `{name}`"))
}

/// Errors of writing, finding and reading checkpoints.
#[derive(Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system reported an error.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// Attempted action, as a verb: "write", "rename".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The disk is full, or a quota is exhausted. Earlier checkpoints are untouched.
    #[error("the disk is full: cannot {action} {} ({source}); earlier checkpoints are untouched", .path.display())]
    DiskFull {
        /// Attempted action.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A path that should be a checkpoint folder is not a folder.
    #[error("{} is not a folder", .path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// The checkpoint to load is damaged, and falling back is not allowed.
    #[error("{0}")]
    Damaged(Box<DamagedCheckpoint>),
    /// The file that names the latest checkpoint is damaged, and falling back is not allowed.
    #[error("{}: {fault}\n{}", .root.display(), Offer(*.intact))]
    Root {
        /// The checkpoint root.
        root: PathBuf,
        /// Description of the fault.
        fault: RootFault,
        /// The verified checkpoint that falling back would use.
        intact: Option<u64>,
    },
    /// Checkpoints were saved here, but no usable one is intact.
    #[error(
        "{} holds no intact checkpoint to resume from{}{}",
        .root.display(),
        lines(.skipped),
        if .newer.is_empty() { String::new() } else {
            format!("\nnot tried, because newer than the latest: iterations {}", list(.newer))
        }
    )]
    NothingIntact {
        /// The checkpoint root.
        root: PathBuf,
        /// The checkpoints tried, newest first.
        skipped: Vec<SkippedCheckpoint>,
        /// Checkpoints newer than the latest one, which may belong to an abandoned run and are only
        /// used on request.
        newer: Vec<u64>,
    },
    /// No file names the best checkpoint.
    #[error("{}: {BEST_FILE} names no checkpoint; checkpoint.keep_best = true writes it while training", .root.display())]
    NoBest {
        /// The folder of checkpoints.
        root: PathBuf,
    },
    /// The requested iteration was never saved, or has been deleted.
    #[error("{} has no checkpoint of iteration {step}; there are: {}", .root.display(), list(.available))]
    StepNotFound {
        /// The checkpoint root.
        root: PathBuf,
        /// The requested iteration.
        step: u64,
        /// The existing iterations.
        available: Vec<u64>,
    },
    /// A tensor's memory does not match its type and shape.
    #[error("invalid tensor: {reason}")]
    InvalidTensor {
        /// Description of the fault.
        reason: String,
    },
    /// A snapshot cannot be saved as a checkpoint.
    #[error("cannot save `{name}`: {reason}")]
    InvalidSnapshot {
        /// The tensor, group or file.
        name: String,
        /// Description of the fault.
        reason: String,
    },
    /// The checkpoint has no tensor of that name.
    #[error("checkpoint {} has no tensor `{name}`{}", .path.display(), nearest_name(.nearest.as_ref()))]
    UnknownTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The requested name.
        name: String,
        /// The most similar existing name.
        nearest: Option<String>,
    },
    /// A tensor does not have the type or shape that the program expects.
    #[error(
        "tensor `{name}` of checkpoint {}: expected {expected_dtype} {expected_shape:?}, \
         found {found_dtype} {found_shape:?}{}",
        .path.display(),
        nearest_name(.nearest.as_ref())
    )]
    TensorMismatch {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The type expected.
        expected_dtype: DType,
        /// The shape expected.
        expected_shape: Vec<usize>,
        /// The type stored.
        found_dtype: DType,
        /// The shape stored.
        found_shape: Vec<usize>,
        /// The most similar other name with the expected type and shape.
        nearest: Option<String>,
    },
    /// A tensor has a value from which no run can go on.
    #[error(
        "tensor `{name}` of checkpoint {}: expected finite numbers, found {value}: the run that saved it had diverged",
        .path.display()
    )]
    NotFinite {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The value.
        value: f64,
    },
    /// The requested part lies outside the tensor, or the buffer has the wrong length for it.
    #[error("tensor `{name}` of shape {shape:?}: cannot read the slice {slice}: {reason}")]
    InvalidSlice {
        /// The tensor.
        name: String,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// The requested slice.
        slice: TensorSlice,
        /// Description of the fault.
        reason: String,
    },
    /// A retention setting is invalid.
    #[error("{key} = {found}: expected {expected}")]
    InvalidRetention {
        /// The setting.
        key: &'static str,
        /// Found value.
        found: i64,
        /// The allowed values.
        expected: &'static str,
    },
    /// The background save ended in a panic.
    #[error("the background save of iteration {iteration} panicked: {message}")]
    SaverPanicked {
        /// The iteration being saved.
        iteration: u64,
        /// The panic's message.
        message: String,
    },
    /// Another rank failed.
    #[error("rank {rank} failed in {doing}: {why}. Earlier checkpoints are untouched")]
    OtherRank {
        /// The first rank that failed.
        rank: usize,
        /// Action of all ranks.
        doing: &'static str,
        /// Message of that rank.
        why: String,
    },
    /// The manager of checkpoints in another place failed.
    #[error("checkpoint.custom_manager_class = {manager}: cannot {doing}: {source}")]
    Manager {
        /// Name of the manager.
        manager: String,
        /// Requested action of the manager.
        doing: String,
        /// Error of the manager.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The ranks that save together could not communicate.
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl CheckpointError {
    /// For `map_err`: the attempted action and its path.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { action, path, source },
            _ => Self::Io { action, path, source },
        }
    }

    /// True if the user's input is at fault (another model, a missing step or folder), not the
    /// machine.
    pub fn is_bad_input(&self) -> bool {
        matches!(
            self,
            Self::NotAFolder { .. }
                | Self::NoBest { .. }
                | Self::Damaged(_)
                | Self::Root { .. }
                | Self::NothingIntact { .. }
                | Self::StepNotFound { .. }
                | Self::UnknownTensor { .. }
                | Self::TensorMismatch { .. }
                | Self::NotFinite { .. }
                | Self::InvalidTensor { .. }
                | Self::InvalidRetention { .. }
        ) || matches!(self, Self::Io { source, .. } if untrusted_io::is_refused(source))
    }

    /// A [`CheckpointError::NotFinite`], if `tensor` has such a value.
    ///
    /// # Errors
    /// The tensor has values that are not finite.
    pub fn unless_finite(path: &Path, name: &str, tensor: &HostTensor) -> Result<(), Self> {
        match tensor.first_not_finite() {
            None => Ok(()),
            Some((_, value)) => Err(Self::NotFinite { path: path.to_owned(), name: name.to_owned(), value }),
        }
    }

    pub(super) fn invalid_snapshot(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidSnapshot { name: name.into(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disks_and_quotas_are_named() {
        const ENOSPC: i32 = 28;
        for error in [io::Error::from_raw_os_error(ENOSPC), io::Error::from(io::ErrorKind::QuotaExceeded)] {
            let error = CheckpointError::io("write", Path::new("a/b"))(error);
            assert!(matches!(&error, CheckpointError::DiskFull { path, .. } if path == Path::new("a/b")));
            assert!(error.to_string().contains("cannot write a/b"), "{error}");
        }
        let other = CheckpointError::io("write", Path::new("a"))(io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(matches!(other, CheckpointError::Io { .. }));
    }

    #[test]
    fn a_damaged_checkpoint_reads_well() {
        let damage = vec![
            Damage::FileMissing { file: METADATA_FILE.into() },
            Damage::SizeMismatch { file: "a".into(), expected: 2, found: 1 },
        ];
        let checkpoint = SkippedCheckpoint { path: "r/iter_0000002".into(), iteration: Some(2), damage };
        let error = CheckpointError::Damaged(Box::new(DamagedCheckpoint { checkpoint, intact: Some(1) }));
        assert_eq!(
            error.to_string(),
            "checkpoint r/iter_0000002 is damaged\n  - metadata.json: missing (not written by Bridge, or a copy that \
             did not finish)\n  - a: expected 2 bytes, found 1\niteration 1 is intact: load it by number, or allow \
             falling back to it"
        );
    }
}
