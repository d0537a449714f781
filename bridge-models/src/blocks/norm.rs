//! LayerNorm or RMSNorm with its parameters.

use bridge_kernels::{layer_norm, residual_layer_norm, residual_rms_norm, rms_norm};
use burn::module::{Module, Param};
use burn::tensor::{FloatDType, Tensor};

use super::init::Initializer;
use crate::models::decoder::config::{NormConfig, NormKind};

/// A norm over the last dimension.
#[derive(Module, Debug)]
pub(crate) struct Norm {
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
        let (weight, bias) = self.parameters();
        match self.config.kind {
            NormKind::LayerNorm => layer_norm(x, weight, bias, self.config.epsilon),
            NormKind::RmsNorm => rms_norm(x, weight, self.config.epsilon),
        }
    }

    /// The norm of a residual stream, and the stream: `[b, t, size]` -> twice the same.
    pub fn forward_residual(&self, x: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let (weight, bias) = self.parameters();
        match self.config.kind {
            NormKind::LayerNorm => residual_layer_norm(x, weight, bias, self.config.epsilon),
            NormKind::RmsNorm => residual_rms_norm(x, weight, self.config.epsilon),
        }
    }

    /// Weight and bias as they are applied.
    fn parameters(&self) -> (Tensor<1>, Option<Tensor<1>>) {
        let weight = self.weight.val();
        let weight = match self.config.zero_centered_gamma {
            // In 16 bits the sum would round away what a weight around 0 is stored for.
            true => weight.cast(FloatDType::F32) + 1.0,
            false => weight,
        };
        (weight, self.bias.as_ref().map(|bias| bias.val()))
    }
}
