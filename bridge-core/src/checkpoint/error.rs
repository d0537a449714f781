//! Everything that can go wrong with a checkpoint, and what was found where. Decides nothing.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bridge_dist::comm::CommError;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::checksum::Checksum;
use super::layout::{JOURNAL_FILE, LATEST_FILE, METADATA_FILE};
use super::tensor::DType;

/// One thing that is wrong with one checkpoint folder. `file` is relative to that folder.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Damage {
    /// The checkpoint that should be there is not.
    #[error("the folder is missing")]
    FolderMissing,
    /// Something else has the name of a checkpoint folder.
    #[error("it is not a folder")]
    NotAFolder,
    /// A file that belongs to the checkpoint is not there.
    #[error("{file}: missing{}", missing_hint(.file))]
    FileMissing {
        /// The file.
        file: String,
    },
    /// A file was cut off or grew.
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
        /// What the operating system said.
        reason: String,
    },
    /// A file does not have the form that it must have.
    #[error("{file}: {reason}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A later Bridge wrote the checkpoint.
    #[error("{file}: format version {found}, but this program reads versions up to {supported}")]
    UnsupportedVersion {
        /// The file.
        file: String,
        /// The version it states.
        found: u32,
        /// The newest version this program reads.
        supported: u32,
    },
    /// A checkpoint lies under another iteration's name.
    #[error("the folder's name says iteration {folder}, its {METADATA_FILE} says {metadata}")]
    WrongIteration {
        /// The iteration in the folder's name.
        folder: u64,
        /// The iteration that was saved.
        metadata: u64,
    },
}

impl Damage {
    /// The file it is about; nothing where it is the folder.
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

/// Something wrong with the files of a root that say which checkpoint is the one to resume from.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RootFault {
    /// There are checkpoints but nothing that names one.
    #[error("{LATEST_FILE} is missing")]
    PointerMissing,
    /// The pointer is not a decimal number.
    #[error("{LATEST_FILE}: expected a decimal iteration, found {text:?}")]
    PointerGarbage {
        /// The beginning of what it holds.
        text: String,
    },
    /// The pointer names another iteration than the one saved last.
    #[error(
        "{LATEST_FILE} names iteration {pointer}, but the last save was of iteration {saved}; if that was changed on \
         purpose, ask for iteration {pointer} by number or delete {JOURNAL_FILE}"
    )]
    PointerMismatch {
        /// What the pointer names.
        pointer: u64,
        /// What the journal says was saved last.
        saved: u64,
    },
    /// The journal was changed or cut off.
    #[error("{JOURNAL_FILE}: {reason}")]
    JournalDamaged {
        /// What is wrong with it.
        reason: String,
    },
}

/// A checkpoint that was looked at and found wanting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedCheckpoint {
    /// Its folder.
    pub path: PathBuf,
    /// The iteration it is named after; `None` for a folder whose name says none.
    pub iteration: Option<u64>,
    /// All that is wrong with it.
    pub damage: Vec<Damage>,
}

impl fmt::Display for SkippedCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// A folder that lost everything needs no thousand lines to say so.
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
    /// The checkpoint that was asked for.
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
        None => f.write_str("no intact checkpoint lies before it"),
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

/// What writing, finding or reading a checkpoint can end in.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What was tried, as a verb: "write", "rename".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// No room is left, or a quota is used up. Earlier checkpoints are untouched.
    #[error("the disk is full: cannot {action} {} ({source}); earlier checkpoints are untouched", .path.display())]
    DiskFull {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A checkpoint folder was expected at a path where something else is.
    #[error("{} is not a folder", .path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// The checkpoint to load is damaged and nothing allows taking another.
    #[error("{0}")]
    Damaged(Box<DamagedCheckpoint>),
    /// What says which checkpoint is the latest is damaged and nothing allows going on without it.
    #[error("{}: {fault}\n{}", .root.display(), Offer(*.intact))]
    Root {
        /// The checkpoint root.
        root: PathBuf,
        /// What is wrong.
        fault: RootFault,
        /// The checkpoint that falling back would use; verified.
        intact: Option<u64>,
    },
    /// Checkpoints were saved here, but none that may be used is intact.
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
        /// Checkpoints newer than the latest one, which may belong to an abandoned run and are never taken unasked.
        newer: Vec<u64>,
    },
    /// The iteration asked for was never saved, or is deleted.
    #[error("{} has no checkpoint of iteration {step}; there are: {}", .root.display(), list(.available))]
    StepNotFound {
        /// The checkpoint root.
        root: PathBuf,
        /// The iteration asked for.
        step: u64,
        /// The iterations there are.
        available: Vec<u64>,
    },
    /// A tensor's memory does not fit its type and shape.
    #[error("invalid tensor: {reason}")]
    InvalidTensor {
        /// What is wrong.
        reason: String,
    },
    /// What was given to a save is no checkpoint.
    #[error("cannot save `{name}`: {reason}")]
    InvalidSnapshot {
        /// The tensor, group or file.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The checkpoint has no tensor of that name.
    #[error("checkpoint {} has no tensor `{name}`{}", .path.display(), nearest_name(.nearest.as_ref()))]
    UnknownTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The name asked for.
        name: String,
        /// The most similar name there is.
        nearest: Option<String>,
    },
    /// A tensor has another type or shape than the program expects.
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
        /// The most similar other name that has the type and shape expected.
        nearest: Option<String>,
    },
    /// A part of a tensor was asked for that it does not have, or a buffer has the wrong length for it.
    #[error("tensor `{name}` of shape {shape:?}: cannot read {ranges:?}: {reason}")]
    InvalidSlice {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The part asked for.
        ranges: Vec<Range<usize>>,
        /// What is wrong.
        reason: String,
    },
    /// A retention setting means nothing.
    #[error("{key} = {found}: expected {expected}")]
    InvalidRetention {
        /// The setting.
        key: &'static str,
        /// Its value.
        found: i64,
        /// What it may be.
        expected: &'static str,
    },
    /// The background save ended in a panic.
    #[error("the background save of iteration {iteration} panicked: {message}")]
    SaverPanicked {
        /// What was being saved.
        iteration: u64,
        /// The panic's message.
        message: String,
    },
    /// Another rank could not do its part.
    #[error("rank {rank} failed in {doing}; its own message says why. Earlier checkpoints are untouched")]
    OtherRank {
        /// The first rank that failed.
        rank: usize,
        /// What all ranks were doing.
        doing: &'static str,
    },
    /// Ranks that save together could not communicate.
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl CheckpointError {
    /// For `map_err`: what was tried on which path.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { action, path, source },
            _ => Self::Io { action, path, source },
        }
    }

    /// Whether what the user asked for is at fault (another model, a step or a folder that is not there), not the machine.
    pub fn is_bad_input(&self) -> bool {
        matches!(
            self,
            Self::NotAFolder { .. }
                | Self::StepNotFound { .. }
                | Self::UnknownTensor { .. }
                | Self::TensorMismatch { .. }
                | Self::InvalidRetention { .. }
        )
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
