//! Manifest of an output that Bridge wrote: its inputs, sizes and checksums, by which a changed
//! file is found when it is opened. The content of outputs belongs to the callers.

use std::fs::File;
use std::hash::Hasher as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use twox_hash::XxHash3_64;

use crate::indexed::with_suffix;
use crate::{DataError, atomic, untrusted_io};

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;
/// Chunks of a large file that are verified when it is opened, evenly spread, including the first
/// and the last.
const SAMPLES: u64 = 64;

/// Share of the files that is compared with the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// All of small files; of larger ones than 64 MiB as much, evenly spread.
    Sampled,
    /// Every byte of all files.
    Whole,
}

/// Inputs, files and report of a finished output.
#[derive(Serialize, Deserialize)]
pub(crate) struct Record<R> {
    pub(crate) made_from: Value,
    pub(crate) sizes: Vec<u64>,
    /// Checksums of each file; earlier releases wrote none.
    #[serde(default)]
    checksums: Vec<Sums>,
    pub(crate) report: R,
}

/// The checksums of a file, XXH3 of 64 bits in hexadecimal.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sums {
    file: String,
    whole: String,
    sampled: String,
}

fn record_path(output: &Path) -> PathBuf {
    with_suffix(output, ".fingerprint.json")
}

/// Reads the record of an output; `None` if there is no readable record.
pub(crate) fn read<R: DeserializeOwned>(output: &Path) -> Result<Option<Record<R>>, DataError> {
    let path = record_path(output);
    match untrusted_io::read(&path, untrusted_io::SETTINGS_BYTES) {
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(DataError::io("read", &path)(error)),
    }
}

/// Writes the record of a finished output.
pub(crate) fn store<R: Serialize>(
    output: &Path,
    made_from: Value,
    files: &[&Path],
    report: R,
) -> Result<(), DataError> {
    let mut record = Record { made_from, sizes: Vec::new(), checksums: Vec::new(), report };
    for file in files {
        let (open, size) = untrusted_io::open(file).map_err(DataError::io("open", file))?;
        let sum = |depth| checksum(&open, size, depth).map_err(DataError::io("read", file));
        let (whole, sampled) = (sum(Depth::Whole)?, sum(Depth::Sampled)?);
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        record.sizes.push(size);
        record.checksums.push(Sums { file: name, whole, sampled });
    }
    let path = record_path(output);
    let text = serde_json::to_vec_pretty(&record)
        .map_err(|error| DataError::malformed(&path, format!("cannot be written: {error}")))?;
    atomic::write(&path, &text)
}

/// True if there is a record: Bridge writes one before the files of an output appear.
pub(crate) fn is_recorded(output: &Path) -> bool {
    record_path(output).exists()
}

/// Claims an output before its files appear or are replaced: writes a record that vouches for
/// nothing.
pub(crate) fn own(output: &Path) -> Result<(), DataError> {
    atomic::write(&record_path(output), b"{}")
}

/// Compares the files of an output with its record. Returns how many files the record vouches for:
/// none without a record.
///
/// # Errors
/// If a file is missing, or has other bytes than Bridge wrote; a record that cannot be read.
pub fn check(output: &Path, depth: Depth) -> Result<usize, DataError> {
    let path = record_path(output);
    let Some(record) = read::<Value>(output)? else { return Ok(0) };
    for sums in &record.checksums {
        let bad_name = |error: std::io::Error| DataError::malformed(&path, error.to_string());
        let file = untrusted_io::named(path.parent().unwrap_or(Path::new("")), &sums.file).map_err(bad_name)?;
        let (open, size) = untrusted_io::open(&file).map_err(DataError::io("open", &file))?;
        let found = checksum(&open, size, depth).map_err(DataError::io("read", &file))?;
        let expected = if depth == Depth::Whole { &sums.whole } else { &sums.sampled };
        if found != *expected {
            let record = path.display();
            let problem = format!(
                "its bytes are not those that Bridge wrote, by the checksum in {record}: it was changed or damaged; without both files it is \
                 made again"
            );
            return Err(DataError::malformed(&file, problem));
        }
    }
    Ok(record.checksums.len())
}

fn checksum(file: &File, size: u64, depth: Depth) -> std::io::Result<String> {
    let mut hasher = XxHash3_64::default();
    hasher.write(&size.to_le_bytes());
    let mut chunk = vec![0; CHUNK];
    let (whole, length) = (size.div_ceil(CHUNK as u64), CHUNK as u64);
    let sampled = depth == Depth::Sampled && whole > SAMPLES;
    for number in 0..if sampled { SAMPLES } else { whole } {
        // The last sample ends with the file.
        let start = if sampled {
            (u128::from(size - length) * u128::from(number) / u128::from(SAMPLES - 1)) as u64
        } else {
            number * length
        };
        let bytes = &mut chunk[..length.min(size - start) as usize];
        file.read_exact_at(bytes, start)?;
        hasher.write(bytes);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_changed_byte_is_found_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let (output, file) = (folder.path().join("text"), folder.path().join("text.bin"));
        assert_eq!(check(&output, Depth::Whole).unwrap(), 0, "without a record nothing vouches for it");
        fs::write(&file, [7; 5000]).unwrap();
        store(&output, Value::Null, &[&file], 3).unwrap();
        assert_eq!(check(&output, Depth::Sampled).unwrap(), 1);
        assert_eq!(read::<u64>(&output).unwrap().unwrap().report, 3);
        for depth in [Depth::Sampled, Depth::Whole] {
            let mut bytes = vec![7; 5000];
            bytes[4321] = 6;
            fs::write(&file, &bytes).unwrap();
            let error = check(&output, depth).unwrap_err().to_string();
            assert!(error.contains("text.bin") && error.contains("checksum"), "{error}");
        }
        fs::remove_file(&file).unwrap();
        assert!(check(&output, Depth::Sampled).unwrap_err().to_string().contains("text.bin"));
        own(&output).unwrap();
        assert_eq!(check(&output, Depth::Sampled).unwrap(), 0);
    }

    #[test]
    fn large_files_are_sampled_up_to_their_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (output, path) = (folder.path().join("text"), folder.path().join("text.bin"));
        let size = SAMPLES * CHUNK as u64 * 3 + 12_345;
        let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        store(&output, Value::Null, &[&path], ()).unwrap();
        let gap = CHUNK as u64 + 5;
        for (at, is_sampled) in [(0, true), (size - 1, true), (gap, false)] {
            file.write_all_at(&[1], at).unwrap();
            assert_eq!(check(&output, Depth::Sampled).is_err(), is_sampled, "byte {at}");
            assert!(check(&output, Depth::Whole).is_err(), "byte {at}");
            file.write_all_at(&[0], at).unwrap();
        }
        assert_eq!(check(&output, Depth::Whole).unwrap(), 1);
    }
}
