//! The two small files of a checkpoint root that say which checkpoint is the latest. Verifies no
//! checkpoint.
//!
//! The pointer is the file that Megatron's tools use: a decimal number. A flipped bit can turn it
//! into another existing number, so the journal records, under a checksum, the progress of the last
//! save. It is written before the checkpoint is published and again after the pointer is replaced;
//! together the two distinguish an interrupted save from damage.

use std::path::Path;
use std::{fs, io};

use bridge_data::untrusted_io;
use serde::{Deserialize, Serialize};

use super::checksum::{Checksum, SealError, seal, unseal};
use super::error::CheckpointError;
use super::fsio::replace_file;
use super::names::{BEST_FILE, JOURNAL_FILE, LATEST_FILE};

/// The content of the pointer file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pointer {
    Missing,
    /// The beginning of a content that is not a number.
    Garbage(String),
    Iteration(u64),
}

/// The state of the last save.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Journal {
    /// A checkpoint is complete under its temporary name and about to be published.
    Saving {
        iteration: u64,
        /// Distinguishes the new checkpoint from an older one of the same iteration.
        metadata_checksum: Checksum,
        /// The iteration that the pointer named before.
        previous: Option<u64>,
    },
    /// The checkpoint is published and the pointer names it.
    Saved { iteration: u64 },
}

/// The content of the journal file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JournalState {
    Missing,
    Damaged(String),
    Valid(Journal),
}

pub(super) fn read_pointer(root: &Path) -> Result<Pointer, CheckpointError> {
    pointer_in(&root.join(LATEST_FILE))
}

/// The checkpoint with the lowest validation loss.
pub(super) fn read_best(root: &Path) -> Result<Pointer, CheckpointError> {
    pointer_in(&root.join(BEST_FILE))
}

fn pointer_in(path: &Path) -> Result<Pointer, CheckpointError> {
    Ok(read_if_there(path)?.map_or(Pointer::Missing, |bytes| parse_pointer(&bytes)))
}

/// Accepts exactly the content that [`write_pointer`] and Megatron write: digits, and optionally
/// one line feed.
fn parse_pointer(bytes: &[u8]) -> Pointer {
    const SHOWN: usize = 40;
    let digits = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let number = std::str::from_utf8(digits)
        .ok()
        .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))
        .and_then(|text| text.parse().ok());
    number.map_or_else(
        || Pointer::Garbage(String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]).into_owned()),
        Pointer::Iteration,
    )
}

pub(super) fn write_pointer(root: &Path, iteration: u64) -> Result<(), CheckpointError> {
    replace_file(&root.join(LATEST_FILE), format!("{iteration}\n").as_bytes())
}

/// Names the checkpoint with the lowest validation loss.
pub(super) fn write_best(root: &Path, iteration: u64) -> Result<(), CheckpointError> {
    replace_file(&root.join(BEST_FILE), format!("{iteration}\n").as_bytes())
}

pub(super) fn read_journal(root: &Path) -> Result<JournalState, CheckpointError> {
    let Some(bytes) = read_if_there(&root.join(JOURNAL_FILE))? else { return Ok(JournalState::Missing) };
    Ok(match unseal(&bytes) {
        Ok((journal, _)) => JournalState::Valid(journal),
        Err(SealError::Malformed(reason)) => JournalState::Damaged(reason),
        Err(SealError::Mismatch { expected, found }) => {
            JournalState::Damaged(format!("expected checksum {expected}, found {found}"))
        }
    })
}

pub(super) fn write_journal(root: &Path, journal: &Journal) -> Result<(), CheckpointError> {
    let path = root.join(JOURNAL_FILE);
    let (bytes, _) = seal(journal).map_err(|e| CheckpointError::io("write", &path)(e.into()))?;
    replace_file(&path, &bytes)
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, CheckpointError> {
    match untrusted_io::read(path, untrusted_io::SETTINGS_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        // A dangling link is not a missing file: the target was meant to exist.
        Err(e) if e.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => Ok(None),
        Err(e) => Err(CheckpointError::io("read", path)(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_read_strictly() {
        for (text, expected) in [("100\n", 100), ("100", 100), ("0000100", 100), ("0", 0)] {
            assert_eq!(parse_pointer(text.as_bytes()), Pointer::Iteration(expected), "{text:?}");
        }
        for text in ["", "\n", "release", "-1", "+1", "1 0", " 100", "100\r\n", "100\n\n", "99999999999999999999999"] {
            assert_eq!(parse_pointer(text.as_bytes()), Pointer::Garbage(text.to_owned()), "{text:?}");
        }
        assert!(matches!(parse_pointer(&[0xff; 1000]), Pointer::Garbage(text) if text.chars().count() == 40));
    }

    #[test]
    fn both_files_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(read_pointer(root).unwrap(), Pointer::Missing);
        assert_eq!(read_journal(root).unwrap(), JournalState::Missing);
        write_pointer(root, 100).unwrap();
        assert_eq!(read_pointer(root).unwrap(), Pointer::Iteration(100));
        for previous in [None, Some(50)] {
            let journal = Journal::Saving { iteration: 100, metadata_checksum: Checksum::compute(b"m"), previous };
            write_journal(root, &journal).unwrap();
            assert_eq!(read_journal(root).unwrap(), JournalState::Valid(journal));
        }
        write_journal(root, &Journal::Saved { iteration: 100 }).unwrap();
        fs::write(root.join(JOURNAL_FILE), b"{}").unwrap();
        assert!(matches!(read_journal(root).unwrap(), JournalState::Damaged(_)));
    }

    #[test]
    fn a_dangling_pointer_link_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join(LATEST_FILE)).unwrap();
        assert!(read_pointer(dir.path()).is_err());
    }
}
