//! One transformer layer: two pre-norm residual blocks, callable one at a time.

use bridge_kernels::DropoutKey;
use burn::module::Module;
use burn::tensor::Tensor;

use super::config::DecoderConfig;
use crate::blocks::attention::{AttentionInput, SelfAttention};
use crate::blocks::init::Initializer;
use crate::blocks::mlp::Mlp;
use crate::blocks::moe::{Moe, MoeInput};
use crate::blocks::norm::Norm;
use crate::blocks::regions::Regions;
use crate::blocks::residual::Residual;

/// `x + attention(norm(x))`, then `x + mlp(norm(x))`.
#[derive(Module, Debug)]
pub(crate) struct Layer {
    input_layernorm: Norm,
    self_attention: SelfAttention,
    pre_mlp_layernorm: Norm,
    /// One of the two.
    mlp: Option<Mlp>,
    moe: Option<Moe>,
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
            mlp: config
                .moe_layer(index)
                .is_none()
                .then(|| Mlp::new(config, &format!("{name}.mlp"), config.ffn_hidden_size, init)),
            moe: config.moe_layer(index).map(|moe| Moe::new(config, moe, &format!("{name}.mlp"), init)),
            dropout: config.hidden_dropout,
        }
    }

    /// Whether its feed-forward block has experts.
    pub fn has_experts(&self) -> bool {
        self.moe.is_some()
    }

    /// The attention block, `[b, t, c]` -> the same.
    pub fn attention(&self, x_btc: Tensor<3>, input: AttentionInput, key: Option<DropoutKey>) -> Tensor<3> {
        let (normed_btc, residual) = self.enter(&self.input_layernorm, x_btc, input.regions, key);
        self.self_attention.forward(normed_btc, residual, input)
    }

    /// The feed-forward block, `[b, t, c]` -> the same.
    pub fn mlp(&self, x_btc: Tensor<3>, input: &MoeInput, key: Option<DropoutKey>) -> Tensor<3> {
        let (normed_btc, residual) = self.enter(&self.pre_mlp_layernorm, x_btc, input.regions, key);
        match (&self.mlp, &self.moe) {
            (Some(mlp), _) => mlp.forward(normed_btc, residual, input.weight_gradients),
            (None, Some(moe)) => residual.add(moe.forward(normed_btc, input)),
            (None, None) => unreachable!("a layer has a feed-forward block"),
        }
    }

    /// A block's input, and the stream that its output is added to.
    fn enter<'a>(
        &self,
        norm: &Norm,
        x_btc: Tensor<3>,
        regions: &'a Regions,
        key: Option<DropoutKey>,
    ) -> (Tensor<3>, Residual<'a>) {
        let (normed_btc, stream_btc) = norm.forward_residual(x_btc);
        (normed_btc, Residual { stream_btc, dropout: self.dropout, key, regions })
    }
}
