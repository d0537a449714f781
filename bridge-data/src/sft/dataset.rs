//! Examples as samples: one or several per sequence, shuffled anew for each epoch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::packing::{Packs, length_in_pack};
use super::store::Store;
use crate::dataset::Filling;
use crate::extra::Extras;
use crate::random::torch_randperm;
use crate::{DataError, Dataset, Sample};

/// Grouping of examples into sequences.
pub(super) enum Grouping {
    /// One example for each sequence.
    Single,
    /// Each sample with the one after it: the tokens of the two alternate, so that both are padded
    /// at their ends.
    Pairs,
    /// Examples of a pack share a sequence.
    Packed {
        packs: Packs,
        /// The tokens of each are a multiple of this.
        multiple: usize,
    },
    /// Next-fit packing: consecutive examples of an epoch share a sequence while they fit.
    NextFit { size: usize },
}

/// Number of epochs whose orders are cached: workers read one epoch, or two at its end.
const KEPT: usize = 2;

/// The samples of a split.
pub(super) struct SftDataset {
    store: Store,
    num_examples: usize,
    grouping: Grouping,
    filling: Filling,
    /// Draws the order of each epoch; `None` keeps that of the files.
    seed: Option<u64>,
    len: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of samples up to the end of each epoch.
    ends: Vec<usize>,
    orders: BTreeMap<usize, Arc<Packs>>,
}

impl SftDataset {
    /// Dataset of the first `num_examples` of a store. `samples` is the number of samples that a
    /// run takes, over as many epochs as needed; `None` is one epoch.
    pub(super) fn new(
        store: Store,
        num_examples: usize,
        grouping: Grouping,
        filling: Filling,
        seed: Option<u64>,
        samples: Option<usize>,
    ) -> Result<Self, DataError> {
        if num_examples == 0 {
            return Err(DataError::Source(format!("{}: there are no examples", store.prefix().display())));
        }
        if u32::try_from(num_examples).is_err() {
            return Err(DataError::Parameter(format!("{num_examples} examples are more than 2^32")));
        }
        let state = Mutex::default();
        let mut dataset = Self { store, num_examples, grouping, filling, seed, len: 0, state };
        dataset.len = samples.filter(|samples| *samples > 0).unwrap_or_else(|| dataset.first_epoch_len());
        Ok(dataset)
    }

    /// Number of samples of the first epoch. Others may have more or fewer where examples are
    /// packed on the fly.
    fn first_epoch_len(&self) -> usize {
        match &self.grouping {
            Grouping::Single | Grouping::Pairs => self.num_examples,
            Grouping::Packed { packs, .. } => packs.len(),
            Grouping::NextFit { .. } => {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.ends.is_empty() {
                    self.count_epoch(&mut state);
                }
                state.ends[0]
            }
        }
    }

    /// The sequences of an epoch.
    fn epoch(&self, epoch: usize) -> Packs {
        let order = |count: usize| -> Vec<u32> {
            match self.seed {
                Some(seed) => {
                    // Each epoch has a seed of its own: a common stream would have to be drawn up
                    // to the requested epoch.
                    let seed = seed.wrapping_add((epoch as u64).wrapping_mul(0x9e37_79b9));
                    torch_randperm(count, seed).into_iter().map(|at| at as u32).collect()
                }
                None => (0..count as u32).collect(),
            }
        };
        match &self.grouping {
            Grouping::Single | Grouping::Pairs => {
                Packs { members: order(self.num_examples), starts: (0..=self.num_examples as u32).collect() }
            }
            Grouping::Packed { packs, .. } => {
                let mut chosen = Packs { members: Vec::with_capacity(packs.members.len()), starts: vec![0] };
                for at in order(packs.len()) {
                    chosen.members.extend(packs.pack(at as usize));
                    chosen.starts.push(chosen.members.len() as u32);
                }
                chosen
            }
            Grouping::NextFit { size } => {
                let length = |at: u32| length_in_pack(self.store.length(at as usize), 1);
                Packs::next_fit(order(self.num_examples), length, *size)
            }
        }
    }

    /// Makes the order of the first epoch whose end is not known.
    fn count_epoch(&self, state: &mut State) {
        let epoch = state.ends.len();
        let order = self.epoch(epoch);
        state.ends.push(state.ends.last().copied().unwrap_or(0) + order.len());
        keep(&mut state.orders, epoch, order);
    }

    /// The examples of sample `index`.
    fn members(&self, index: usize) -> Vec<u32> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.ends.last().is_none_or(|end| *end <= index) {
            self.count_epoch(&mut state);
        }
        let epoch = state.ends.partition_point(|end| *end <= index);
        let start = epoch.checked_sub(1).map_or(0, |before| state.ends[before]);
        if let Some(order) = state.orders.get(&epoch) {
            return order.pack(index - start).to_vec();
        }
        let order = self.epoch(epoch);
        let members = order.pack(index - start).to_vec();
        keep(&mut state.orders, epoch, order);
        members
    }

    /// One example as a sample.
    fn single_sample(&self, at: u32) -> Result<Sample, DataError> {
        let (ids, weights) = self.store.get(at as usize)?;
        let tokens: Vec<i64> = ids[..ids.len().saturating_sub(1)].to_vec();
        Ok(Sample {
            position_ids: (0..tokens.len() as i64).collect(),
            labels: ids.get(1..).unwrap_or_default().to_vec(),
            loss_mask: weights.get(1..).unwrap_or_default().to_vec(),
            tokens,
            document_ids: None,
            extras: Extras::new(),
        })
    }

    /// Pair `at` as a sample, with the tokens of its two examples interleaved.
    fn interleaved_pair(&self, at: u32) -> Result<Sample, DataError> {
        let mut both = [self.single_sample(2 * at)?, self.single_sample(2 * at + 1)?];
        let longest = both.iter().map(|one| one.tokens.len()).max().unwrap_or(0);
        both.iter_mut().for_each(|one| one.fill(longest, self.filling.token));
        let [first_padding, second_padding] = both.each_mut().map(|one| {
            let mut padding = one.take_padding();
            padding.resize(longest, 0);
            padding
        });
        let [first, second] = both;
        fn turns<T: Copy>(a: &[T], b: &[T]) -> Vec<T> {
            a.iter().zip(b).flat_map(|(a, b)| [*a, *b]).collect()
        }
        let padding = turns(&first_padding, &second_padding);
        let mut sample = Sample {
            tokens: turns(&first.tokens, &second.tokens),
            labels: turns(&first.labels, &second.labels),
            loss_mask: turns(&first.loss_mask, &second.loss_mask),
            position_ids: turns(&first.position_ids, &second.position_ids),
            document_ids: None,
            extras: Extras::new(),
        };
        if padding.contains(&1) {
            sample.set_padding(padding);
        }
        Ok(sample)
    }

    /// Several examples as a sample: each is a document, and so is the padding behind them.
    fn packed_sample(&self, members: &[u32], multiple: usize) -> Result<Sample, DataError> {
        let longest = self.filling.longest;
        let (mut sample, mut documents) = (Sample::default(), Vec::with_capacity(longest));
        let mut padding = Vec::new();
        for (number, at) in members.iter().enumerate() {
            let mut one = self.single_sample(*at)?;
            let room = longest.saturating_sub(sample.tokens.len());
            one.fill(one.tokens.len().next_multiple_of(multiple.max(1)).min(room), self.filling.token);
            documents.extend(std::iter::repeat_n(number as i32, one.tokens.len()));
            let mut own_padding = one.take_padding();
            own_padding.resize(one.tokens.len(), 0);
            padding.append(&mut own_padding);
            sample.tokens.append(&mut one.tokens);
            sample.labels.append(&mut one.labels);
            sample.loss_mask.append(&mut one.loss_mask);
            sample.position_ids.append(&mut one.position_ids);
        }
        let rest = longest.saturating_sub(sample.tokens.len());
        documents.extend(std::iter::repeat_n(members.len() as i32, rest));
        sample.position_ids.extend(0..rest as i64);
        if padding.contains(&1) {
            sample.set_padding(padding);
        }
        sample.fill(longest, self.filling.token);
        sample.document_ids = Some(documents);
        Ok(sample)
    }
}

fn keep(orders: &mut BTreeMap<usize, Arc<Packs>>, epoch: usize, order: Packs) {
    orders.insert(epoch, Arc::new(order));
    while orders.len() > KEPT {
        orders.pop_first();
    }
}

impl Dataset for SftDataset {
    fn len(&self) -> usize {
        self.len
    }

    fn epoch_len(&self) -> Option<usize> {
        Some(self.first_epoch_len())
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        if index >= self.len {
            let what = self.store.prefix().display().to_string();
            return Err(DataError::OutOfRange { what, index, len: self.len });
        }
        let members = self.members(index);
        match &self.grouping {
            Grouping::Single => {
                let mut sample = self.single_sample(members[0])?;
                self.filling.fill(std::slice::from_mut(&mut sample));
                Ok(sample)
            }
            Grouping::Pairs => {
                let mut sample = self.interleaved_pair(members[0])?;
                self.filling.fill(std::slice::from_mut(&mut sample));
                Ok(sample)
            }
            Grouping::Packed { multiple, .. } => self.packed_sample(&members, *multiple),
            Grouping::NextFit { .. } => self.packed_sample(&members, 1),
        }
    }

    fn filling(&self) -> Option<Filling> {
        Some(self.filling)
    }
}
