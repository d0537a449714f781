//! The end of the decoder: output projection with loss, or with logits.

use bridge_kernels::cross_entropy::cap;
use bridge_kernels::{CrossEntropyOptions, linear, linear_cross_entropy};
use burn::tensor::{Int, Tensor};

/// Targets of the loss.
pub(super) struct Targets {
    /// Next-token ids, `[b, t]`.
    pub labels_bt: Tensor<2, Int>,
    /// Weight of each target, `[b, t]` float32.
    pub mask_bt: Tensor<2>,
}

/// Sum over tokens of the masked cross-entropy of `x weight^T`.
///
/// `x_btc` `[b, t, c]`, `weight_vc` `[v, c]` -> `[1]` float32.
pub(super) fn loss_sum(x_btc: Tensor<3>, weight_vc: Tensor<2>, targets: Targets, softcap: Option<f64>) -> Tensor<1> {
    let [b, t, c] = x_btc.dims();
    let options = CrossEntropyOptions { softcap, z_loss: None };
    let labels_n = targets.labels_bt.reshape([b * t]);
    linear_cross_entropy(x_btc.reshape([b * t, c]), weight_vc, labels_n, targets.mask_bt.reshape([b * t]), &options)
}

/// `[b, t, c]` -> `[b, t, v]`.
pub(super) fn logits(x_btc: Tensor<3>, weight_vc: Tensor<2>, softcap: Option<f64>) -> Tensor<3> {
    cap(linear(x_btc, weight_vc, None), softcap)
}
