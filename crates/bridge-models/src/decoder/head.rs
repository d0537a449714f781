//! The end of the decoder: output projection with loss, or with logits.

use bridge_dist::comm::{Group, ReduceOp};
use bridge_dist::region::{Cut, gather_replicated};
use bridge_kernels::cross_entropy::cap;
use bridge_kernels::vocab_parallel_cross_entropy::{self as vocab_parallel, VocabularyExchange, VocabularyShard};
use bridge_kernels::{CrossEntropyOptions, linear, linear_cross_entropy, vocab_parallel_cross_entropy};
use burn::tensor::{Int, Tensor};

use super::regions::Regions;

/// Targets of the loss.
pub(super) struct Targets {
    /// Next-token ids, `[b, t]`.
    pub labels_bt: Tensor<2, Int>,
    /// Weight of each target, `[b, t]` float32.
    pub mask_bt: Tensor<2>,
}

/// Output table and soft cap.
pub(super) struct Projection {
    /// `[v, c]`: this rank's rows of the vocabulary.
    pub weight_vc: Tensor<2>,
    /// Soft cap on the logits.
    pub softcap: Option<f64>,
}

/// Sum over tokens of the masked cross-entropy of `x weight^T`.
///
/// `x_btc` `[b, t, c]` of the residual stream -> `[1]` float32, the same on all ranks that share the vocabulary.
pub(super) fn loss_sum(x_btc: Tensor<3>, projection: Projection, targets: Targets, regions: &Regions) -> Tensor<1> {
    let x_btc = regions.enter(x_btc);
    let [b, t, c] = x_btc.dims();
    let options = CrossEntropyOptions { softcap: projection.softcap, z_loss: None };
    let x_nc = x_btc.reshape([b * t, c]);
    let ids_n = targets.labels_bt.reshape([b * t]);
    let mask_n = targets.mask_bt.reshape([b * t]);
    let group = regions.tensor();
    if group.size() == 1 {
        return linear_cross_entropy(x_nc, projection.weight_vc, ids_n, mask_n, &options);
    }
    let [rows, _] = projection.weight_vc.dims();
    let shard = VocabularyShard { start: rows * group.rank(), size: rows * group.size(), exchange: &OverGroup(group) };
    let targets = vocab_parallel::Targets { ids_n, mask_n };
    vocab_parallel_cross_entropy(x_nc, projection.weight_vc, targets, &shard, &options)
}

/// `[b, t, c]` -> `[b, t, v]`, the whole vocabulary on every rank.
pub(super) fn logits(x_btc: Tensor<3>, projection: Projection, regions: &Regions) -> Tensor<3> {
    let own = linear(regions.enter(x_btc), projection.weight_vc, None);
    cap(gather_replicated(own, 2, Cut::Contiguous, regions.tensor()), projection.softcap)
}

/// The ranks of a group that share a vocabulary.
///
/// Errors of the group leave as the panics that region operations use (see [`bridge_dist::region`]).
struct OverGroup<'a>(&'a Group);

impl OverGroup<'_> {
    fn reduce(&self, values: &mut [f32], op: ReduceOp) {
        if let Err(error) = self.0.all_reduce(values.into(), op) {
            std::panic::panic_any(error);
        }
    }
}

impl VocabularyExchange for OverGroup<'_> {
    fn max(&self, values: &mut [f32]) {
        self.reduce(values, ReduceOp::Max);
    }

    fn sum(&self, values: &mut [f32]) {
        self.reduce(values, ReduceOp::Sum);
    }
}
