//! Point-wise activations of the feed-forward block, plain and gated.

pub(crate) mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
mod flex;
mod kind;
pub mod xielu;

use burn::tensor::{Tensor, activation as burn_activation};

pub use kind::{Activation, FeedForwardUnit, GatedUnit};
pub use xielu::{XieluParameters, xielu};

use crate::flex::by_element;
use crate::precision::{narrow, widen};
use crate::recomputable::Recomputable;

/// `activation(x)`, element by element.
///
/// # Shapes
/// any -> the same.
pub fn activation<const D: usize>(x: Tensor<D>, kind: Activation) -> Tensor<D> {
    activation_recomputable(x, kind).tensor
}

/// [`activation`] as a recomputable tensor: backward keeps the input.
pub fn activation_recomputable<const D: usize>(x: Tensor<D>, kind: Activation) -> Recomputable<D> {
    #[cfg(feature = "cube")]
    if let Some(y) = cube::activation(&x, kind) {
        return y.into();
    }
    by_element!(x, E => flex::activation::<E, D>(&x, kind)).unwrap_or_else(|| reference(x, kind).into())
}

/// The gradient of [`activation`]'s input from that of its output and the input, without a graph.
#[cfg(any(test, feature = "cuda"))]
pub(crate) fn activation_gradient<const D: usize>(dy: Tensor<D>, x: Tensor<D>, kind: Activation) -> Tensor<D> {
    #[cfg(feature = "cube")]
    if let Some(dx) = cube::activation_gradient(&dy, &x, kind) {
        return dx;
    }
    flex::activation_gradient(dy, &x, kind).expect("activations are kept on GPUs, or as float32 on the host")
}

/// Gated activation: `activation(gate) * up`, where `x` holds `gate` and then `up` along the last
/// dimension. A [`GatedUnit`] may limit both first; of an [`Activation`] it does not.
///
/// With [`Activation::Silu`] this is SwiGLU (Shazeer, arXiv:2002.05202, equation 6).
///
/// # Shapes
/// `x_bt2f` `[b, t, 2f]` -> `[b, t, f]`.
///
/// # Panics
/// If the last dimension is odd.
pub fn glu(x_bt2f: Tensor<3>, unit: impl Into<GatedUnit>) -> Tensor<3> {
    glu_recomputable(x_bt2f, unit).tensor
}

/// [`glu`](glu()) as a recomputable tensor: backward keeps the input.
///
/// # Panics
/// If the last dimension is odd.
pub fn glu_recomputable(x_bt2f: Tensor<3>, unit: impl Into<GatedUnit>) -> Recomputable<3> {
    let [_, _, width] = x_bt2f.dims();
    assert!(width % 2 == 0, "a gated activation needs an even last dimension, got {width}");
    let unit = unit.into();
    #[cfg(feature = "cube")]
    if let Some(y) = cube::glu(&x_bt2f, unit) {
        return y.into();
    }
    by_element!(x_bt2f, E => flex::glu::<E>(&x_bt2f, unit)).unwrap_or_else(|| glu_reference(x_bt2f, unit).into())
}

/// [`activation`] in plain Burn operations; in float32 whatever the input's dtype, and rounded
/// once.
pub fn reference<const D: usize>(x: Tensor<D>, kind: Activation) -> Tensor<D> {
    let dtype = x.dtype();
    narrow(wide_reference(widen(x), kind), dtype)
}

fn wide_reference<const D: usize>(x: Tensor<D>, kind: Activation) -> Tensor<D> {
    match kind {
        // From its definition: the backward of Burn's own `gelu` is, on most backends, that of the
        // tanh form.
        Activation::Gelu => x.clone() * 0.5 * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0),
        Activation::GeluTanh => {
            let inner = (x.clone() + x.clone().powi_scalar(3) * 0.044715) * (2.0 / std::f64::consts::PI).sqrt();
            x * 0.5 * (inner.tanh() + 1.0)
        }
        Activation::Silu => x.clone() * burn_activation::sigmoid(x),
        Activation::Relu => burn_activation::relu(x),
        Activation::SquaredRelu => {
            let x = burn_activation::relu(x);
            x.clone() * x
        }
        Activation::QuickGelu => x.clone() * burn_activation::sigmoid(x * 1.702),
    }
}

/// [`glu`] in plain Burn operations.
pub fn glu_reference(x_bt2f: Tensor<3>, unit: impl Into<GatedUnit>) -> Tensor<3> {
    let [_, _, width] = x_bt2f.dims();
    assert!(width % 2 == 0, "a gated activation needs an even last dimension, got {width}");
    let dtype = x_bt2f.dtype();
    let x = widen(x_bt2f);
    let GatedUnit { activation, clamp, gate_clamp, linear_offset } = unit.into();
    let mut gate = x.clone().narrow(2, 0, width / 2);
    let mut up = x.narrow(2, width / 2, width / 2);
    if let Some(clamp) = gate_clamp.or(clamp) {
        gate = gate.clamp_max(clamp);
    }
    if let Some(clamp) = clamp {
        up = up.clamp(-clamp, clamp);
    }
    if linear_offset != 0.0 {
        up = up + linear_offset;
    }
    narrow(wide_reference(gate, activation) * up, dtype)
}
