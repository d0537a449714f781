//! The gated delta rule, in chunks: the recurrence of Gated DeltaNet (Yang, Kautz and Hatamizadeh,
//! arXiv:2412.06464) and, with a decay for each key channel, of Kimi delta attention
//! (arXiv:2510.26692).
//!
//! Further shape letters: `g` key heads, `h` value heads, `k` channels of a key, `p` channels of a
//! value, `e` decays of a head (1 or `k`), `l` tokens of a chunk.

mod cpu;
mod cpu_backward;
mod cpu_decays;
mod cpu_scores;
mod cpu_scores_backward;
mod flex;
mod reference;
mod shape;

use burn::tensor::Tensor;

pub use reference::gated_delta_rule_reference;
pub use shape::{DeltaInputs, DeltaOptions};

use crate::precision::{is_narrow_on_cpu, narrow};

/// For each value head, with the state `S` of `[k, p]` that begins with zeros:
///
/// ```text
/// S'   = Diag(exp(decay[t])) S[t - 1]
/// S[t] = S' + beta[t] k[t] (v[t] - S'^T k[t])^T
/// y[t] = S[t]^T (scale q[t])
/// ```
///
/// `q` and `k` are first brought to unit length, see [`DeltaOptions`]. A key head serves `h / g`
/// value heads that follow each other. Inside a chunk this is a product of matrices and a
/// triangular system; the state goes from chunk to chunk. Computed in float32 whatever the input's
/// dtype, and rounded once.
///
/// # Shapes
/// See [`DeltaInputs`] -> `[b, t, h, p]`, in the values' dtype.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn gated_delta_rule(inputs: DeltaInputs, options: &DeltaOptions) -> Tensor<4> {
    let sizes = inputs.check(options);
    if is_narrow_on_cpu(&inputs.v_bthp) {
        let dtype = inputs.v_bthp.dtype();
        return narrow(gated_delta_rule(inputs.widened(), options), dtype);
    }
    flex::gated_delta_rule(&inputs, sizes, options)
        .unwrap_or_else(|| gated_delta_rule_reference(inputs, None, options).0)
}

/// [`gated_delta_rule`] of a sequence that continues from a state, `[b, h, k, p]` float32. Returns
/// the state after the sequence too. Without gradients.
///
/// # Panics
/// As [`gated_delta_rule`], or if the state is of another shape.
pub fn gated_delta_rule_from(
    inputs: DeltaInputs,
    state_bhkp: Option<Tensor<4>>,
    options: &DeltaOptions,
) -> (Tensor<4>, Tensor<4>) {
    let sizes = inputs.check(options);
    if let Some(state) = &state_bhkp {
        let expected = [sizes.b, sizes.h, sizes.k, sizes.p];
        assert_eq!(state.dims(), expected, "gated_delta_rule_from: a state for each head of each sequence");
    }
    if is_narrow_on_cpu(&inputs.v_bthp) {
        let dtype = inputs.v_bthp.dtype();
        let (y, state) = gated_delta_rule_from(inputs.widened(), state_bhkp, options);
        return (narrow(y, dtype), state);
    }
    flex::gated_delta_rule_from(&inputs, state_bhkp.as_ref(), sizes, options)
        .unwrap_or_else(|| gated_delta_rule_reference(inputs, state_bhkp, options))
}
