//! Examples on disk: one file of 32-bit words with the ids of each and the runs of its weights, one
//! that says where each begins, and one of checksums.
//!
//! | file | content, little-endian |
//! |---|---|
//! | `.examples` | for each example its ids, then for each run of equal weights its length and the weight as float32 |
//! | `.examples.idx` | magic, version, number of examples; for each the word where it begins (u64), its ids and its runs (u32 each) |
//! | `.examples.sums` | for each record its checksum (u64), by which equal ones are found |

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::example::Example;
use crate::atomic::TempFile;
use crate::indexed::with_suffix;
use crate::{DataError, untrusted_io};

const MAGIC: &[u8; 8] = b"BRDGSFT\0";
const HEADER: usize = 24;
const VERSION: u64 = 1;
/// Bytes of an entry of the index.
const ENTRY: usize = 16;

/// The files of a store.
pub(super) fn paths(prefix: &Path) -> [PathBuf; 3] {
    [".examples", ".examples.idx", ".examples.sums"].map(|suffix| with_suffix(prefix, suffix))
}

/// The checksums of a store's records. Fails on a file that is missing or cannot be read.
pub(super) fn sums(prefix: &Path) -> Result<Vec<u64>, DataError> {
    let [_, _, path] = paths(prefix);
    let (_, size) = untrusted_io::open(&path).map_err(DataError::io("open", &path))?;
    // An empty file cannot be mapped.
    if size == 0 {
        return Ok(Vec::new());
    }
    let bytes = untrusted_io::map(&path).map_err(DataError::io("open", &path))?;
    let sum = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    Ok(bytes.chunks_exact(8).map(sum).collect())
}

/// Writes a store. Its files get their final names when it is finished.
pub(super) struct StoreWriter {
    prefix: PathBuf,
    words: BufWriter<TempFile>,
    index: BufWriter<TempFile>,
    sums: BufWriter<TempFile>,
    next: u64,
    len: u64,
}

impl StoreWriter {
    pub(super) fn create(prefix: &Path) -> Result<Self, DataError> {
        let [words, index, sums] = paths(prefix);
        let open = |path: &Path| Ok::<_, DataError>(BufWriter::with_capacity(1 << 20, TempFile::beside(path)?));
        let (words, index, sums) = (open(&words)?, open(&index)?, open(&sums)?);
        Ok(Self { prefix: prefix.to_owned(), words, index, sums, next: 0, len: 0 })
    }

    pub(super) fn add(&mut self, example: &Example) -> Result<(), DataError> {
        let mut words: Vec<u32> = example.ids.iter().map(|id| *id as u32).collect();
        let mut runs = 0u32;
        for run in example.weights.chunk_by(|a, b| a.to_bits() == b.to_bits()) {
            words.extend([run.len() as u32, run[0].to_bits()]);
            runs += 1;
        }
        let mut entry = [0; ENTRY];
        entry[..8].copy_from_slice(&self.next.to_le_bytes());
        entry[8..12].copy_from_slice(&(example.ids.len() as u32).to_le_bytes());
        entry[12..].copy_from_slice(&runs.to_le_bytes());
        self.next += words.len() as u64;
        self.len += 1;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let written = self.words.write_all(&bytes).and_then(|()| self.index.write_all(&entry));
        written.map_err(DataError::io("write examples to", &self.prefix))
    }

    /// Adds the checksum of a record.
    pub(super) fn add_checksum(&mut self, sum: u64) -> Result<(), DataError> {
        let written = self.sums.write_all(&sum.to_le_bytes());
        written.map_err(DataError::io("write examples to", &self.prefix))
    }

    /// Gives the files their names.
    pub(super) fn finish(self) -> Result<(), DataError> {
        let Self { prefix, words, mut index, sums, len, .. } = self;
        let mut trailer = MAGIC.to_vec();
        trailer.extend(VERSION.to_le_bytes());
        trailer.extend(len.to_le_bytes());
        index.write_all(&trailer).map_err(DataError::io("write examples to", &prefix))?;
        for file in [words, index, sums] {
            let file = file.into_inner().map_err(|error| error.into_error());
            file.map_err(DataError::io("write examples to", &prefix))?.publish()?;
        }
        Ok(())
    }
}

/// A store that is read.
pub(super) struct Store {
    prefix: PathBuf,
    words: Option<Mmap>,
    index: Mmap,
    len: usize,
    vocab_size: usize,
}

impl Store {
    /// Opens a store of ids below `vocab_size`. Fails on files that are missing, or not in the
    /// format of [`StoreWriter`].
    pub(super) fn open(prefix: &Path, vocab_size: usize) -> Result<Self, DataError> {
        let [words_path, index_path, _] = paths(prefix);
        let index = untrusted_io::map(&index_path).map_err(DataError::io("open", &index_path))?;
        let (_, size) = untrusted_io::open(&words_path).map_err(DataError::io("open", &words_path))?;
        // An empty file cannot be mapped.
        let words = match size {
            0 => None,
            _ => Some(untrusted_io::map(&words_path).map_err(DataError::io("open", &words_path))?),
        };
        let malformed = || DataError::malformed(&index_path, "is not an index of examples");
        let entries = index.len().checked_sub(HEADER).ok_or_else(malformed)?;
        let trailer = &index[entries..];
        let number = |at: usize| u64::from_le_bytes(trailer[at..at + 8].try_into().unwrap_or_default());
        let len = usize::try_from(number(16)).map_err(|_| malformed())?;
        if &trailer[..8] != MAGIC || number(8) != VERSION || len.checked_mul(ENTRY) != Some(entries) {
            return Err(malformed());
        }
        Ok(Self { prefix: prefix.to_owned(), words, index, len, vocab_size })
    }

    pub(super) fn prefix(&self) -> &Path {
        &self.prefix
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn entry(&self, at: usize) -> (u64, usize, usize) {
        let entry = &self.index[at * ENTRY..(at + 1) * ENTRY];
        let count = |from: usize| u32::from_le_bytes(entry[from..from + 4].try_into().unwrap_or_default()) as usize;
        (u64::from_le_bytes(entry[..8].try_into().unwrap_or_default()), count(8), count(12))
    }

    /// Ids of example `at`.
    pub(super) fn length(&self, at: usize) -> usize {
        self.entry(at).1
    }

    /// Example `at`. Fails on an index out of range; content that is damaged.
    pub(super) fn get(&self, at: usize) -> Result<(Vec<i64>, Vec<f32>), DataError> {
        if at >= self.len {
            let what = self.prefix.display().to_string();
            return Err(DataError::OutOfRange { what, index: at, len: self.len });
        }
        let damaged = || DataError::malformed(&paths(&self.prefix)[0], format!("example {at} is damaged"));
        let (start, ids, runs) = self.entry(at);
        let begin = usize::try_from(start).ok().and_then(|start| start.checked_mul(4)).ok_or_else(damaged)?;
        let end = begin.checked_add(4 * (ids + 2 * runs)).ok_or_else(damaged)?;
        let bytes = self.words.as_ref().and_then(|words| words.get(begin..end)).ok_or_else(damaged)?;
        let words: Vec<u32> =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
        let (ids, runs) = words.split_at(ids);
        let lengths: u64 = runs.chunks_exact(2).map(|run| u64::from(run[0])).sum();
        if lengths != ids.len() as u64 || ids.iter().any(|id| *id as usize >= self.vocab_size) {
            return Err(damaged());
        }
        let weights = runs.chunks_exact(2).flat_map(|run| std::iter::repeat_n(f32::from_bits(run[1]), run[0] as usize));
        Ok((ids.iter().map(|id| i64::from(*id)).collect(), weights.collect()))
    }
}
