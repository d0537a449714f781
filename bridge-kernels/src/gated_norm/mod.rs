//! RMSNorm over groups of channels, of a value that a gate lets pass: the norm inside a Mamba-2
//! layer.

mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
mod flex;

use burn::tensor::{Tensor, activation::silu};

use crate::precision::{is_narrow_on_cpu, narrow, widen};

/// `rms_norm(x * silu(z))`, the mean square taken over each of `groups` equal runs of channels (Dao
/// and Gu, arXiv:2405.21060, section 7).
///
/// Computed in float32 whatever the input's dtype, and rounded once.
///
/// # Shapes
/// `x_btc` and `z_btc` `[b, t, c]`, `weight_c` `[c]` -> `[b, t, c]`.
///
/// # Panics
/// If the sizes differ, or `groups` does not divide `c`.
pub fn gated_rms_norm(
    x_btc: Tensor<3>,
    z_btc: Tensor<3>,
    weight_c: Tensor<1>,
    groups: usize,
    epsilon: f64,
) -> Tensor<3> {
    let [_, _, c] = x_btc.dims();
    assert_eq!(x_btc.dims(), z_btc.dims(), "gated_rms_norm: a gate for each value");
    assert_eq!(weight_c.dims(), [c], "gated_rms_norm: a weight for each channel");
    assert!(groups > 0 && c.is_multiple_of(groups), "gated_rms_norm: {c} channels in {groups} groups");
    #[cfg(feature = "cube")]
    if let Some(y) = cube::gated_rms_norm(&x_btc, &z_btc, &weight_c, groups, epsilon) {
        return y;
    }
    if is_narrow_on_cpu(&x_btc) {
        let dtype = x_btc.dtype();
        return narrow(gated_rms_norm(widen(x_btc), widen(z_btc), widen(weight_c), groups, epsilon), dtype);
    }
    flex::gated_rms_norm(&x_btc, &z_btc, &weight_c, groups, epsilon)
        .unwrap_or_else(|| gated_rms_norm_reference(x_btc, z_btc, weight_c, groups, epsilon))
}

/// [`gated_rms_norm`] in plain Burn operations.
pub fn gated_rms_norm_reference(
    x_btc: Tensor<3>,
    z_btc: Tensor<3>,
    weight_c: Tensor<1>,
    groups: usize,
    epsilon: f64,
) -> Tensor<3> {
    let ([b, t, c], dtype) = (x_btc.dims(), x_btc.dtype());
    let gated = (widen(x_btc) * silu(widen(z_btc))).reshape([b, t, groups, c / groups]);
    let mean_square = (gated.clone() * gated.clone()).mean_dim(3);
    let normed = (gated * (mean_square + epsilon).sqrt().recip()).reshape([b, t, c]);
    narrow(normed * widen(weight_c).reshape([1, 1, c]), dtype)
}
