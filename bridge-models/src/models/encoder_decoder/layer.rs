//! One layer of the encoder or of the decoder: attention, in the decoder attention to the encoder's
//! output, and a feed-forward block, each on a norm of the residual stream.

use bridge_core::model::{ChunkScope, Component, SegmentRole, WeightGradientStore};
use bridge_kernels::{DropoutKey, MaxLogit, Recomputable};
use burn::module::Module;
use burn::tensor::{FloatDType, Tensor};

use crate::architecture::config::DecoderConfig;
use crate::blocks::biased_attention::{BiasedAttention, BiasedInput, CrossAttention, Scores};
use crate::blocks::key_values::KeyValues;
use crate::blocks::mlp::Mlp;
use crate::blocks::norm::Norm;
use crate::blocks::regions::Regions;
use crate::blocks::residual::{BlockOutput, Branch, BranchInput, Residual};

/// The parts of a layer that run, and are recomputed, separately. A decoder's attention to the
/// encoder belongs to the first.
pub(super) const PARTS: [SegmentRole; 2] = [SegmentRole::Attention, SegmentRole::Mlp];

/// Numbers of the dropout sites in a layer. A layer and a site identify a dropout mask.
pub(super) mod dropout_site {
    pub const ATTENTION_PROBABILITIES: u64 = 1;
    pub const ATTENTION_OUTPUT: u64 = 2;
    pub const MLP_OUTPUT: u64 = 3;
    pub const CROSS_PROBABILITIES: u64 = 4;
    pub const CROSS_OUTPUT: u64 = 5;
    pub const MLP_INNER: u64 = 6;
}

/// Stack of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    Encoder,
    Decoder,
}

/// A layer.
#[derive(Module, Debug)]
pub(super) struct Layer {
    input_layernorm: Norm,
    self_attention: BiasedAttention,
    /// Cross-attention, in layers of the decoder.
    cross: Option<Cross>,
    pre_mlp_layernorm: Norm,
    mlp: Mlp,
    dropout: f64,
}

#[derive(Module, Debug)]
struct Cross {
    pre_cross_attn_layernorm: Norm,
    cross_attention: CrossAttention,
}

/// The encoder's output as a layer of the decoder reads it.
pub(super) struct Source {
    /// Keys and values, `[b, s, h, d]` each.
    pub keys_and_values: [Tensor<4>; 2],
    /// Mask of the scores.
    pub scores: Scores,
}

/// Inputs of both parts of a layer besides the stream.
#[derive(Clone, Copy)]
pub(super) struct LayerInput<'a> {
    pub regions: &'a Regions,
    pub weight_gradients: Option<&'a WeightGradientStore>,
    /// Key of the mask of a dropout site of this layer.
    pub key: &'a dyn Fn(u64) -> Option<DropoutKey>,
    /// Record of the largest attention score, if it is taken.
    pub max_logit: Option<&'a MaxLogit>,
}

impl<'a> LayerInput<'a> {
    fn attention(self, scores: Scores, site: u64) -> BiasedInput<'a> {
        let Self { regions, weight_gradients, key, max_logit } = self;
        BiasedInput { regions, scores, dropout_key: regions.own_key(key(site)), weight_gradients, max_logit }
    }
}

impl Layer {
    /// Layer `index` of `stack`, number `number` through both. Each of its parts is a segment.
    pub fn new(config: &DecoderConfig, stack: Stack, index: usize, number: usize, scope: &ChunkScope) -> Self {
        let name = match stack {
            Stack::Encoder => format!("encoder.layers.{index}"),
            Stack::Decoder => format!("decoder.layers.{index}"),
        };
        let [first, last] = PARTS.map(|role| scope.segment(role, Some(number)).child(&name));
        let norm = |scope, name| Norm::new(config.norm, config.hidden_size, scope, name);
        let attention = |name| first.component(Component::Attention).child(name);
        let cross = || Cross {
            pre_cross_attn_layernorm: norm(&first, "pre_cross_attn_layernorm"),
            cross_attention: CrossAttention::new(config, &attention("cross_attention")),
        };
        Self {
            input_layernorm: norm(&first, "input_layernorm"),
            self_attention: BiasedAttention::new(config, &attention("self_attention")),
            cross: (stack == Stack::Decoder).then(cross),
            pre_mlp_layernorm: norm(&last, "pre_mlp_layernorm"),
            mlp: Mlp::new(config, config.ffn_hidden_size, &last.component(Component::Mlp).child("mlp")),
            dropout: config.hidden_dropout,
        }
    }

    /// Keys and values of the encoder's output, `[b, s, c]` -> `[b, s, h, d]` each.
    ///
    /// # Panics
    /// In the encoder.
    pub fn keys_and_values(&self, source_bsc: Tensor<3>, input: LayerInput) -> [Tensor<4>; 2] {
        let cross = self.cross.as_ref().expect("a layer of the decoder attends to the encoder");
        cross.cross_attention.keys_and_values(source_bsc, input.regions, input.weight_gradients)
    }

    /// The first part, `[b, t, c]` -> the same. A layer of the decoder has a `source`.
    pub fn attention(
        &self,
        x_btc: Tensor<3>,
        scores: Scores,
        state: Option<&mut KeyValues>,
        source: Option<Source>,
        input: LayerInput,
    ) -> Tensor<3> {
        let inner = input.attention(scores, dropout_site::ATTENTION_PROBABILITIES);
        let block = |x_btc| self.self_attention.forward(x_btc, inner, state);
        let x_btc = self.step(x_btc, &self.input_layernorm, block, dropout_site::ATTENTION_OUTPUT, input);
        let (Some(cross), Some(Source { keys_and_values, scores })) = (&self.cross, source) else {
            assert!(self.cross.is_none(), "a layer of the decoder attends to the encoder");
            return x_btc;
        };
        let inner = input.attention(scores, dropout_site::CROSS_PROBABILITIES);
        let block = |x_btc| cross.cross_attention.forward(x_btc, keys_and_values, inner);
        self.step(x_btc, &cross.pre_cross_attn_layernorm, block, dropout_site::CROSS_OUTPUT, input)
    }

    /// The second part, `[b, t, c]` -> the same.
    pub fn feed_forward(&self, x_btc: Tensor<3>, input: LayerInput) -> Tensor<3> {
        let LayerInput { regions, weight_gradients, key, .. } = input;
        let block = |x_btc| {
            self.mlp.forward_with_dropout(
                x_btc,
                regions,
                weight_gradients,
                self.dropout,
                regions.own_key(key(dropout_site::MLP_INNER)),
            )
        };
        self.step(x_btc, &self.pre_mlp_layernorm, block, dropout_site::MLP_OUTPUT, input)
    }

    /// The stream after one block.
    fn step<'a>(
        &self,
        x_btc: Tensor<3>,
        norm: &'a Norm,
        block: impl FnOnce(Recomputable<3>) -> BlockOutput<'a> + 'a,
        site: u64,
        input: LayerInput,
    ) -> Tensor<3> {
        let residual = Residual {
            regions: input.regions,
            dropout: self.dropout,
            branch_multiplier: 1.0,
            stream_multiplier: 1.0,
            adds_to_norm: false,
            norm: None,
            block_dtype: FloatDType::from(x_btc.dtype()),
        };
        let branch = Branch {
            input: BranchInput::Norm(norm, None),
            block: Box::new(block),
            after: None,
            multiplier: 1.0,
            key: (input.key)(site),
        };
        residual.step(x_btc, [branch])
    }
}
