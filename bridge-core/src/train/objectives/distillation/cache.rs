//! Teacher's outputs for samples, on disk: a file a sample, found by the teacher's input. An
//! incomplete file counts as missing.

use std::path::{Path, PathBuf};

use bridge_data::untrusted_io;
use bridge_kernels::rotary::Positions;
use burn::tensor::{Int, Tensor};
use twox_hash::XxHash3_128;

use super::top::Best;
use crate::model::Batch;
use crate::train::error::CommonError;

/// First bytes of a file.
const MAGIC: &[u8; 8] = b"BRIDGKD1";
/// Bytes of key and checksum.
const HASH: usize = 16;
/// Bytes before the numbers: magic, key, tokens, best tokens of each.
const HEAD: usize = MAGIC.len() + HASH + 8;

/// The folder of one teacher's files.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    /// Key of the teacher and of the other inputs that determine the content.
    of: u128,
    k: usize,
    /// Tokens that there are.
    rows: usize,
}

impl Cache {
    /// A cache in `root`. `of` identifies everything besides the sample that determines the cached
    /// values.
    pub fn new(root: &Path, of: &str, rows: usize, k: usize) -> Self {
        let of = XxHash3_128::oneshot(of.as_bytes());
        Self { folder: root.join(format!("{of:032x}")), of, k, rows }
    }

    /// Cached outputs of a micro-batch, if those of all its samples exist and are complete.
    pub fn read(&self, batch: &Batch) -> Option<Best> {
        let [_, length] = batch.tokens.dims();
        let parts: Option<Vec<Best>> = self.keys(batch).into_iter().map(|key| self.read_sample(key, length)).collect();
        Some(Best::join(parts?))
    }

    /// Caches the teacher's outputs for a micro-batch.
    pub fn write(&self, batch: &Batch, best: &Best) -> Result<(), CommonError> {
        let [_, length] = batch.tokens.dims();
        for (key, sample) in self.keys(batch).into_iter().zip(best.sequences(length)) {
            let path = self.path(key);
            let folder = path.parent().unwrap_or(&self.folder);
            std::fs::create_dir_all(folder)
                .and_then(|()| untrusted_io::replace(&path, &encode(key, &sample)))
                .map_err(|error| CommonError::log(format!("distillation.cache: {}", path.display()), error))?;
        }
        Ok(())
    }

    fn read_sample(&self, key: u128, length: usize) -> Option<Best> {
        let size = HEAD + length * (self.k * 8 + 4) + HASH;
        let bytes = untrusted_io::read(&self.path(key), size as u64).ok()?;
        decode(&bytes, key, length, self.k).filter(|best| best.ids.iter().all(|id| (*id as usize) < self.rows))
    }

    fn path(&self, key: u128) -> PathBuf {
        let name = format!("{key:032x}");
        self.folder.join(&name[..2]).join(format!("{name}.topk"))
    }

    /// A key for each sample: a hash of all that the teacher reads of it.
    fn keys(&self, batch: &Batch) -> Vec<u128> {
        let [b, t] = batch.tokens.dims();
        let numbers = |tensor: &Tensor<2, Int>| -> Vec<i64> { tensor.clone().into_data().iter::<i64>().collect() };
        let tokens = numbers(&batch.tokens);
        let positions = match &batch.positions {
            Positions::From(first) => (0..b).flat_map(|_| (0..t).map(|place| (first + place) as i64)).collect(),
            Positions::Explicit(positions) => numbers(positions),
        };
        let documents = batch.document_ids.as_ref().map(numbers);
        let key = |row: usize| {
            let mut bytes = self.of.to_le_bytes().to_vec();
            let mut add = |values: &[i64]| bytes.extend(values[row * t..][..t].iter().flat_map(|v| v.to_le_bytes()));
            add(&tokens);
            add(&positions);
            documents.iter().for_each(|documents| add(documents));
            XxHash3_128::oneshot(&bytes)
        };
        (0..b).map(key).collect()
    }
}

fn encode(key: u128, best: &Best) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(key.to_le_bytes());
    bytes.extend((best.rest.len() as u32).to_le_bytes());
    bytes.extend((best.k as u32).to_le_bytes());
    bytes.extend(best.ids.iter().flat_map(|id| id.to_le_bytes()));
    bytes.extend(best.log_probabilities.iter().chain(&best.rest).flat_map(|value| value.to_le_bytes()));
    bytes.extend(XxHash3_128::oneshot(&bytes).to_le_bytes());
    bytes
}

/// Content of `bytes`, if they belong to this sample and are unchanged.
fn decode(bytes: &[u8], key: u128, length: usize, k: usize) -> Option<Best> {
    let (content, checksum) = bytes.split_last_chunk::<HASH>()?;
    if content.len() != HEAD + length * (k * 8 + 4) || XxHash3_128::oneshot(content) != u128::from_le_bytes(*checksum) {
        return None;
    }
    let (head, numbers) = content.split_at(HEAD);
    let mut expected = MAGIC.to_vec();
    expected.extend(key.to_le_bytes());
    expected.extend((length as u32).to_le_bytes());
    expected.extend((k as u32).to_le_bytes());
    if head != expected {
        return None;
    }
    let words: Vec<[u8; 4]> = numbers.as_chunks::<4>().0.to_vec();
    let (ids, values) = words.split_at(length * k);
    let (best, rest) = values.split_at(length * k);
    let floats = |words: &[[u8; 4]]| words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    let ids = ids.iter().map(|word| u32::from_le_bytes(*word)).collect();
    Some(Best { k, ids, log_probabilities: floats(best), rest: floats(rest) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_or_has_a_changed_bit_is_not_read() {
        let values: Vec<f32> = (0..21).map(|number| (number * number % 13) as f32).collect();
        let best = Best::select(&values, 7, 2, 1.5);
        let bytes = encode(99, &best);
        assert_eq!(decode(&bytes, 99, 3, 2), Some(best));
        assert_eq!(decode(&bytes, 98, 3, 2), None);
        assert_eq!(decode(&bytes, 99, 2, 2), None);
        assert_eq!(decode(&bytes, 99, 3, 1), None);
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length], 99, 3, 2), None, "{length}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&changed, 99, 3, 2), None, "{bit}");
        }
    }
}
