//! Causal scaled-dot-product attention with grouped key/value heads.

mod choice;
pub(crate) mod cpu;
pub(crate) mod cpu_backward;
#[cfg(feature = "cube")]
pub mod cube;
#[cfg(feature = "cube")]
mod cube_backward;
#[cfg(feature = "cube")]
pub mod cube_products;
#[cfg(feature = "cube")]
mod cube_scores;
pub(crate) mod flex;
pub(crate) mod heads;
#[cfg(feature = "cube")]
pub mod matrix_units;
#[cfg(feature = "cube")]
mod matrix_units_backward;
mod max_logit;
mod options;
mod parts;
#[cfg(feature = "cube")]
mod products;

use burn::tensor::{Bool, Int, Tensor};

pub use choice::{KeyChoice, mark_best};
pub use max_logit::{MaxLogit, MaxLogitProbe};
pub use options::AttentionOptions;
pub use parts::workspace_bytes_on_gpu;

use crate::dropout::dropout;
use crate::flex::by_element;
use crate::precision::{narrow, widen};

/// Causal attention. Query `i` has position `s - t + i`, so with a KV cache the queries are the
/// last `t` positions. With a [`KeyChoice`] the mask is that choice.
///
/// Scores and their softmax are in float32 whatever the inputs' dtype.
///
/// # Shapes
/// `q_bthd` `[b, t, h, d]`, `k_bsgd` `[b, s, g, d]`, `v_bsgd` `[b, s, g, w]` with `h % g == 0` and
/// `s >= t` -> `[b, t, h, w]`: heads of values may be of another size, as in latent attention.
///
/// # Panics
/// If the shapes do not fit each other.
pub fn attention(q_bthd: Tensor<4>, k_bsgd: Tensor<4>, v_bsgd: Tensor<4>, options: &AttentionOptions) -> Tensor<4> {
    check_shapes(&q_bthd, &k_bsgd, &v_bsgd, options);
    #[cfg(feature = "cube")]
    if options.choice.is_none() {
        if let Some(out) = matrix_units::attention(&q_bthd, &k_bsgd, &v_bsgd, options, None) {
            return out;
        }
        let by_products = parts::prefers_matrix_products(k_bsgd.dims()[1], k_bsgd.dtype().size());
        let form = if by_products { cube_products::attention } else { cube::attention };
        if let Some(out) = form(&q_bthd, &k_bsgd, &v_bsgd, options) {
            return out;
        }
    }
    by_element!(q_bthd, E => flex::attention::<E>(&q_bthd, &k_bsgd, &v_bsgd, options))
        .unwrap_or_else(|| reference(q_bthd, k_bsgd, v_bsgd, options))
}

/// Bytes that one thread of the fused kernel works in, in the backward, for `t` queries, `s` keys
/// and heads of `d` for keys and `width` for values: probabilities of a block and their gradients,
/// and the gradients of one head's keys and values. Dropout adds one row.
pub fn workspace_bytes([t, s]: [usize; 2], [d, width]: [usize; 2]) -> usize {
    (2 * cpu::block(t, s) + d + width) * s * size_of::<f32>()
}

/// Fails early, and by name, on shapes that do not fit each other.
fn check_shapes(q_bthd: &Tensor<4>, k_bsgd: &Tensor<4>, v_bsgd: &Tensor<4>, options: &AttentionOptions) {
    let ([b, t, h, d], [kb, s, g, kd]) = (q_bthd.dims(), k_bsgd.dims());
    assert!(
        [kb, kd] == [b, d] && v_bsgd.dims()[..3] == k_bsgd.dims()[..3],
        "attention: queries {:?}, keys {:?} and values {:?} do not fit each other",
        q_bthd.dims(),
        k_bsgd.dims(),
        v_bsgd.dims()
    );
    assert!(g > 0 && h % g == 0, "attention: {h} query heads do not divide into {g} key/value groups");
    let needed = if options.choice.is_some() { 0 } else { t };
    assert!(s >= needed, "attention: {t} queries need at least as many keys, got {s}");
    options.check([b, t, s], [h, g]);
}

/// [`attention`] in plain Burn operations; the score matrix is materialised.
pub fn reference(q_bthd: Tensor<4>, k_bsgd: Tensor<4>, v_bsgd: Tensor<4>, options: &AttentionOptions) -> Tensor<4> {
    let [b, t, h, d] = q_bthd.dims();
    let [_, s, g, width] = v_bsgd.dims();
    assert!(h % g == 0, "{h} query heads do not divide into {g} key/value groups");
    let dtype = q_bthd.dtype();
    let per_group = h / g;
    // Query heads of one group share its keys: fold them into rows, [b, g, per_group * t, d].
    let q: Tensor<4> =
        q_bthd.reshape([b, t, g, per_group, d]).permute([0, 2, 3, 1, 4]).reshape([b, g, per_group * t, d]);
    let k = k_bsgd.permute([0, 2, 3, 1]);
    let v = v_bsgd.permute([0, 2, 1, 3]);
    let mut scores = widen(q.matmul(k)) * options.scale;
    if let Some(cap) = options.softcap {
        scores = (scores / cap).tanh() * cap;
    }
    let scores = scores.reshape([b, g, per_group, t, s]);
    let masked = masked_keys(b, t, s, options, &scores.device());
    let masked = masked.expand([b, g, per_group, t, s]);
    let scores = scores.mask_fill(masked, f32::NEG_INFINITY);
    if let Some(MaxLogitProbe { max_logit, first_query }) = &options.probe {
        max_logit.record_max(scores.clone().narrow(3, *first_query, t - first_query));
    }
    let mut probabilities = match &options.sinks_h {
        None => softmax(scores),
        Some(sinks_h) => {
            let sinks: Tensor<5> = widen(sinks_h.clone()).reshape([1, g, per_group, 1, 1]);
            let all = Tensor::cat(vec![scores, sinks.expand([b, g, per_group, t, 1])], 4);
            softmax(all).narrow(4, 0, s)
        }
    };
    if let Some((rate, key)) = options.dropout {
        // The mask is drawn in [b, h, t, s] order, so that it does not depend on how heads are
        // grouped.
        probabilities = dropout(probabilities, rate, key);
    }
    let probabilities = narrow(probabilities, dtype).reshape([b, g, per_group * t, s]);
    let out: Tensor<5> = probabilities.matmul(v).reshape([b, g, per_group, t, width]);
    out.permute([0, 3, 1, 2, 4]).reshape([b, t, h, width])
}

/// Softmax over the last dimension, of rows that hold at least one finite score.
///
/// Written out, because backends fuse Burn's own where there is no graph to record: a recomputed
/// segment would then round differently in its two passes.
fn softmax(scores: Tensor<5>) -> Tensor<5> {
    let largest = scores.clone().detach().max_dim(4);
    let exponentials = (scores - largest).exp();
    let sums = exponentials.clone().sum_dim(4);
    exponentials / sums
}

/// Attention mask: true where a key is masked, broadcastable to `[b, g, h / g, t, s]`.
fn masked_keys(
    b: usize,
    t: usize,
    s: usize,
    options: &AttentionOptions,
    device: &burn::tensor::Device,
) -> Tensor<5, Bool> {
    if let Some(choice) = &options.choice {
        return choice.hidden(0..t, device).unsqueeze_dim(2);
    }
    let device = device.clone().without_autodiff();
    let query = Tensor::<1, Int>::arange((s - t) as i64..s as i64, &device).reshape([t, 1]);
    let key = Tensor::<1, Int>::arange(0..s as i64, &device).reshape([1, s]);
    let distance: Tensor<2, Int> = query.expand([t, s]) - key.expand([t, s]);
    let mut masked = distance.clone().lower_elem(0);
    if let Some(window) = options.window {
        masked = masked.bool_or(distance.greater_elem(window as i64));
    }
    let masked: Tensor<5, Bool> = masked.reshape([1, 1, 1, t, s]);
    let Some(ids_bt) = &options.document_ids else { return masked };
    assert!(s == t, "document boundaries need as many keys as queries, got {s} and {t}");
    let rows: Tensor<5, Int> = ids_bt.clone().reshape([b, 1, 1, t, 1]);
    let columns: Tensor<5, Int> = ids_bt.clone().reshape([b, 1, 1, 1, t]);
    let other = rows.expand([b, 1, 1, t, t]).not_equal(columns.expand([b, 1, 1, t, t]));
    masked.expand([b, 1, 1, t, t]).bool_or(other)
}
