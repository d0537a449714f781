//! Opening and reading an indexed dataset. The format is described in the parent module; checks are
//! in `checks`, writing is in `writer`.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use memmap2::Mmap;
use twox_hash::XxHash3_64;

use super::checks::Header;
use super::{HEADER_BYTES, TokenDtype, bin_path, idx_path};
use crate::manifest::{self, Depth};
use crate::{DataError, untrusted_io};

/// Access to `.bin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BinAccess {
    /// Through a memory map.
    #[default]
    Mmap,
    /// With positioned reads, for file systems where memory maps are slow.
    Pread,
}

/// Presence of a mode byte for each sequence in `.idx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ModeColumn {
    /// Text datasets.
    #[default]
    Absent,
    /// Multimodal datasets.
    Present,
}

enum Bin {
    Map(Mmap),
    File(File),
}

/// An open `.bin`/`.idx` pair. Opening takes time in the size of the index, not in the number of
/// tokens; any thread may read.
///
/// ```ignore
/// let dataset = IndexedDataset::open("corpus/shakespeare", BinAccess::Mmap)?;
/// let first = dataset.sequence(0)?;
/// assert_eq!(first.len(), dataset.sequence_length(0));
/// ```
pub struct IndexedDataset {
    prefix: PathBuf,
    pub(super) index: Mmap,
    bin: Bin,
    pub(super) bin_bytes: u64,
    pub(super) dtype: TokenDtype,
    pub(super) sequences: usize,
    pub(super) boundaries: usize,
    modes: ModeColumn,
    checksum: OnceLock<u64>,
}

impl std::fmt::Debug for IndexedDataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IndexedDataset")
            .field("prefix", &self.prefix)
            .field("dtype", &self.dtype)
            .field("sequences", &self.sequences)
            .finish_non_exhaustive()
    }
}

impl IndexedDataset {
    /// Opens `{prefix}.bin` and `{prefix}.idx` of a text dataset and checks that they match.
    ///
    /// # Errors
    /// Missing files, a wrong magic, version or type code, an index or `.bin` that is too short,
    /// offsets outside `.bin`, document boundaries that do not run from 0 to the number of
    /// sequences; files that were changed since Bridge made them.
    pub fn open(prefix: impl AsRef<Path>, access: BinAccess) -> Result<Self, DataError> {
        Self::open_with_modes(prefix, access, ModeColumn::Absent)
    }

    /// As [`IndexedDataset::open`], for an index with or without a mode column.
    ///
    /// # Errors
    /// As [`IndexedDataset::open`].
    pub fn open_with_modes(prefix: impl AsRef<Path>, access: BinAccess, modes: ModeColumn) -> Result<Self, DataError> {
        let prefix = prefix.as_ref().to_owned();
        let index_path = idx_path(&prefix);
        manifest::check(&prefix, Depth::Sampled)?;
        let index = untrusted_io::map(&index_path).map_err(DataError::io("open the index", &index_path))?;
        let header = Header::parse(&index, &index_path)?;
        header.check_size(index.len(), modes, &index_path)?;

        let data_path = bin_path(&prefix);
        let opening = || DataError::io("open the tokens", &data_path);
        let (bin, bin_bytes) = match access {
            BinAccess::Mmap => untrusted_io::map(&data_path).map(|map| (map.len() as u64, Bin::Map(map))),
            BinAccess::Pread => untrusted_io::open(&data_path).map(|(file, size)| (size, Bin::File(file))),
        }
        .map(|(size, bin)| (bin, size))
        .map_err(opening())?;
        let dataset = Self {
            prefix,
            index,
            bin,
            bin_bytes,
            dtype: header.dtype,
            sequences: header.sequences,
            boundaries: header.boundaries,
            modes,
            checksum: OnceLock::new(),
        };
        dataset.check_boundaries(&index_path)?;
        dataset.check_offsets(&index_path, &data_path)?;
        Ok(dataset)
    }

    /// The path without `.bin` and `.idx`.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// The stored token type.
    pub fn dtype(&self) -> TokenDtype {
        self.dtype
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.sequences
    }

    /// True if there are no sequences.
    pub fn is_empty(&self) -> bool {
        self.sequences == 0
    }

    /// Number of documents (a document is one or more sequences).
    pub fn num_documents(&self) -> usize {
        self.boundaries.saturating_sub(1)
    }

    /// Bytes of `.bin`.
    pub fn bin_bytes(&self) -> u64 {
        self.bin_bytes
    }

    /// Total number of tokens. Needs a pass over the lengths.
    pub fn num_tokens(&self) -> u64 {
        self.lengths().map(|length| length as u64).sum()
    }

    /// Tokens of each sequence, in order.
    pub fn lengths(&self) -> impl Iterator<Item = u32> + '_ {
        self.lengths_in(0..self.sequences)
    }

    /// Tokens of the sequences in `range`.
    ///
    /// # Panics
    /// If the range leaves 0..[`IndexedDataset::len`].
    pub fn lengths_in(&self, range: Range<usize>) -> impl Iterator<Item = u32> + '_ {
        let bytes = &self.index[HEADER_BYTES + 4 * range.start..HEADER_BYTES + 4 * range.end];
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(array(word)))
    }

    /// Tokens of sequence `i`.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn sequence_length(&self, i: usize) -> usize {
        assert!(i < self.sequences, "sequence {i} of {}", self.sequences);
        u32::from_le_bytes(array(&self.index[HEADER_BYTES + 4 * i..])) as usize
    }

    /// The sequences of document `document`, or `None` beyond the last.
    pub fn document(&self, document: usize) -> Option<Range<usize>> {
        (document < self.num_documents())
            .then(|| self.boundary(document) as usize..self.boundary(document + 1) as usize)
    }

    /// The mode byte of sequence `i`; 0 in a text dataset.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn mode(&self, i: usize) -> i8 {
        assert!(i < self.sequences, "sequence {i} of {}", self.sequences);
        match self.modes {
            ModeColumn::Absent => 0,
            ModeColumn::Present => self.index[HEADER_BYTES + 12 * self.sequences + 8 * self.boundaries + i] as i8,
        }
    }

    /// All tokens of sequence `i`.
    ///
    /// # Errors
    /// As [`IndexedDataset::read_into`].
    pub fn sequence(&self, i: usize) -> Result<Vec<i64>, DataError> {
        self.get(i, 0, None)
    }

    /// `length` tokens of sequence `i` from token `offset` on; without a length, all up to its end.
    ///
    /// # Errors
    /// As [`IndexedDataset::read_into`].
    pub fn get(&self, i: usize, offset: usize, length: Option<usize>) -> Result<Vec<i64>, DataError> {
        let mut tokens = Vec::new();
        self.read_into(i, offset, length, &mut tokens)?;
        Ok(tokens)
    }

    /// The tokens of a contiguous run of sequences, one vector per sequence.
    ///
    /// # Errors
    /// As [`IndexedDataset::read_into`].
    pub fn slice(&self, range: Range<usize>) -> Result<Vec<Vec<i64>>, DataError> {
        range.map(|i| self.sequence(i)).collect()
    }

    /// [`IndexedDataset::get`], appended to `out`.
    ///
    /// # Errors
    /// If the index, offset or length is out of range, a read fails, or a float dataset has a value
    /// that is not an integer.
    pub fn read_into(
        &self,
        i: usize,
        offset: usize,
        length: Option<usize>,
        out: &mut Vec<i64>,
    ) -> Result<(), DataError> {
        let range = self.byte_range(i, offset, length)?;
        self.with_bytes(range, |bytes| append_integers(self.dtype, bytes, out))?.map_err(|value| {
            DataError::malformed(
                &bin_path(&self.prefix),
                format!("sequence {i} holds {value}, which is not an integer token id"),
            )
        })
    }

    /// All values of sequence `i` as floats (exact for every type but 64-bit integers beyond 2^53).
    ///
    /// # Errors
    /// An index out of range, a failing read.
    pub fn floats(&self, i: usize) -> Result<Vec<f64>, DataError> {
        let range = self.byte_range(i, 0, None)?;
        self.with_bytes(range, |bytes| floats_of(self.dtype, bytes))
    }

    /// The stored bytes of sequence `i`.
    ///
    /// # Errors
    /// An index out of range, a failing read.
    pub fn raw(&self, i: usize) -> Result<Vec<u8>, DataError> {
        let range = self.byte_range(i, 0, None)?;
        self.with_bytes(range, <[u8]>::to_vec)
    }

    /// A checksum of the index, which distinguishes versions of a dataset.
    pub(crate) fn index_checksum(&self) -> u64 {
        *self.checksum.get_or_init(|| XxHash3_64::oneshot(&self.index))
    }

    /// The document boundary array, as stored.
    pub(crate) fn boundaries(&self) -> impl Iterator<Item = i64> + '_ {
        (0..self.boundaries).map(|i| self.boundary(i))
    }

    pub(super) fn boundary(&self, i: usize) -> i64 {
        i64::from_le_bytes(array(&self.index[HEADER_BYTES + 12 * self.sequences + 8 * i..]))
    }

    pub(super) fn offset(&self, i: usize) -> i64 {
        i64::from_le_bytes(array(&self.index[HEADER_BYTES + 4 * self.sequences + 8 * i..]))
    }

    fn byte_range(&self, i: usize, offset: usize, length: Option<usize>) -> Result<Range<u64>, DataError> {
        let out_of_range = |what: &str, index, len| DataError::OutOfRange {
            what: format!("{}: {what}", self.prefix.display()),
            index,
            len,
        };
        if i >= self.sequences {
            return Err(out_of_range("sequence", i, self.sequences));
        }
        let available = self.sequence_length(i);
        if offset > available {
            return Err(out_of_range("token offset", offset, available));
        }
        let length = length.unwrap_or(available - offset);
        if length > available - offset {
            return Err(out_of_range("end of tokens", offset.saturating_add(length), available));
        }
        // Checked when opened; checked again because the mapped index may have changed since.
        let size = self.dtype.size() as u64;
        let start = u64::try_from(self.offset(i))
            .ok()
            .and_then(|start| start.checked_add(offset as u64 * size))
            .filter(|start| start.checked_add(length as u64 * size).is_some_and(|end| end <= self.bin_bytes));
        match start {
            Some(start) => Ok(start..start + length as u64 * size),
            None => Err(out_of_range("byte offset of a sequence", i, self.sequences)),
        }
    }

    fn with_bytes<R>(&self, range: Range<u64>, use_bytes: impl FnOnce(&[u8]) -> R) -> Result<R, DataError> {
        match &self.bin {
            Bin::Map(map) => Ok(use_bytes(&map[range.start as usize..range.end as usize])),
            Bin::File(file) => {
                let mut buffer = vec![0; (range.end - range.start) as usize];
                read_exact_at(file, &mut buffer, range.start)
                    .map_err(DataError::io("read tokens from", &bin_path(&self.prefix)))?;
                Ok(use_bytes(&buffer))
            }
        }
    }
}

/// The first `N` bytes of a slice that is at least that long.
pub(super) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[..N]);
    word
}

/// The `N`-byte words of a table.
pub(super) fn words<const N: usize>(bytes: &[u8]) -> impl ExactSizeIterator<Item = [u8; N]> + '_ {
    bytes.chunks_exact(N).map(array)
}

/// Appends stored integers; a float that is not an integer is the error.
fn append_integers(dtype: TokenDtype, bytes: &[u8], out: &mut Vec<i64>) -> Result<(), f64> {
    match dtype {
        TokenDtype::U8 => out.extend(bytes.iter().map(|&byte| i64::from(byte))),
        TokenDtype::I8 => out.extend(bytes.iter().map(|&byte| i64::from(byte as i8))),
        TokenDtype::I16 => out.extend(words(bytes).map(|word| i64::from(i16::from_le_bytes(word)))),
        TokenDtype::U16 => out.extend(words(bytes).map(|word| i64::from(u16::from_le_bytes(word)))),
        TokenDtype::I32 => out.extend(words(bytes).map(|word| i64::from(i32::from_le_bytes(word)))),
        TokenDtype::I64 => out.extend(words(bytes).map(i64::from_le_bytes)),
        TokenDtype::F32 | TokenDtype::F64 => {
            for value in floats_of(dtype, bytes) {
                if value.fract() != 0.0 || !(-9.0e18..=9.0e18).contains(&value) {
                    return Err(value);
                }
                out.push(value as i64);
            }
        }
    }
    Ok(())
}

fn floats_of(dtype: TokenDtype, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        TokenDtype::F32 => words(bytes).map(|word| f64::from(f32::from_le_bytes(word))).collect(),
        TokenDtype::F64 => words(bytes).map(f64::from_le_bytes).collect(),
        integer => {
            let mut tokens = Vec::new();
            // Integer types never report a fraction.
            let _ = append_integers(integer, bytes, &mut tokens);
            tokens.into_iter().map(|token| token as f64).collect()
        }
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    while !buffer.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buffer, offset)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
        }
    }
    Ok(())
}
