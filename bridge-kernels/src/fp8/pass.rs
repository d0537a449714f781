//! What a layer is told of a pass.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::rule::{Fp8Rule, OperandMaxima};

/// What a linear layer does in 8 bits, in one pass.
#[derive(Clone, Debug)]
pub struct Fp8Pass {
    /// How operands are cast.
    pub rule: Fp8Rule,
    /// `[3]`, float32, on the device of the operands: the scales of input, weight and gradient, for [`Fp8Scaling::Delayed`](super::Fp8Scaling::Delayed).
    pub scales: Option<Tensor<1>>,
    /// Where the largest magnitudes of operands are noted, forward and backward.
    pub maxima: Option<Arc<OperandMaxima>>,
}
