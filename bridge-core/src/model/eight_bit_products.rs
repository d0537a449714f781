//! The 8-bit products of a linear layer.

use std::sync::Arc;

use bridge_kernels::{Fp8Pass, Fp8Rule, Fp8Scaling, OperandMaxima, fp8_linear};
use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::{PassStream, ReplicaGroup};

/// Name, in a layer's scope, of the scales of its operands: input, weight, gradient.
pub(crate) const SCALES: &str = "fp8_scale";
/// Name of the largest magnitudes of the last steps, a row an operand, the newest first.
pub(crate) const HISTORY: &str = "fp8_amax_history";

/// 8-bit computation of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EightBitLayer {
    /// Rule by which operands are cast.
    pub rule: Fp8Rule,
    /// Steps whose largest magnitudes are kept, for scales that come from them.
    pub history: usize,
}

impl EightBitLayer {
    /// True if scales come from earlier steps, so that the layer has state.
    pub fn has_state(&self) -> bool {
        self.rule.scaling == Fp8Scaling::Delayed
    }
}

/// A linear layer with delayed scaling: it records the amax of its operands for later steps.
#[derive(Clone, Debug)]
pub struct DelayedScalingLayer {
    /// Dotted name of the layer.
    pub name: String,
    /// Ranks that have replicas of the layer.
    pub replicas: ReplicaGroup,
    /// Magnitudes that the layer recorded.
    pub maxima: Arc<OperandMaxima>,
}

/// The 8-bit products of a linear layer: a part of its module.
#[derive(Module, Debug)]
pub struct EightBitProducts {
    /// Scales of input, weight and gradient, if they come from earlier steps.
    scales: Option<Param<Tensor<1>>>,
    /// `[3, steps]`: amax history that the scales are computed from. Not read here.
    history: Option<Param<Tensor<2>>>,
    #[module(skip)]
    rule: Fp8Rule,
    #[module(skip)]
    maxima: Arc<OperandMaxima>,
    #[module(skip)]
    pass: PassStream,
}

impl EightBitProducts {
    /// Products of a layer in the passes of `pass`; `state` has scales and history, of a layer with
    /// state.
    pub(super) fn new(rule: Fp8Rule, state: Option<(Param<Tensor<1>>, Param<Tensor<2>>)>, pass: PassStream) -> Self {
        let (scales, history) = state.unzip();
        Self { scales, history, rule, maxima: Arc::default(), pass }
    }

    /// Record of the largest magnitudes of operands, if scales are derived from them.
    pub(super) fn maxima(&self) -> Option<&Arc<OperandMaxima>> {
        self.scales.as_ref().map(|_| &self.maxima)
    }

    /// `x w^T + bias`, see [`fp8_linear`].
    pub fn linear<const D: usize>(&self, x: Tensor<D>, weight_oi: Tensor<2>, bias_o: Option<Tensor<1>>) -> Tensor<D> {
        // Scales stay on the device: reading them would synchronize with the GPU in each layer.
        let scales = self.scales.as_ref().map(|scales| scales.val().without_autodiff());
        // Evaluation does not record magnitudes, so that it does not change training.
        let is_noted = self.scales.is_some() && self.pass.get().is_some();
        let maxima = is_noted.then(|| Arc::clone(&self.maxima));
        fp8_linear(x, weight_oi, bias_o, &Fp8Pass { rule: self.rule, scales, maxima })
    }
}
