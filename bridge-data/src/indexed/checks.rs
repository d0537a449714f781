//! Checks when an indexed dataset is opened: header, sizes, document boundaries, offsets of
//! sequences.

use std::path::Path;

use rayon::prelude::*;

use super::reader::{IndexedDataset, ModeColumn, array, words};
use super::{HEADER_BYTES, MAGIC, TokenDtype, VERSION};
use crate::DataError;

/// Entries of the index per task.
const SCAN: usize = 1 << 16;

/// The header of `.idx`.
pub(super) struct Header {
    pub(super) dtype: TokenDtype,
    pub(super) sequences: usize,
    pub(super) boundaries: usize,
}

impl Header {
    /// Reads the header.
    pub(super) fn parse(index: &[u8], path: &Path) -> Result<Self, DataError> {
        if !index.starts_with(MAGIC) {
            let shown = String::from_utf8_lossy(&index[..index.len().min(MAGIC.len())]).into_owned();
            return Err(DataError::malformed(
                path,
                format!("not a Megatron index: expected magic \"MMIDIDX\\0\\0\", found {shown:?}"),
            ));
        }
        if index.len() < HEADER_BYTES {
            return Err(DataError::Truncated {
                path: path.to_owned(),
                part: "header",
                expected: HEADER_BYTES as u64,
                found: index.len() as u64,
            });
        }
        let version = u64::from_le_bytes(array(&index[9..]));
        if version != VERSION {
            return Err(DataError::malformed(
                path,
                format!("unsupported index version: expected {VERSION}, found {version}"),
            ));
        }
        let dtype = TokenDtype::from_code(index[17]).ok_or_else(|| {
            let known: Vec<String> =
                TokenDtype::ALL.iter().map(|dtype| format!("{} {}", dtype.code(), dtype.name())).collect();
            DataError::malformed(
                path,
                format!("unknown token type code {}: expected one of {}", index[17], known.join(", ")),
            )
        })?;
        let count = |at: usize, what: &str| {
            let value = u64::from_le_bytes(array(&index[at..]));
            usize::try_from(value)
                .ok()
                .filter(|&count| count < 1 << 48)
                .ok_or_else(|| DataError::malformed(path, format!("impossible number of {what}: {value}")))
        };
        Ok(Self { dtype, sequences: count(18, "sequences")?, boundaries: count(26, "documents")? })
    }

    /// Checks the length of the file against the header.
    pub(super) fn check_size(&self, found: usize, modes: ModeColumn, path: &Path) -> Result<(), DataError> {
        let mode_bytes = match modes {
            ModeColumn::Absent => 0,
            ModeColumn::Present => self.sequences,
        };
        let expected = HEADER_BYTES + 12 * self.sequences + 8 * self.boundaries + mode_bytes;
        if found < expected {
            return Err(DataError::Truncated {
                path: path.to_owned(),
                part: "index",
                expected: expected as u64,
                found: found as u64,
            });
        }
        Ok(())
    }
}

impl IndexedDataset {
    /// Document boundaries must cover all sequences, in order.
    pub(super) fn check_boundaries(&self, index_path: &Path) -> Result<(), DataError> {
        let expected = format!("0 .. {} (the number of sequences)", self.sequences);
        let (first, last) = match self.boundaries {
            0 => return Err(DataError::malformed(index_path, "there are no document boundaries")),
            count => (self.boundary(0), self.boundary(count - 1)),
        };
        if first != 0 || last != self.sequences as i64 {
            return Err(DataError::malformed(
                index_path,
                format!("document boundaries must run over {expected}, found {first} .. {last}"),
            ));
        }
        let start = HEADER_BYTES + 12 * self.sequences;
        let table = &self.index[start..start + 8 * self.boundaries];
        let ordered = |part: &[u8]| words(part).map(i64::from_le_bytes).is_sorted();
        // Parts overlap by one boundary, so that every pair is compared.
        let sorted = (0..self.boundaries.div_ceil(SCAN)).into_par_iter().all(|part| {
            let end = ((part + 1) * SCAN + 1).min(self.boundaries);
            ordered(&table[8 * part * SCAN..8 * end])
        });
        let disorder =
            if sorted { None } else { (1..self.boundaries).find(|&i| self.boundary(i) < self.boundary(i - 1)) };
        disorder.map_or(Ok(()), |i| {
            Err(DataError::malformed(
                index_path,
                format!(
                    "document boundary {i} is {}, below the previous one, {}",
                    self.boundary(i),
                    self.boundary(i - 1)
                ),
            ))
        })
    }

    /// Every sequence must lie inside `.bin`: one parallel pass over the index.
    pub(super) fn check_offsets(&self, index_path: &Path, data_path: &Path) -> Result<(), DataError> {
        let size = self.dtype.size() as u64;
        let end_of = |length: [u8; 4], offset: [u8; 8]| {
            let length = u64::try_from(i32::from_le_bytes(length)).ok()?;
            let offset = u64::try_from(i64::from_le_bytes(offset)).ok()?;
            offset.is_multiple_of(size).then(|| offset.checked_add(length * size)).flatten()
        };
        let (lengths, rest) = self.index[HEADER_BYTES..].split_at(4 * self.sequences);
        let offsets = &rest[..8 * self.sequences];
        // The largest end in each part, or the first sequence without a valid end.
        let scan = |(part, (lengths, offsets)): (usize, (&[u8], &[u8]))| {
            let mut largest = 0;
            for (i, (length, offset)) in words(lengths).zip(words(offsets)).enumerate() {
                largest = largest.max(end_of(length, offset).ok_or(part * SCAN + i)?);
            }
            Ok(largest)
        };
        let parts = lengths.par_chunks(4 * SCAN).zip(offsets.par_chunks(8 * SCAN)).enumerate();
        let ends: Vec<Result<u64, usize>> = parts.map(scan).collect();
        let wrong = ends.iter().find_map(|end| end.err());
        if let Some(i) = wrong {
            return Err(DataError::malformed(
                index_path,
                format!(
                    "sequence {i} has length {} and byte offset {}; lengths must not be negative and offsets must be \
                     multiples of {size}",
                    i32::from_le_bytes(array(&self.index[HEADER_BYTES + 4 * i..])),
                    self.offset(i)
                ),
            ));
        }
        let needed = ends.into_iter().flatten().max().unwrap_or(0);
        if needed > self.bin_bytes {
            return Err(DataError::Truncated {
                path: data_path.to_owned(),
                part: "tokens",
                expected: needed,
                found: self.bin_bytes,
            });
        }
        Ok(())
    }
}
