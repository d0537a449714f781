//! Linear layers with products of 8-bit floats (Micikevicius et al., arXiv:2209.05433), as in
//! Transformer Engine's recipes.
//!
//! On CUDA devices with 8-bit matrix units, products of operands with one scale each are cuBLASLt's
//! ([`Fp8Scaling::Current`] and [`Fp8Scaling::Delayed`]). Other products are emulated: operands are
//! cast to 8 bits, and dequantized values are multiplied in float32. 8-bit matrix units compute the
//! same, up to the order in which they add. On the CPU the input is kept for backward in 8
//! bits, if the weight's gradient is made of such operands ([`Fp8Rule::weight_gradient`]).
//! Elsewhere inputs and weights are kept as they are; scales and magnitudes stay on the device, so
//! nothing waits for it, and casts that are emulated are plain operations there.

mod cpu;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cube")]
mod cublaslt;
mod flex;
mod format;
mod pass;
mod reference;
mod rule;
#[cfg(feature = "cube")]
mod several;
#[cfg(test)]
mod tests;
mod weight_cast;

use burn::tensor::Tensor;

#[cfg(feature = "cube")]
use crate::cublaslt::Table;
#[cfg(feature = "cuda")]
use crate::cublaslt::cuda::CublasLt;
use crate::linear::check;
use crate::precision::{float32, narrow};

pub use format::Fp8Format;
pub use pass::Fp8Pass;
pub use reference::reference;
pub use rule::{Fp8Rule, Fp8Scaling, OperandMaxima};
pub use weight_cast::{CodePlaces, WeightCast};

/// `x w^T + bias` in 8 bits: operands of the three products are cast as `pass` says, sums are
/// float32, and the bias and its gradient are not cast. Gradients are those of the products as if
/// the casts were not there (straight through).
///
/// # Shapes
/// `x` `[.., i]`, `weight_oi` `[o, i]`, `bias_o` `[o]` -> `[.., o]`.
///
/// # Panics
/// If the sizes do not fit each other, or scales that the rule needs are missing.
pub fn fp8_linear<const D: usize>(
    x: Tensor<D>,
    weight_oi: Tensor<2>,
    bias_o: Option<Tensor<1>>,
    pass: &Fp8Pass,
) -> Tensor<D> {
    check(&x, &weight_oi, bias_o.as_ref());
    #[cfg(feature = "cuda")]
    if let Some(table) = CublasLt::from_tensor(&x)
        && let Some(y) = cublaslt::fp8_linear(&table, &x, &weight_oi, bias_o.as_ref(), pass)
    {
        return y;
    }
    let dtype = x.dtype();
    // Tensors for backward are kept in their dtype, not widened.
    let kept = (x.clone().without_autodiff(), weight_oi.clone().without_autodiff());
    let (x, weight_oi, bias_o) = (float32(x), float32(weight_oi), bias_o.map(float32));
    let y = flex::fp8_linear(&x, &weight_oi, bias_o.as_ref(), pass, kept.clone());
    narrow(y.unwrap_or_else(|| reference::plain(x, weight_oi, bias_o, (pass, kept))), dtype)
}

/// [`fp8_linear`] by the products of a table, for tensors of a CubeCL device; those of backward
/// that it does not have are emulated. `None` where this does not apply: operands with scales for
/// blocks, mixed dtypes, no product for the output.
///
/// # Panics
/// If the sizes do not fit each other.
#[cfg(feature = "cube")]
pub fn fp8_linear_by_table<T: Table, const D: usize>(
    table: &T,
    x: &Tensor<D>,
    weight_oi: &Tensor<2>,
    bias_o: Option<&Tensor<1>>,
    pass: &Fp8Pass,
) -> Option<Tensor<D>> {
    check(x, weight_oi, bias_o);
    cublaslt::fp8_linear(table, x, weight_oi, bias_o, pass)
}
