//! The three index arrays that determine a GPT dataset's sample order: document, sample and shuffle
//! index. Caching is in `cache`, cutting samples in the parent module.

use super::split::Split;
use crate::DataError;
use crate::npy::IndexArray;
use crate::random::RandomState;

/// A last pass over the data that yields less than this fraction of a pass's samples is shuffled
/// separately.
const SEPARATE_EPOCH_THRESHOLD: f64 = 0.80;

/// Treatment of the tokens after the last whole sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartialSample {
    Drop,
    Keep,
}

/// All inputs of the arrays.
#[derive(Clone, Copy)]
pub(crate) struct IndexRequest<'a> {
    /// Dataset name for messages.
    pub(crate) path: &'a str,
    pub(crate) split: Split,
    /// Tokens of each sequence of the split.
    pub(crate) lengths: &'a [u32],
    /// Number of the split's first sequence.
    pub(crate) first_sequence: usize,
    pub(crate) sequence_length: usize,
    /// 1 if a sample has one token more than its inputs, for the last label.
    pub(crate) extra: usize,
    /// Required samples; `None` for one pass.
    pub(crate) num_samples: Option<u64>,
    pub(crate) partial: PartialSample,
    pub(crate) seed: i64,
}

/// Number of passes over the data and their shuffling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochPlan {
    pub(crate) epochs: usize,
    pub(crate) samples: usize,
    /// Samples of all passes except the last, if the last is shuffled separately.
    pub(crate) separate_at: Option<usize>,
}

impl IndexRequest<'_> {
    /// Tokens of one pass.
    pub(crate) fn tokens_per_epoch(&self) -> u64 {
        self.lengths.iter().map(|&length| u64::from(length)).sum()
    }

    /// Number of passes and samples. Fails if there are fewer tokens than one sample, or the arrays
    /// cannot hold the sizes.
    pub(crate) fn plan(&self) -> Result<EpochPlan, DataError> {
        let tokens = self.tokens_per_epoch();
        let (sequence, extra) = (self.sequence_length as u64, self.extra as u64);
        if tokens < sequence + extra {
            return Err(DataError::SplitTooSmall {
                path: self.path.to_owned(),
                split: self.split.name(),
                sequences: self.lengths.len(),
                found: tokens,
                needed: sequence + extra,
            });
        }
        let too_large = || {
            DataError::Parameter(format!(
                "{}: {:?} samples of {sequence} tokens are more than an index can hold",
                self.path, self.num_samples
            ))
        };
        let wanted = match self.num_samples {
            Some(samples) => samples.checked_mul(sequence).and_then(|n| n.checked_add(extra)).ok_or_else(too_large)?,
            None => 0,
        };
        let epochs = wanted.div_ceil(tokens).max(1);
        let total = epochs.checked_mul(tokens).ok_or_else(too_large)? - extra;
        if epochs.checked_mul(self.lengths.len() as u64).is_none_or(|n| n > 1 << 40) {
            return Err(too_large());
        }
        let samples = match self.partial {
            PartialSample::Drop => total / sequence,
            PartialSample::Keep => total.div_ceil(sequence),
        };
        let separate_at = (epochs > 1).then(|| {
            let before_last = ((epochs - 1) * tokens - extra) / sequence;
            let from_last = self.num_samples.unwrap_or(0) - before_last;
            let per_epoch = (tokens - extra) / sequence;
            let threshold = (SEPARATE_EPOCH_THRESHOLD * per_epoch as f64) as u64;
            (from_last < threshold).then_some(before_last as usize)
        });
        Ok(EpochPlan { epochs: epochs as usize, samples: samples as usize, separate_at: separate_at.flatten() })
    }

    /// Refuses arrays that memory cannot hold, before hours are spent on the first of them.
    fn check_room(&self, plan: EpochPlan) -> Result<(), DataError> {
        let entry = if plan.samples < u32::MAX as usize { size_of::<u32>() } else { size_of::<u64>() };
        let documents = plan.epochs.saturating_mul(self.lengths.len()).saturating_mul(size_of::<i32>());
        let bytes = documents.saturating_add(plan.samples.saturating_mul(3 * entry));
        // Reserves addresses only; no page is touched.
        Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| {
            DataError::Parameter(format!(
                "{}: the {} split: an index of {} samples of {} tokens takes {:.1} GB, more than memory can hold: ask for fewer samples",
                self.path,
                self.split.name(),
                plan.samples,
                self.sequence_length,
                bytes as f64 / 1e9
            ))
        })
    }

    /// Builds all three arrays from one random stream.
    pub(crate) fn build(&self, plan: EpochPlan) -> Result<SampleIndices, DataError> {
        self.check_room(plan)?;
        let mut rng = RandomState::new(self.seed).map_err(|error| DataError::Parameter(error.to_string()))?;
        let document = self.document_index(plan, &mut rng)?;
        let sample = self.sample_index(plan, &document);
        let shuffle = shuffle_index(plan, &mut rng);
        Ok(SampleIndices { document: IndexArray::Owned(document), sample, shuffle })
    }

    fn document_index(&self, plan: EpochPlan, rng: &mut RandomState) -> Result<Vec<i32>, DataError> {
        let end = self.first_sequence + self.lengths.len();
        if i32::try_from(end).is_err() {
            return Err(DataError::Parameter(format!(
                "{}: {end} sequences, a document index holds at most {}",
                self.path,
                i32::MAX
            )));
        }
        let ids = self.first_sequence as i32..end as i32;
        let mut index = Vec::with_capacity(plan.epochs * self.lengths.len());
        for _ in 0..plan.epochs {
            index.extend(ids.clone());
        }
        let together = match plan.separate_at {
            Some(_) => index.len() - self.lengths.len(),
            None => index.len(),
        };
        let (first, last) = index.split_at_mut(together);
        rng.shuffle(first);
        rng.shuffle(last);
        Ok(index)
    }

    /// Start of each sample: a position in the document index and a token offset. Linear in
    /// documents and samples.
    pub(crate) fn sample_index(&self, plan: EpochPlan, document: &[i32]) -> SampleIndex {
        let longest = self.lengths.iter().copied().max().unwrap_or(0) as usize;
        if document.len().max(longest) < i32::MAX as usize {
            let mut pairs = Vec::with_capacity(2 * (plan.samples + 1));
            self.walk(plan, document, |position, offset| pairs.extend([position as i32, offset as i32]));
            SampleIndex::Narrow(IndexArray::Owned(pairs))
        } else {
            let mut pairs = Vec::with_capacity(2 * (plan.samples + 1));
            self.walk(plan, document, |position, offset| pairs.extend([position as i64, offset as i64]));
            SampleIndex::Wide(IndexArray::Owned(pairs))
        }
    }

    /// True if `sample` has the boundaries of the samples of `document`.
    pub(crate) fn fits(&self, plan: EpochPlan, document: &[i32], sample: &SampleIndex) -> bool {
        let (mut number, mut fits) = (0, sample.len() == plan.samples + 1);
        self.walk(plan, document, |position, offset| {
            fits = fits && sample.pair(number) == (position, offset);
            number += 1;
        });
        fits
    }

    fn walk(&self, plan: EpochPlan, document: &[i32], mut boundary: impl FnMut(usize, usize)) {
        let length_of = |position: usize| {
            let sequence = document[position] as usize - self.first_sequence;
            self.lengths[sequence] as usize
        };
        let (mut position, mut offset) = (0, 0);
        boundary(position, offset);
        for _ in 0..plan.samples {
            let mut remaining = self.sequence_length + self.extra;
            loop {
                let available = length_of(position) - offset;
                if remaining <= available {
                    // The last token is read again as the next sample's first input.
                    offset += remaining - self.extra;
                    break;
                }
                if position + 1 == document.len() {
                    // Only a kept partial sample gets here; empty documents at the end contain no
                    // part of it.
                    while length_of(position) < self.extra {
                        position -= 1;
                    }
                    offset = length_of(position) - self.extra;
                    break;
                }
                remaining -= available;
                position += 1;
                offset = 0;
            }
            boundary(position, offset);
        }
    }
}

fn shuffle_index(plan: EpochPlan, rng: &mut RandomState) -> ShuffleIndex {
    let cut = plan.separate_at.unwrap_or(plan.samples).min(plan.samples);
    if (plan.samples as u64) < u64::from(u32::MAX) - 1 {
        let mut order: Vec<u32> = (0..plan.samples as u32).collect();
        let (first, last) = order.split_at_mut(cut);
        rng.shuffle(first);
        rng.shuffle(last);
        ShuffleIndex::Narrow(IndexArray::Owned(order))
    } else {
        let mut order: Vec<i64> = (0..plan.samples as i64).collect();
        let (first, last) = order.split_at_mut(cut);
        rng.shuffle(first);
        rng.shuffle(last);
        ShuffleIndex::Wide(IndexArray::Owned(order))
    }
}

/// Pairs (position in the document index, token offset), one more than there are samples.
pub(crate) enum SampleIndex {
    Narrow(IndexArray<i32>),
    Wide(IndexArray<i64>),
}

impl SampleIndex {
    /// Number of pairs.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Narrow(pairs) => pairs.as_slice().len() / 2,
            Self::Wide(pairs) => pairs.as_slice().len() / 2,
        }
    }

    /// Pair `i` as (position, offset).
    pub(crate) fn pair(&self, i: usize) -> (usize, usize) {
        match self {
            Self::Narrow(pairs) => {
                let pairs = pairs.as_slice();
                (pairs[2 * i] as usize, pairs[2 * i + 1] as usize)
            }
            Self::Wide(pairs) => {
                let pairs = pairs.as_slice();
                (pairs[2 * i] as usize, pairs[2 * i + 1] as usize)
            }
        }
    }
}

/// A permutation of the samples.
pub(crate) enum ShuffleIndex {
    Narrow(IndexArray<u32>),
    Wide(IndexArray<i64>),
}

impl ShuffleIndex {
    /// Number of samples.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Narrow(order) => order.as_slice().len(),
            Self::Wide(order) => order.as_slice().len(),
        }
    }

    /// The unshuffled number of sample `i`.
    pub(crate) fn at(&self, i: usize) -> usize {
        match self {
            Self::Narrow(order) => order.as_slice()[i] as usize,
            Self::Wide(order) => order.as_slice()[i] as usize,
        }
    }

    /// True if every entry names a sample.
    pub(crate) fn in_range(&self) -> bool {
        let len = self.len();
        match self {
            Self::Narrow(order) => order.as_slice().iter().all(|&i| (i as usize) < len),
            Self::Wide(order) => order.as_slice().iter().all(|&i| usize::try_from(i).is_ok_and(|i| i < len)),
        }
    }
}

/// The three arrays.
pub(crate) struct SampleIndices {
    pub(crate) document: IndexArray<i32>,
    pub(crate) sample: SampleIndex,
    pub(crate) shuffle: ShuffleIndex,
}
