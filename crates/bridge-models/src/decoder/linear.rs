//! A linear layer with its parameters.

use bridge_kernels::linear;
use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::init::Initializer;
use super::regions::Regions;

/// `x w^T + bias`, or this rank's slice of it: see `super::placement`.
#[derive(Module, Debug)]
pub(super) struct Linear {
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
}

/// What a linear layer is made from; sizes are those of the whole layer.
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
            bias: config.bias.then(|| init.sharded_zeros(&format!("{}.bias", config.name), config.outputs)),
        }
    }

    /// The product without communication, `[.., inputs]` -> `[.., outputs]`: of a whole layer, or of one whose outputs are cut.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        linear(x, self.weight.val(), self.bias.as_ref().map(|bias| bias.val()))
    }

    /// The product of a layer whose inputs are cut over tensor-parallel ranks: terms are summed, then the bias is added, once.
    pub fn forward_and_leave(&self, x: Tensor<3>, regions: &Regions) -> Tensor<3> {
        if regions.tensor().size() == 1 {
            return self.forward(x);
        }
        let y = regions.leave(linear(x, self.weight.val(), None));
        match &self.bias {
            Some(bias) => y + bias.val().unsqueeze(),
            None => y,
        }
    }
}
