//! The source of a GPT dataset's tokens: an indexed dataset or generated sequences. Cutting samples
//! from them belongs to the parent module.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::indexed::IndexedDataset;
use crate::random::Pcg64;
use crate::{DataError, npy};

/// Numbered token sequences.
pub trait SequenceStore: Send + Sync {
    /// Name in messages.
    fn name(&self) -> String;

    /// The path prefix, if it is on disk. Caches go there by default.
    fn path(&self) -> Option<&Path>;

    /// Number of sequences.
    fn num_sequences(&self) -> usize;

    /// Tokens of each sequence in `range`.
    fn lengths(&self, range: Range<usize>) -> Vec<u32>;

    /// A checksum of everything that determines the sample order.
    fn checksum(&self) -> u64;

    /// Appends `length` tokens of a sequence from `offset` on; without a length, all up to its end.
    ///
    /// # Errors
    /// A place outside the sequence, unreadable data.
    fn read_into(
        &self,
        sequence: usize,
        offset: usize,
        length: Option<usize>,
        out: &mut Vec<i64>,
    ) -> Result<(), DataError>;
}

impl SequenceStore for IndexedDataset {
    fn name(&self) -> String {
        self.prefix().display().to_string()
    }

    fn path(&self) -> Option<&Path> {
        Some(self.prefix())
    }

    fn num_sequences(&self) -> usize {
        self.len()
    }

    fn lengths(&self, range: Range<usize>) -> Vec<u32> {
        self.lengths_in(range).collect()
    }

    fn checksum(&self) -> u64 {
        self.index_checksum()
    }

    fn read_into(
        &self,
        sequence: usize,
        offset: usize,
        length: Option<usize>,
        out: &mut Vec<i64>,
    ) -> Result<(), DataError> {
        Self::read_into(self, sequence, offset, length, out)
    }
}

/// Generated sequences for runs without data: 100000 documents 1, 2, 3, ... of random length, each
/// closed by the end-of-document token.
#[derive(Debug, Clone)]
pub struct MockStore {
    lengths: Vec<u32>,
    vocab_size: i64,
    eod: i64,
}

impl MockStore {
    const SEQUENCES: usize = 100_000;
    const MAX_LENGTH: u32 = 4096;
    const SEED: u64 = 0;

    /// Token ids stay below `vocab_size`.
    pub fn new(vocab_size: usize, eod: i64) -> Self {
        let mut rng = Pcg64::new(Self::SEED);
        let lengths = (0..Self::SEQUENCES).map(|_| rng.integer(1, Self::MAX_LENGTH)).collect();
        Self { lengths, vocab_size: vocab_size.max(1) as i64, eod }
    }
}

impl SequenceStore for MockStore {
    fn name(&self) -> String {
        "mock data".to_owned()
    }

    fn path(&self) -> Option<&Path> {
        None
    }

    fn num_sequences(&self) -> usize {
        self.lengths.len()
    }

    fn lengths(&self, range: Range<usize>) -> Vec<u32> {
        self.lengths[range].to_vec()
    }

    fn checksum(&self) -> u64 {
        npy::checksum(bytemuck::cast_slice(&self.lengths))
    }

    fn read_into(
        &self,
        sequence: usize,
        offset: usize,
        length: Option<usize>,
        out: &mut Vec<i64>,
    ) -> Result<(), DataError> {
        let out_of_range = |index, len| DataError::OutOfRange { what: "mock sequence".to_owned(), index, len };
        let available = *self.lengths.get(sequence).ok_or_else(|| out_of_range(sequence, self.lengths.len()))? as usize;
        let end = length.map_or(Some(available), |length| offset.checked_add(length));
        let end = end.filter(|&end| end <= available && offset <= end);
        let end = end.ok_or_else(|| out_of_range(offset, available))?;
        out.extend((offset..end).map(|i| if i + 1 == available { self.eod } else { (i as i64 + 1) % self.vocab_size }));
        Ok(())
    }
}

/// The folder of a dataset's index caches without `path_to_cache`.
pub(crate) fn default_cache_folder(prefix: &Path, class: &str) -> PathBuf {
    prefix.join("cache").join(format!("{class}_indices"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mock_lengths_are_numpys() {
        let store = MockStore::new(512, 0);
        let lengths = store.lengths(0..MockStore::SEQUENCES);
        assert_eq!(lengths[..12], [3484, 2609, 2094, 1105, 1261, 168, 309, 68, 718, 3331, 2660, 3738]);
        assert_eq!(lengths[99_997..], [61, 100, 769]);
        assert_eq!(lengths.iter().map(|&length| u64::from(length)).sum::<u64>(), 204_637_097);
    }

    #[test]
    fn mock_tokens_count_up_and_end() {
        let store = MockStore::new(50, 49);
        let mut tokens = Vec::new();
        store.read_into(7, 0, None, &mut tokens).expect("in range");
        assert_eq!(tokens.len(), 68);
        assert_eq!(tokens[..3], [1, 2, 3]);
        assert_eq!(tokens[48..52], [49, 0, 1, 2]);
        assert_eq!(tokens[67], 49);
        tokens.clear();
        store.read_into(7, 66, Some(2), &mut tokens).expect("in range");
        assert_eq!(tokens, [17, 49]);
        assert!(store.read_into(7, 66, Some(3), &mut tokens).is_err());
        assert!(store.read_into(100_000, 0, None, &mut tokens).is_err());
    }
}
