//! The feed-forward block, plain or gated.

use bridge_kernels::{Activation, activation, glu};
use burn::module::Module;
use burn::tensor::Tensor;

use super::config::DecoderConfig;
use super::init::{Deviations, Initializer};
use super::linear::{Linear, LinearConfig};

/// Two linear layers with a non-linearity between them. A gated unit's first layer has the gate's rows, then the others.
#[derive(Module, Debug)]
pub(super) struct Mlp {
    linear_fc1: Linear,
    linear_fc2: Linear,
    gated: bool,
    #[module(skip)]
    activation: Activation,
}

impl Mlp {
    /// `name` is the module's dotted name.
    pub fn new(config: &DecoderConfig, name: &str, init: &Initializer) -> Self {
        let std = Deviations::new(config);
        let (c, f) = (config.hidden_size, config.ffn_hidden_size);
        let linear_fc1 = LinearConfig {
            name: format!("{name}.linear_fc1"),
            inputs: c,
            outputs: config.fc1_size(),
            bias: config.mlp_bias,
            std: std.weight,
        };
        let linear_fc2 = LinearConfig {
            name: format!("{name}.linear_fc2"),
            inputs: f,
            outputs: c,
            bias: config.mlp_bias,
            std: std.output,
        };
        Self {
            linear_fc1: Linear::new(&linear_fc1, init),
            linear_fc2: Linear::new(&linear_fc2, init),
            gated: config.gated_linear_unit,
            activation: config.activation,
        }
    }

    /// `[b, t, c]` -> `[b, t, c]`.
    pub fn forward(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let h = self.linear_fc1.forward(x_btc);
        let h_btf = if self.gated { glu(h, self.activation) } else { activation(h, self.activation) };
        self.linear_fc2.forward(h_btf)
    }
}
