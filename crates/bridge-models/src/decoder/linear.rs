//! A linear layer with its parameters.

use bridge_kernels::linear;
use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::init::Initializer;

/// `x w^T + bias`.
#[derive(Module, Debug)]
pub(super) struct Linear {
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
}

/// What a linear layer is made from.
#[derive(Clone, Debug)]
pub(super) struct LinearConfig {
    /// Dotted name of the layer; its parameters add `.weight` and `.bias`.
    pub name: String,
    /// Size of the input.
    pub inputs: usize,
    /// Size of the output: rows of the weight.
    pub outputs: usize,
    /// With a bias.
    pub bias: bool,
    /// Standard deviation of the initial weight.
    pub std: f64,
}

impl Linear {
    pub fn new(config: &LinearConfig, init: &Initializer) -> Self {
        let name = format!("{}.weight", config.name);
        Self {
            weight: init.normal(&name, [config.outputs, config.inputs], config.std),
            bias: config.bias.then(|| init.zeros(config.outputs)),
        }
    }

    /// `[.., inputs]` -> `[.., outputs]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        linear(x, self.weight.val(), self.bias.as_ref().map(|bias| bias.val()))
    }
}
