//! Assignment of examples to sequences: first fit, over the lengths of all examples.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::params::PackingAlgorithm;
use super::store::Store;
use crate::indexed::with_suffix;
use crate::pack::Overwrite;
use crate::pack::reuse::{Claim, claim};
use crate::random::torch_randperm;
use crate::{DataError, atomic, manifest, untrusted_io};

/// Tokens that an example takes of a sequence: its last id is only predicted.
pub(super) fn length_in_pack(ids: usize, multiple: usize) -> usize {
    ids.saturating_sub(1).next_multiple_of(multiple.max(1))
}

/// Sequences, each with the numbers of its examples.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Packs {
    /// Numbers of examples, sequence after sequence.
    pub(super) members: Vec<u32>,
    /// Start of each sequence, and the end of the last.
    pub(super) starts: Vec<u32>,
}

/// Statistics of a packing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PackReport {
    sequences: usize,
    examples: usize,
    /// Share of the sequences' tokens that are filled.
    filled: f64,
    /// Examples by length: bins of equal width up to the size.
    histogram: Vec<usize>,
}

impl Packs {
    pub(super) fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    pub(super) fn pack(&self, at: usize) -> &[u32] {
        &self.members[self.starts[at] as usize..self.starts[at + 1] as usize]
    }

    /// Chosen now, or read where an earlier run has chosen the same. Fails on files that cannot be
    /// read or written; an example that is longer than a sequence.
    pub(super) fn cached(
        store: &Store,
        lengths: impl Iterator<Item = usize>,
        size: usize,
        algorithm: PackingAlgorithm,
        seed: u64,
    ) -> Result<Self, DataError> {
        let lengths: Vec<usize> = lengths.collect();
        let output = with_suffix(store.prefix(), &format!(".packed-{size}"));
        let path = with_suffix(&output, ".packs");
        let bytes: Vec<u8> = lengths.iter().flat_map(|length| (*length as u32).to_le_bytes()).collect();
        let key = json!({
            "lengths": format!("{:016x}", twox_hash::XxHash3_64::oneshot(&bytes)),
            "size": size,
            "algorithm": format!("{algorithm:?}"),
            "seed": if algorithm == PackingAlgorithm::FirstFitShuffle { seed } else { 0 },
        });
        let claimed = claim::<PackReport>(&output, Some(&key), &[&path], Overwrite::Own)?;
        if let Claim::Whole(..) = claimed {
            manifest::check(&output, manifest::Depth::Whole)?;
            let bytes = untrusted_io::read(&path, u64::MAX - 1).map_err(DataError::io("read", &path))?;
            let packs = Self::from_bytes(&bytes).filter(|packs| packs.covers(lengths.len()));
            return packs.ok_or_else(|| DataError::malformed(&path, "is not a list of packed sequences"));
        }
        let packs = Self::first_fit(&lengths, size, algorithm, seed)?;
        atomic::write(&path, &packs.to_bytes())?;
        let filled: usize = lengths.iter().sum();
        const BINS: usize = 32;
        let mut histogram = vec![0; BINS];
        lengths.iter().for_each(|length| histogram[(length.saturating_sub(1) * BINS / size).min(BINS - 1)] += 1);
        let report = PackReport {
            sequences: packs.len(),
            examples: lengths.len(),
            filled: filled as f64 / (packs.len() * size).max(1) as f64,
            histogram,
        };
        manifest::store(&output, key, &[&path], report)?;
        drop(claimed);
        Ok(packs)
    }

    /// First fit: each example goes to the first sequence that has room for it.
    pub(super) fn first_fit(
        lengths: &[usize],
        size: usize,
        algorithm: PackingAlgorithm,
        seed: u64,
    ) -> Result<Self, DataError> {
        if let Some(longest) = lengths.iter().max().filter(|longest| **longest > size) {
            return Err(DataError::Parameter(format!(
                "dataset.packed_sequence_specs: an example takes {longest} tokens, more than a sequence of {size}"
            )));
        }
        let mut order: Vec<u32> = match algorithm {
            PackingAlgorithm::FirstFitDecreasing => (0..lengths.len() as u32).collect(),
            PackingAlgorithm::FirstFitShuffle => {
                torch_randperm(lengths.len(), seed).into_iter().map(|at| at as u32).collect()
            }
        };
        if algorithm == PackingAlgorithm::FirstFitDecreasing {
            order.sort_by_key(|at| std::cmp::Reverse(lengths[*at as usize]));
        }
        let mut room = Room::new(lengths.len(), size);
        let mut sequence_of = vec![0u32; lengths.len()];
        let mut sequences = 0;
        for at in &order {
            let sequence = room.take(lengths[*at as usize]);
            sequence_of[*at as usize] = sequence as u32;
            sequences = sequences.max(sequence + 1);
        }
        let mut starts = vec![0u32; sequences + 1];
        sequence_of.iter().for_each(|sequence| starts[*sequence as usize + 1] += 1);
        (0..sequences).for_each(|at| starts[at + 1] += starts[at]);
        let mut next = starts.clone();
        let mut members = vec![0u32; lengths.len()];
        for at in order {
            let place = &mut next[sequence_of[at as usize] as usize];
            members[*place as usize] = at;
            *place += 1;
        }
        Ok(Self { members, starts })
    }

    /// Next-fit packing: examples in `order` share a sequence of `size` tokens while they fit.
    pub(super) fn next_fit(order: Vec<u32>, length: impl Fn(u32) -> usize, size: usize) -> Self {
        let (mut starts, mut used) = (vec![0], 0);
        for (place, at) in order.iter().enumerate() {
            let length = length(*at);
            if used > 0 && used + length > size {
                starts.push(place as u32);
                used = 0;
            }
            used += length;
        }
        if !order.is_empty() {
            starts.push(order.len() as u32);
        }
        Self { members: order, starts }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let count = [self.starts.len() as u32];
        count.iter().chain(&self.starts).chain(&self.members).flat_map(|word| word.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u32> =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
        let (count, rest) = words.split_first()?;
        let (starts, members) = rest.split_at_checked(*count as usize)?;
        Some(Self { members: members.to_vec(), starts: starts.to_vec() })
    }

    /// True if each of `examples` is in exactly one sequence.
    fn covers(&self, examples: usize) -> bool {
        let mut seen = vec![false; examples];
        let is_new = |at: &u32| seen.get_mut(*at as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        self.members.len() == examples
            && self.starts.first() == Some(&0)
            && self.starts.last().is_some_and(|end| *end as usize == examples)
            && self.starts.is_sorted()
            && self.members.iter().all(is_new)
    }
}

/// The room that is left in each sequence, as a tree of maxima, so that the first with enough is
/// found in few steps.
struct Room {
    tree: Vec<usize>,
    leaves: usize,
}

impl Room {
    fn new(sequences: usize, size: usize) -> Self {
        let leaves = sequences.max(1).next_power_of_two();
        Self { tree: vec![size; 2 * leaves], leaves }
    }

    /// Takes `length` tokens of the first sequence with enough room. There is always one, because
    /// there are as many sequences as examples.
    fn take(&mut self, length: usize) -> usize {
        let mut node = 1;
        while node < self.leaves {
            node = if self.tree[2 * node] >= length { 2 * node } else { 2 * node + 1 };
        }
        self.tree[node] -= length;
        let sequence = node - self.leaves;
        while node > 1 {
            node /= 2;
            self.tree[node] = self.tree[2 * node].max(self.tree[2 * node + 1]);
        }
        sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_fit_is_that_of_a_plain_search() {
        let lengths: Vec<usize> = torch_randperm(200, 3).into_iter().map(|at| at as usize % 37 + 1).collect();
        for algorithm in [PackingAlgorithm::FirstFitDecreasing, PackingAlgorithm::FirstFitShuffle] {
            let packs = Packs::first_fit(&lengths, 64, algorithm, 7).expect("all fit");
            assert!(packs.covers(200));
            let mut order: Vec<u32> = torch_randperm(200, 7).into_iter().map(|at| at as u32).collect();
            if algorithm == PackingAlgorithm::FirstFitDecreasing {
                order.sort_unstable();
                order.sort_by_key(|at| std::cmp::Reverse(lengths[*at as usize]));
            }
            let mut plain: Vec<(usize, Vec<u32>)> = Vec::new();
            for at in order {
                let length = lengths[at as usize];
                match plain.iter_mut().find(|(used, _)| used + length <= 64) {
                    Some((used, members)) => {
                        *used += length;
                        members.push(at);
                    }
                    None => plain.push((length, vec![at])),
                }
            }
            let found: Vec<Vec<u32>> = (0..packs.len()).map(|at| packs.pack(at).to_vec()).collect();
            assert_eq!(found, plain.into_iter().map(|(_, members)| members).collect::<Vec<_>>());
            assert_eq!(Packs::from_bytes(&packs.to_bytes()), Some(packs));
        }
        assert!(Packs::first_fit(&[65], 64, PackingAlgorithm::FirstFitDecreasing, 0).is_err());
    }

    #[test]
    fn what_follows_one_another_fits() {
        let packs = Packs::next_fit(vec![2, 0, 1], |at| [3, 4, 5][at as usize], 8);
        assert_eq!((0..packs.len()).map(|at| packs.pack(at)).collect::<Vec<_>>(), [&[2, 0][..], &[1]]);
        assert_eq!(Packs::next_fit(vec![], |_| 1, 8).len(), 0);
    }
}
