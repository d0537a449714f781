//! The end of the decoder: output projection with loss, or with logits.

use bridge_core::model::{Exchange, LastLayer, OutputParts, PassKind, SegmentCost, TrafficKind, Workload};
use bridge_dist::comm::{Group, Operation, ReduceOp};
use bridge_dist::mesh::GroupKind;
use bridge_kernels::cross_entropy::{cap, chunk_rows, workspace_bytes, workspace_bytes_on_gpu};
use bridge_kernels::vocab_parallel_cross_entropy::{self as vocab_parallel, VocabularyExchange, VocabularyShard};
use bridge_kernels::{
    CrossEntropyOptions, DropoutKey, LinearWeight, OutputLayer, TokenAccuracy, linear_cross_entropy_counting,
    linear_weighted, vocab_parallel_cross_entropy,
};
use bridge_regions::{Cut, gather_replicated};
use burn::tensor::{Int, Tensor};

use super::embedding::vocabulary_rows;
use super::linear::flops;
use super::regions::{Regions, enter_exchanges};
use super::residual::scaled;
use crate::architecture::config::DecoderConfig;

/// Targets of the loss.
pub(crate) struct Targets {
    /// Next-token ids, `[b, t]`.
    pub labels_bt: Tensor<2, Int>,
    /// Weight of each target, `[b, t]` float32.
    pub mask_bt: Tensor<2>,
}

/// The head as losses of a program's own see it.
pub(crate) struct HeadOutputs<'a> {
    /// After the final norm, as the residual stream is cut.
    pub x_btc: Tensor<3>,
    pub last: LastOutputs<'a>,
    pub regions: &'a Regions,
}

/// Layer that makes the outputs of a model.
#[expect(clippy::large_enum_variant, reason = "passed on at once, never stored")]
pub(crate) enum LastOutputs<'a> {
    Vocabulary(Projection),
    /// Replacement of the projection, with the key of its dropout.
    Replaced(&'a LastLayer, Option<DropoutKey>),
}

impl OutputParts for HeadOutputs<'_> {
    fn hidden_states(&self) -> Tensor<3> {
        self.regions.replicated(self.x_btc.clone())
    }

    fn logits(&self) -> Tensor<3> {
        let x_btc = self.x_btc.clone();
        match &self.last {
            LastOutputs::Vocabulary(projection) => logits(x_btc, projection.clone(), self.regions),
            // Each rank computes the outputs of the tokens that it has, which are few numbers to
            // gather.
            LastOutputs::Replaced(layer, key) => {
                let outputs_btn = layer.outputs(self.regions.dropout(x_btc, layer.dropout(), *key));
                self.regions.replicated(outputs_btn)
            }
        }
    }
}

/// Output table, and the scaling and capping of its logits.
#[derive(Clone)]
pub(crate) struct Projection {
    /// `[v, c]`: this rank's rows of the vocabulary.
    pub weight_vc: LinearWeight,
    /// `[v]`: the biases of these rows.
    pub bias_v: Option<Tensor<1>>,
    /// Rows of all ranks.
    pub vocab_size: usize,
    /// Factor on the logits, before the cap. Their inputs are scaled, which are fewer, and the
    /// biases.
    pub multiplier: f64,
    /// Soft cap on the logits.
    pub softcap: Option<f64>,
}

impl Projection {
    /// The biases as they are added to the products of scaled inputs.
    fn scaled_bias(&self) -> Option<Tensor<1>> {
        let scale = |bias_v: Tensor<1>| if self.multiplier == 1.0 { bias_v } else { bias_v * self.multiplier };
        self.bias_v.clone().map(scale)
    }
}

/// Cost of projection and loss: besides its input the fused kernel keeps both of its gradients,
/// which it makes in the forward, in float32.
///
/// A bias has a gradient too. On GPUs it is one of eight more columns of the weight
/// ([`linear_cross_entropy_counting`]), which is copied for that.
///
/// Ranks exchange three numbers for each token: the largest logit; then, in one operation, the sum
/// of exponentials and the target's logit. The CPU's float32 kernel goes through tokens in chunks.
pub(crate) fn cost(config: &DecoderConfig, work: &Workload) -> SegmentCost {
    const FLOAT32: u64 = 4;
    let (n, c, v) = (work.tokens(), config.hidden_size as u64, config.padded_vocab_size);
    let rows = v.div_ceil(work.place.tensor.size);
    let is_chunked = work.activation_bytes == FLOAT32 && work.on_cpu;
    let chunk = if is_chunked { chunk_rows(n as usize, rows) as u64 } else { n };
    let mut exchanges = enter_exchanges(c * work.collective_bytes, work);
    exchanges.push(Exchange {
        kind: TrafficKind::Loss,
        group: GroupKind::Tensor,
        operation: Operation::AllReduce,
        pass: PassKind::Forward,
        operations: 2 * n.div_ceil(chunk.max(1)),
        bytes: 3 * n * FLOAT32,
    });
    let bias = if config.output_bias { rows as u64 } else { 0 };
    let is_widened = config.output_bias && !work.on_cpu && work.place.tensor.size == 1;
    let widened = if is_widened { (n + rows as u64) * (c + 8) * work.activation_bytes } else { 0 };
    SegmentCost {
        flops: flops(work.all_tokens(), config.hidden_size, v),
        kept: n * c * work.activation_bytes + n * c * FLOAT32 + rows as u64 * c * FLOAT32 + bias * FLOAT32,
        backward: work.tokens_between_blocks() * c * work.stream_bytes,
        cross_entropy: match work.place.tensor.size {
            _ if work.on_cpu => workspace_bytes(n as usize, rows) as u64,
            1 => {
                let shape = [rows, config.hidden_size];
                workspace_bytes_on_gpu(n as usize, shape, work.activation_bytes as usize) as u64 + widened
            }
            // Plain operations on all tokens.
            _ => n * rows as u64 * FLOAT32,
        },
        exchanges,
        ..SegmentCost::default()
    }
}

/// Cost of a layer that replaces the projection, which keeps its input. The cost of the program's
/// custom loss is not known.
pub(crate) fn cost_replaced(outputs: usize, hidden_size: usize, work: &Workload) -> SegmentCost {
    let c = hidden_size as u64;
    SegmentCost {
        flops: flops(work.all_tokens(), hidden_size, outputs),
        kept: work.tokens_between_blocks() * c * work.activation_bytes,
        backward: work.tokens_between_blocks() * c * work.activation_bytes,
        ..SegmentCost::default()
    }
}

/// Sum over tokens of the masked cross-entropy of `x weight^T`.
///
/// `x_btc` `[b, t, c]` of the residual stream -> `[1]` float32, the same on all ranks that share
/// the vocabulary. A rank that has the whole of it may count the tokens that the model gets right.
pub(crate) fn loss_sum(
    x_btc: Tensor<3>,
    projection: Projection,
    targets: Targets,
    regions: &Regions,
    accuracy: Option<&TokenAccuracy>,
) -> Tensor<1> {
    let output = OutputLayer { weight_vc: projection.weight_vc.clone(), bias_v: projection.scaled_bias() };
    let x_btc = regions.enter(scaled(x_btc, projection.multiplier));
    let [b, t, c] = x_btc.dims();
    let options = CrossEntropyOptions { softcap: projection.softcap, z_loss: None };
    let x_nc = x_btc.reshape([b * t, c]);
    let ids_n = targets.labels_bt.reshape([b * t]);
    let mask_n = targets.mask_bt.reshape([b * t]);
    let group = regions.tensor();
    if group.size() == 1 {
        return linear_cross_entropy_counting(x_nc, output, ids_n, mask_n, &options, accuracy);
    }
    let (size, ranks) = (projection.vocab_size, group.size());
    let start = vocabulary_rows(size, group.rank(), ranks).start;
    let shard = VocabularyShard { start, size, exchange: &GroupExchange(group) };
    let n = b * t;
    if size.is_multiple_of(ranks) {
        let targets = vocab_parallel::Targets { ids_n, mask_n };
        return vocab_parallel_cross_entropy(x_nc, output, targets, &shard, &options);
    }
    // The operation exchanges figures chunk by chunk, and ranks with more vocabulary rows use
    // shorter chunks. A chunk length that fits the largest shard is one chunk on every rank.
    let loss_of = |first: usize, count: usize| {
        let targets = vocab_parallel::Targets {
            ids_n: ids_n.clone().narrow(0, first, count),
            mask_n: mask_n.clone().narrow(0, first, count),
        };
        let x_nc = x_nc.clone().narrow(0, first, count);
        vocab_parallel_cross_entropy(x_nc, output.clone(), targets, &shard, &options)
    };
    let chunk = chunk_rows(n, size.div_ceil(ranks));
    let losses = (0..n).step_by(chunk).map(|first| loss_of(first, chunk.min(n - first)));
    losses.reduce(|a, b| a + b).expect("a batch has tokens")
}

/// `[b, t, c]` -> `[b, t, v]`, the whole vocabulary on every rank.
pub(crate) fn logits(x_btc: Tensor<3>, projection: Projection, regions: &Regions) -> Tensor<3> {
    let x_btc = regions.enter(scaled(x_btc, projection.multiplier));
    let own = linear_weighted(x_btc, &projection.weight_vc, projection.scaled_bias(), None);
    cap(gather_vocabulary(own, projection.vocab_size, regions.tensor()), projection.softcap)
}

/// This rank's columns of the vocabulary, `[b, t, v]` -> all, on every rank. Ranks with fewer
/// columns send padding, which is dropped.
fn gather_vocabulary(own_btv: Tensor<3>, size: usize, group: &Group) -> Tensor<3> {
    let ranks = group.size();
    if size.is_multiple_of(ranks) {
        return gather_replicated(own_btv, 2, Cut::Contiguous, group);
    }
    let ([b, t, v], most) = (own_btv.dims(), size.div_ceil(ranks));
    let filled = match most - v {
        0 => own_btv,
        fewer => {
            let options = (&own_btv.device(), own_btv.dtype());
            Tensor::cat(vec![own_btv.clone(), Tensor::zeros([b, t, fewer], options)], 2)
        }
    };
    let all = gather_replicated(filled, 2, Cut::Contiguous, group);
    let of_rank = |rank| all.clone().narrow(2, rank * most, vocabulary_rows(size, rank, ranks).len());
    Tensor::cat((0..ranks).map(of_rank).collect(), 2)
}

/// The ranks of a group that share a vocabulary.
///
/// Errors of the group leave as the panics that region operations use (see
/// [`bridge_regions`]).
struct GroupExchange<'a>(&'a Group);

impl GroupExchange<'_> {
    fn reduce(&self, values: &mut [f32], op: ReduceOp) {
        if let Err(error) = self.0.all_reduce(values.into(), op) {
            std::panic::panic_any(error);
        }
    }
}

impl VocabularyExchange for GroupExchange<'_> {
    fn max(&self, values: &mut [f32]) {
        self.reduce(values, ReduceOp::Max);
    }

    fn sum(&self, values: &mut [f32]) {
        self.reduce(values, ReduceOp::Sum);
    }
}
