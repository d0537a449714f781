//! LayerNorm or RMSNorm with its parameters.

use bridge_kernels::{layer_norm, rms_norm};
use burn::module::{Module, Param};
use burn::tensor::{FloatDType, Tensor};

use super::config::{NormConfig, NormKind};
use super::init::Initializer;

/// A norm over the last dimension.
#[derive(Module, Debug)]
pub(super) struct Norm {
    weight: Param<Tensor<1>>,
    bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    config: NormConfig,
}

impl Norm {
    /// The identity's parameters: weight one, bias zero.
    pub fn new(config: NormConfig, size: usize, init: &Initializer) -> Self {
        Self {
            weight: if config.zero_centered_gamma { init.zeros(size) } else { init.ones(size) },
            bias: (config.kind == NormKind::LayerNorm).then(|| init.zeros(size)),
            config,
        }
    }

    /// `[.., size]` -> the same.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let weight = self.weight.val();
        let weight = match self.config.zero_centered_gamma {
            // In 16 bits the sum would round away what a weight around 0 is stored for.
            true => weight.cast(FloatDType::F32) + 1.0,
            false => weight,
        };
        match self.config.kind {
            NormKind::LayerNorm => {
                layer_norm(x, weight, self.bias.as_ref().map(|bias| bias.val()), self.config.epsilon)
            }
            NormKind::RmsNorm => rms_norm(x, weight, self.config.epsilon),
        }
    }
}
