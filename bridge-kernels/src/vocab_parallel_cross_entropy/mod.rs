//! Next-token cross-entropy, fused with an output projection whose rows (the vocabulary) are spread
//! over ranks.
//!
//! No rank ever has another rank's logits. For each token the ranks agree on three numbers: the
//! largest logit, the sum of exponentials below it, and the target's logit (Shoeybi et al.,
//! arXiv:1909.08053, section 3). The caller implements the communication: see
//! [`VocabularyExchange`].

pub(crate) mod cpu;
mod flex;
mod shard;

use burn::tensor::{Int, Tensor, TensorData};

pub use shard::{Targets, VocabularyExchange, VocabularyShard};

use crate::cross_entropy::{CrossEntropyOptions, OutputLayer, cap};
use crate::flex::by_element;
use crate::linear::linear;
use crate::precision::widen;

/// Sum over tokens of `mask * cross_entropy(x w^T + bias, target)`, where `w` is the concatenation
/// of all ranks' weights, and `bias` that of their biases.
///
/// Every rank gets the same value. Backward gives each rank the gradients of its own weight and
/// bias, and its own term of the gradient of `x`: the caller sums those over the ranks. Logits of a
/// chunk of tokens are all that exists at a time, on this rank's rows.
///
/// # Shapes
/// `x_nc` `[n, c]`, `output` `[v, c]` (this rank's rows) -> `[1]` float32.
///
/// # Panics
/// If the shapes do not fit, a token that counts has a target outside the vocabulary, or the
/// exchange panics.
pub fn vocab_parallel_cross_entropy(
    x_nc: Tensor<2>,
    output: impl Into<OutputLayer>,
    targets: Targets,
    shard: &VocabularyShard<'_>,
    options: &CrossEntropyOptions,
) -> Tensor<1> {
    let output = output.into();
    output.check();
    let ([n, c], [v, wc]) = (x_nc.dims(), output.weight_vc.dims());
    assert_eq!(c, wc, "vocab_parallel_cross_entropy: hidden states of size {c} and a weight of {:?}", [v, wc]);
    assert!(
        shard.start + v <= shard.size,
        "vocab_parallel_cross_entropy: rows {}..{} of a vocabulary of {}",
        shard.start,
        shard.start + v,
        shard.size
    );
    assert!(
        targets.ids_n.dims() == [n] && targets.mask_n.dims() == [n],
        "vocab_parallel_cross_entropy: {n} tokens need as many targets and mask values, got {:?} and {:?}",
        targets.ids_n.dims(),
        targets.mask_n.dims()
    );
    by_element!(x_nc, E => flex::vocab_parallel_cross_entropy::<E>(&x_nc, &output, &targets, shard, options))
        .unwrap_or_else(|| reference(x_nc, output, targets, shard, options))
}

/// [`vocab_parallel_cross_entropy`] in plain Burn operations; this rank's logits are materialised.
pub fn reference(
    x_nc: Tensor<2>,
    output: impl Into<OutputLayer>,
    targets: Targets,
    shard: &VocabularyShard<'_>,
    options: &CrossEntropyOptions,
) -> Tensor<1> {
    let OutputLayer { weight_vc, bias_v } = output.into();
    let ([n, _], [v, _]) = (x_nc.dims(), weight_vc.dims());
    let weight_vc = weight_vc.whole(&x_nc.device(), x_nc.dtype().into());
    let logits_nv = cap(widen(linear(x_nc, weight_vc, bias_v)), options.softcap);
    let values_nv = logits_nv.clone().detach().without_autodiff();
    let device = values_nv.device();
    let combined = |columns: Tensor<2>, combine: &dyn Fn(&mut [f32])| -> Tensor<2> {
        let shape = columns.dims();
        let mut values: Vec<f32> = columns.into_data().iter::<f32>().collect();
        combine(&mut values);
        Tensor::from_data(TensorData::new(values, shape), &device)
    };
    let largest = combined(values_nv.clone().max_dim(1), &|values| shard.exchange.max(values));
    let exponentials_nv = (values_nv.clone() - largest.clone()).exp();
    // One where a row's target is this rank's: at most one in a row.
    let rows: Tensor<2, Int> =
        Tensor::<1, Int>::arange(shard.start as i64..(shard.start + v) as i64, &device).reshape([1, v]);
    let ids: Tensor<2, Int> = targets.ids_n.reshape([n, 1]);
    let is_target_nv = ids.expand([n, v]).equal(rows.expand([n, v])).float();
    let own = (values_nv * is_target_nv.clone()).sum_dim(1);
    let sums = Tensor::cat(vec![exponentials_nv.clone().sum_dim(1), own], 1);
    let sums = combined(sums, &|values| shard.exchange.sum(values));
    let (sum, target) = (sums.clone().narrow(1, 0, 1), sums.narrow(1, 1, 1));
    let mask: Tensor<2> = targets.mask_n.without_autodiff().reshape([n, 1]);
    let log_z = sum.clone().log() + largest;
    let weight = options.z_loss.unwrap_or(0.0);
    let loss = ((log_z.clone() - target + log_z.clone() * log_z.clone() * weight) * mask.clone()).sum();
    let gradient_nv = (exponentials_nv / sum * (log_z * (2.0 * weight) + 1.0) - is_target_nv) * mask;
    if !logits_nv.is_tracked() {
        return loss;
    }
    // Value and gradient are known: add a term with this gradient and subtract its detached value,
    // so that the value is exact.
    let slope = (logits_nv * Tensor::<2>::autodiff(gradient_nv)).sum();
    slope.clone() - slope.detach() + loss.autodiff()
}
