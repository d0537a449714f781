//! Inputs of a forward pass besides the model: a micro-batch on the device, and the mode.

use std::collections::BTreeMap;
use std::sync::Arc;

use bridge_data::{Extra, ExtraValues, MicroBatch, PADDING, SequencePart};
use bridge_kernels::rotary::Positions;
use bridge_kernels::{DropoutKey, Philox};
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::{CustomLossCall, LayerMetrics, WeightGradientStore};

/// One micro-batch on the device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Input token ids, `[b, t]`.
    pub tokens: Tensor<2, Int>,
    /// Next-token targets, `[b, t]`.
    pub labels: Tensor<2, Int>,
    /// Weight of each target in the loss, `[b, t]` float32.
    pub loss_mask: Tensor<2>,
    /// Positions of the tokens. Those of a part of the sequence are explicit, even where they count
    /// from 0 without a gap, as they may where documents begin.
    pub positions: Positions,
    /// Document of each token, `[b, t]`, when attention must stay inside documents.
    pub document_ids: Option<Tensor<2, Int>>,
    /// True for tokens that fill samples up, `[b, t]`, on the host; `None` if no token does.
    /// Routers of experts leave them out.
    pub padding: Option<Arc<[bool]>>,
    /// Extra tensors of the dataset, by name.
    pub extras: BTreeMap<String, BatchExtra>,
    /// Sum of the loss mask: the number of tokens that count, where weights are 0 and 1.
    pub num_tokens: f64,
    /// Part of the sequence that this rank has.
    pub part: SequencePart,
}

impl Batch {
    /// Moves a loaded micro-batch to `device`.
    pub fn new(micro_batch: &MicroBatch, device: &Device) -> Self {
        let shape = [micro_batch.batch_size, micro_batch.seq_length];
        let device = device.clone().without_autodiff();
        let ints = |values: &[i64]| Tensor::<2, Int>::from_data(TensorData::new(values.to_vec(), shape), &device);
        let counts_up = |row: &[i64]| row.iter().enumerate().all(|(i, p)| *p == i as i64);
        let is_plain = micro_batch.part == SequencePart::Whole
            && micro_batch.position_ids.chunks(micro_batch.seq_length.max(1)).all(counts_up);
        let positions =
            if is_plain { Positions::From(0) } else { Positions::Explicit(ints(&micro_batch.position_ids)) };
        Self {
            tokens: ints(&micro_batch.tokens),
            labels: ints(&micro_batch.labels),
            loss_mask: Tensor::from_data(TensorData::new(micro_batch.loss_mask.clone(), shape), &device),
            positions,
            document_ids: micro_batch.document_ids.as_ref().map(|ids| {
                let ids: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
                ints(&ids)
            }),
            padding: micro_batch.padding().map(|padding| padding.iter().map(|pads| *pads != 0).collect()),
            extras: micro_batch
                .extras
                .iter()
                .filter(|(name, _)| name.as_str() != PADDING)
                .map(|(name, extra)| (name.clone(), BatchExtra::new(extra, &device)))
                .collect(),
            num_tokens: micro_batch.loss_mask.iter().map(|m| f64::from(*m)).sum(),
            part: micro_batch.part,
        }
    }
}

/// An extra tensor of a dataset on the device.
#[derive(Clone, Debug)]
pub struct BatchExtra {
    values: FlatValues,
    shape: Vec<usize>,
}

/// In one dimension, because datasets decide on the number of dimensions.
#[derive(Clone, Debug)]
enum FlatValues {
    Ints(Tensor<1, Int>),
    Floats(Tensor<1>),
}

impl BatchExtra {
    fn new(extra: &Extra, device: &Device) -> Self {
        let values = match &extra.values {
            ExtraValues::Ints(values) => FlatValues::Ints(Tensor::from_data(values.as_slice(), device)),
            ExtraValues::Floats(values) => FlatValues::Floats(Tensor::from_data(values.as_slice(), device)),
        };
        Self { values, shape: extra.shape.clone() }
    }

    /// Shape, `[b, ..]`.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The tensor, if its elements are integers and it has `D` dimensions.
    pub fn ints<const D: usize>(&self) -> Option<Tensor<D, Int>> {
        let shape: [usize; D] = self.shape.as_slice().try_into().ok()?;
        match &self.values {
            FlatValues::Ints(values) => Some(values.clone().reshape(shape)),
            FlatValues::Floats(_) => None,
        }
    }

    /// The tensor, float32, if its elements are floating-point numbers and it has `D` dimensions.
    pub fn floats<const D: usize>(&self) -> Option<Tensor<D>> {
        let shape: [usize; D] = self.shape.as_slice().try_into().ok()?;
        match &self.values {
            FlatValues::Floats(values) => Some(values.clone().reshape(shape)),
            FlatValues::Ints(_) => None,
        }
    }
}

/// Mode of a forward pass: training (dropout on) or evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Training: dropout masks come from this stream, which is unique to step and micro-batch, and
    /// the same on ranks that share its samples.
    Train(Philox),
    /// Evaluation: no dropout.
    Evaluate,
}

/// Everything a segment may read besides its input.
#[derive(Clone, Debug)]
pub struct ForwardContext<'a> {
    /// The micro-batch.
    pub batch: &'a Batch,
    /// Training or evaluation.
    pub mode: Mode,
    /// Store for the deferred gradients of linear layers' weights: schedules that split the
    /// backward pass compute them later. A layer that cannot defer its gradient computes it in the
    /// backward pass as usual.
    pub weight_gradients: Option<&'a WeightGradientStore>,
    /// Losses besides the one the model returns.
    pub auxiliary: Auxiliary<'a>,
    /// Loss that the head computes instead of its own.
    pub custom_loss: Option<&'a CustomLossCall>,
}

/// Losses besides the one the model returns, such as a router's: how much they count, and where
/// their values go.
#[derive(Clone, Copy, Debug)]
pub struct Auxiliary<'a> {
    /// Factor on the gradients of losses that are means over the micro-batch: the gradient of the
    /// step's loss with respect to the mean loss of this micro-batch. It is the loss scale divided
    /// by the micro-batches of the step on all data-parallel ranks (or, where gradients are divided
    /// by the step's tokens later, the loss scale times the tokens of the micro-batch).
    pub gradient_scale: f64,
    /// Takes values by layer; `None` to drop them.
    pub metrics: Option<&'a LayerMetrics>,
}

impl Default for Auxiliary<'_> {
    /// Unscaled gradients, and values are dropped.
    fn default() -> Self {
        Self { gradient_scale: 1.0, metrics: None }
    }
}

impl<'a> ForwardContext<'a> {
    /// A context whose gradients all come in the backward pass.
    pub fn new(batch: &'a Batch, mode: Mode) -> Self {
        Self { batch, mode, weight_gradients: None, auxiliary: Auxiliary::default(), custom_loss: None }
    }

    /// The key of one dropout mask, or `None` in evaluation.
    ///
    /// `layer` is the global layer number and `place` tells the masks of a layer apart; a
    /// recomputed segment asks with the same numbers and gets the same mask.
    pub fn dropout_key(&self, layer: usize, place: u64) -> Option<DropoutKey> {
        match self.mode {
            Mode::Train(stream) => Some(DropoutKey(stream.derive(layer as u64).derive(place))),
            Mode::Evaluate => None,
        }
    }
}
