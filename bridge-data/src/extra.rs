//! Named tensors of a dataset besides tokens, labels and weights: an encoder's inputs, images,
//! rewards. Only the model and the dataset know what they mean.

use std::collections::BTreeMap;

use super::DataError;

/// The name of the encoder's token ids in encoder-decoder models, integers `[s]` per sample.
pub const ENCODER_TOKENS: &str = "encoder_tokens";

/// The name of the mask of these ids, floats `[s]` per sample: 1 for tokens, 0 for padding.
pub const ENCODER_MASK: &str = "encoder_mask";

/// The name of the mask of padding, integers `[t]` per sample: 1 for a token that fills the sample
/// up, 0 for any other. Samples without padding may leave it out.
pub const PADDING: &str = "padding";

/// Extra tensors by name.
pub type Extras = BTreeMap<String, Extra>;

/// A tensor of a sample, or of all samples of a micro-batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Extra {
    /// The elements, row-major.
    pub values: ExtraValues,
    /// Shape; in a micro-batch the first dimension counts samples.
    pub shape: Vec<usize>,
    /// Division among context-parallel ranks.
    pub cut: ExtraCut,
}

/// Elements of an [`Extra`].
#[derive(Debug, Clone, PartialEq)]
pub enum ExtraValues {
    /// Integers.
    Ints(Vec<i64>),
    /// Floating-point numbers.
    Floats(Vec<f32>),
}

/// Division of an [`Extra`] among context-parallel ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtraCut {
    /// Replicated: each rank has all of it.
    Whole,
    /// The first dimension is the sample's sequence, sharded like the tokens.
    Sequence,
}

impl Extra {
    /// Integers of one sample, of shape `shape`, replicated on all context-parallel ranks.
    pub fn ints(values: Vec<i64>, shape: &[usize]) -> Self {
        Self { values: ExtraValues::Ints(values), shape: shape.to_vec(), cut: ExtraCut::Whole }
    }

    /// Floating-point numbers of one sample, of shape `shape`, replicated on all context-parallel
    /// ranks.
    pub fn floats(values: Vec<f32>, shape: &[usize]) -> Self {
        Self { values: ExtraValues::Floats(values), shape: shape.to_vec(), cut: ExtraCut::Whole }
    }

    /// The tensor, with its first dimension sharded like the sequence.
    #[must_use]
    pub fn along_sequence(self) -> Self {
        Self { cut: ExtraCut::Sequence, ..self }
    }

    /// True if the number of elements matches the shape, and, in a micro-batch of `batch_size`
    /// samples of `seq_length` tokens, the shape matches the micro-batch.
    pub fn fits(&self, batch_size: usize, seq_length: usize) -> bool {
        let len = match &self.values {
            ExtraValues::Ints(values) => values.len(),
            ExtraValues::Floats(values) => values.len(),
        };
        let has_sequence = self.cut == ExtraCut::Whole || self.shape.get(1) == Some(&seq_length);
        self.shape.first() == Some(&batch_size) && has_sequence && self.shape.iter().product::<usize>() == len
    }

    /// Elements of a micro-batch's samples of `length` tokens: the `chunk` tokens from each of
    /// `starts`.
    pub(crate) fn part(&self, length: usize, chunk: usize, starts: [usize; 2]) -> Self {
        if self.cut == ExtraCut::Whole {
            return self.clone();
        }
        let each: usize = self.shape[2..].iter().product();
        let (length, part, starts) = (length * each, chunk * each, starts.map(|start| start * each));
        let mut shape = self.shape.clone();
        shape[1] = 2 * chunk;
        let values = match &self.values {
            ExtraValues::Ints(values) => ExtraValues::Ints(chunks_of(values, length, part, starts)),
            ExtraValues::Floats(values) => ExtraValues::Floats(chunks_of(values, length, part, starts)),
        };
        Self { values, shape, cut: self.cut }
    }

    /// The tensor of one sample as a micro-batch of one sample.
    fn with_batch_dimension(mut self) -> Self {
        self.shape.insert(0, 1);
        self
    }

    /// Appends one more sample, if it has the same type and shape.
    fn push(&mut self, sample: Self) -> bool {
        if self.shape[1..] != sample.shape || self.cut != sample.cut {
            return false;
        }
        match (&mut self.values, sample.values) {
            (ExtraValues::Ints(all), ExtraValues::Ints(values)) => all.extend(values),
            (ExtraValues::Floats(all), ExtraValues::Floats(values)) => all.extend(values),
            (ExtraValues::Ints(_), ExtraValues::Floats(_)) | (ExtraValues::Floats(_), ExtraValues::Ints(_)) => {
                return false;
            }
        }
        self.shape[0] += 1;
        true
    }
}

/// Appends a sample's extra tensors to those of the `batch_size` samples before it. Fails if names,
/// shapes or types differ from those of the samples before, the number of elements does not match
/// the shape, or the length of a sequence differs from the sample's.
pub(crate) fn push(extras: &mut Extras, sample: Extras, batch_size: usize, seq_length: usize) -> Result<(), DataError> {
    let names = |extras: &Extras| extras.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if batch_size == 0 {
        *extras = sample.into_iter().map(|(name, extra)| (name, extra.with_batch_dimension())).collect();
    } else if extras.keys().eq(sample.keys()) {
        for ((name, all), extra) in extras.iter_mut().zip(sample.into_values()) {
            let (expected, found) = (all.shape[1..].to_vec(), extra.shape.clone());
            if !all.push(extra) {
                return Err(DataError::Parameter(format!(
                    "samples of a micro-batch differ in their extra tensor `{name}`: expected shape {expected:?} and the type of \
                     the first sample, found shape {found:?}"
                )));
            }
        }
    } else {
        return Err(DataError::Parameter(format!(
            "samples of a micro-batch have different extra tensors: expected {}, found {}",
            names(extras),
            names(&sample)
        )));
    }
    match extras.iter().find(|(_, extra)| !extra.fits(batch_size + 1, seq_length)) {
        Some((name, extra)) => Err(DataError::Parameter(format!(
            "the extra tensor `{name}` of a sample of {seq_length} tokens: its shape {:?} does not fit its elements or the tokens",
            &extra.shape[1..]
        ))),
        None => Ok(()),
    }
}

/// From each row of `length` values, the `chunk` values that begin at each of `starts`.
pub(crate) fn chunks_of<T: Copy>(values: &[T], length: usize, chunk: usize, starts: [usize; 2]) -> Vec<T> {
    let rows = values.chunks(length.max(1));
    rows.flat_map(|row| starts.into_iter().flat_map(move |start| row[start..start + chunk].iter().copied())).collect()
}
