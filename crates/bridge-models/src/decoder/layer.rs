//! One transformer layer: two pre-norm residual blocks, callable one at a time.

use bridge_kernels::{DropoutKey, dropout};
use burn::module::Module;
use burn::tensor::Tensor;

use super::attention::{AttentionInput, SelfAttention};
use super::config::DecoderConfig;
use super::init::Initializer;
use super::mlp::Mlp;
use super::norm::Norm;

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`.
#[derive(Module, Debug)]
pub(super) struct Layer {
    input_layernorm: Norm,
    self_attention: SelfAttention,
    pre_mlp_layernorm: Norm,
    mlp: Mlp,
    dropout: f64,
}

impl Layer {
    /// Layer `index` is global.
    pub fn new(config: &DecoderConfig, index: usize, init: &Initializer) -> Self {
        let name = format!("decoder.layers.{index}");
        let norm = || Norm::new(config.norm, config.hidden_size, init);
        Self {
            input_layernorm: norm(),
            self_attention: SelfAttention::new(config, index, &format!("{name}.self_attention"), init),
            pre_mlp_layernorm: norm(),
            mlp: Mlp::new(config, &format!("{name}.mlp"), init),
            dropout: config.hidden_dropout,
        }
    }

    /// The attention block, `[b, t, c]` -> the same.
    pub fn attention(&self, x_btc: Tensor<3>, input: AttentionInput, key: Option<DropoutKey>) -> Tensor<3> {
        let y_btc = self.self_attention.forward(self.input_layernorm.forward(x_btc.clone()), input);
        x_btc + self.drop(y_btc, key)
    }

    /// The feed-forward block, `[b, t, c]` -> the same.
    pub fn mlp(&self, x_btc: Tensor<3>, key: Option<DropoutKey>) -> Tensor<3> {
        let y_btc = self.mlp.forward(self.pre_mlp_layernorm.forward(x_btc.clone()));
        x_btc + self.drop(y_btc, key)
    }

    fn drop(&self, y_btc: Tensor<3>, key: Option<DropoutKey>) -> Tensor<3> {
        match key {
            Some(key) => dropout(y_btc, self.dropout, key),
            None => y_btc,
        }
    }
}
