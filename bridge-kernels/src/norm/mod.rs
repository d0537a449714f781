//! RMSNorm and LayerNorm over the last dimension.

pub(crate) mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
mod flex;

use burn::tensor::Tensor;

use crate::flex::by_element;
use crate::precision::{narrow, widen};
use crate::recomputable::Recomputable;

/// Root-mean-square norm (Zhang and Sennrich, arXiv:1910.07467): `x / sqrt(mean(x^2) + epsilon) *
/// weight`.
///
/// Computed in float32 whatever the input's dtype, and rounded once; the weight may be wider than
/// the input.
///
/// # Shapes
/// `x` `[.., c]`, `weight_c` `[c]` -> `[.., c]`.
///
/// # Panics
/// If the sizes differ.
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight_c: Tensor<1>, epsilon: f64) -> Tensor<D> {
    check(&x, &weight_c, None);
    #[cfg(feature = "cube")]
    if let Some(y) = cube::rms_norm(&x, &weight_c, epsilon) {
        return y;
    }
    by_element!(x, E => flex::rms_norm::<E, D>(&x, &weight_c, epsilon))
        .unwrap_or_else(|| rms_norm_reference(x, weight_c, epsilon))
}

/// Layer norm (Ba et al., arXiv:1607.06450): `(x - mean) / sqrt(variance + epsilon) * weight +
/// bias`.
///
/// Computed in float32 whatever the input's dtype, and rounded once; the variance is the biased
/// one.
///
/// # Shapes
/// `x` `[.., c]`, `weight_c` and `bias_c` `[c]` -> `[.., c]`.
///
/// # Panics
/// If the sizes differ.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    weight_c: Tensor<1>,
    bias_c: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    check(&x, &weight_c, bias_c.as_ref());
    #[cfg(feature = "cube")]
    if let Some(y) = cube::layer_norm(&x, &weight_c, bias_c.as_ref(), epsilon) {
        return y;
    }
    by_element!(x, E => flex::layer_norm::<E, D>(&x, &weight_c, bias_c.as_ref(), epsilon))
        .unwrap_or_else(|| layer_norm_reference(x, weight_c, bias_c, epsilon))
}

/// [`rms_norm`] of a residual stream, and the stream itself, to which the block's output will be
/// added: `(norm(x), x)`.
///
/// The gradient of the stream is added to the norm's in the same pass, instead of in another pass
/// over the stream. (Megatron calls this a fused residual norm.) The norm's output can be
/// recomputed from the stream.
///
/// # Shapes
/// `x` `[.., c]`, `weight_c` `[c]` -> `[.., c]` and `[.., c]`.
///
/// # Panics
/// If the sizes differ.
pub fn residual_rms_norm<const D: usize>(
    x: Tensor<D>,
    weight_c: Tensor<1>,
    epsilon: f64,
) -> (Recomputable<D>, Tensor<D>) {
    check(&x, &weight_c, None);
    #[cfg(feature = "cube")]
    if let Some((y, x)) = cube::residual_rms_norm(&x, &weight_c, epsilon) {
        return (y.into(), x);
    }
    by_element!(x, E => flex::residual_rms_norm::<E, D>(&x, &weight_c, epsilon))
        .unwrap_or_else(|| (rms_norm(x.clone(), weight_c, epsilon).into(), x))
}

/// [`layer_norm`] of a residual stream, and the stream itself; see [`residual_rms_norm`].
///
/// # Shapes
/// `x` `[.., c]`, `weight_c` and `bias_c` `[c]` -> `[.., c]` and `[.., c]`.
///
/// # Panics
/// As [`residual_rms_norm`].
pub fn residual_layer_norm<const D: usize>(
    x: Tensor<D>,
    weight_c: Tensor<1>,
    bias_c: Option<Tensor<1>>,
    epsilon: f64,
) -> (Recomputable<D>, Tensor<D>) {
    check(&x, &weight_c, bias_c.as_ref());
    #[cfg(feature = "cube")]
    if let Some((y, x)) = cube::residual_layer_norm(&x, &weight_c, bias_c.as_ref(), epsilon) {
        return (y.into(), x);
    }
    by_element!(x, E => flex::residual_layer_norm::<E, D>(&x, &weight_c, bias_c.as_ref(), epsilon))
        .unwrap_or_else(|| (layer_norm(x.clone(), weight_c, bias_c, epsilon).into(), x))
}

/// Fails early on shapes that do not fit each other.
fn check<const D: usize>(x: &Tensor<D>, weight_c: &Tensor<1>, bias_c: Option<&Tensor<1>>) {
    let [c] = weight_c.dims();
    assert!(D > 0 && x.dims()[D - 1] == c, "norm: an input of {:?} does not fit a weight of {c}", x.dims());
    if let Some(bias_c) = bias_c {
        assert_eq!(bias_c.dims(), [c], "norm: the bias does not fit a weight of {c}");
    }
}

/// [`rms_norm`] in plain Burn operations.
pub fn rms_norm_reference<const D: usize>(x: Tensor<D>, weight_c: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let dtype = x.dtype();
    let x = widen(x);
    let mean_square = (x.clone() * x.clone()).mean_dim(D - 1);
    narrow(x * (mean_square + epsilon).sqrt().recip() * widen(weight_c).unsqueeze(), dtype)
}

/// [`layer_norm`] in plain Burn operations.
pub fn layer_norm_reference<const D: usize>(
    x: Tensor<D>,
    weight_c: Tensor<1>,
    bias_c: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    let dtype = x.dtype();
    let x = widen(x);
    let centred = x.clone() - x.mean_dim(D - 1);
    let variance = (centred.clone() * centred.clone()).mean_dim(D - 1);
    let y = centred * (variance + epsilon).sqrt().recip() * widen(weight_c).unsqueeze();
    let y = match bias_c {
        Some(bias_c) => y + widen(bias_c).unsqueeze(),
        None => y,
    };
    narrow(y, dtype)
}
