//! Settings of a layer in one pass.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::rule::{Fp8Rule, OperandMaxima};

/// 8-bit computation of a linear layer in one pass.
#[derive(Clone, Debug)]
pub struct Fp8Pass {
    /// Rule by which operands are cast.
    pub rule: Fp8Rule,
    /// `[3]`, float32, on the device of the operands: the scales of input, weight and gradient, for
    /// [`Fp8Scaling::Delayed`](super::Fp8Scaling::Delayed).
    pub scales: Option<Tensor<1>>,
    /// Record of the largest magnitudes of operands, forward and backward.
    pub maxima: Option<Arc<OperandMaxima>>,
}
