//! StarCoder 2: LayerNorm, biases everywhere, a plain feed-forward block, rotary positions and a
//! sliding window.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "starcoder2",
    architecture: "Starcoder2ForCausalLM",
    settings: SETTINGS,
    weights: &[OWN, NORM_BIASES, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Starcoder2Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(2),
    HEAD_SIZE,
    positions(4096),
    USUAL_SOFTMAX_SCALE,
    Setting::Always(|c| c.norm.kind = Normalization::LayerNorm),
    Setting::NamedActivation("hidden_act", |c| &mut c.activation, "gelu_pytorch_tanh"),
    initializer_range(0.018_042),
    Setting::Number("norm_epsilon", |c| &mut c.norm.epsilon, 1e-5),
    Setting::Switch("use_bias", |c| &mut c.qkv_bias, true),
    Setting::Always(|c| (c.proj_bias, c.mlp_bias) = (c.qkv_bias, c.qkv_bias)),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, 0.0),
    Setting::Number("residual_dropout", |c| &mut c.hidden_dropout, 0.0),
    Setting::Number("embedding_dropout", |c| &mut c.embedding_dropout, 0.0),
    tied_embeddings(true),
    ROPE,
    Setting::Keys { read: |fields, c| windows::read_of_all(fields, c, None), write: windows::write_of_all },
];

/// Names of the parameters that Llama does not have.
const OWN: &[WeightRule] = &[
    layer!("mlp.linear_fc1.weight", "mlp.c_fc.weight"),
    layer!("mlp.linear_fc1.bias", "mlp.c_fc.bias"),
    layer!("mlp.linear_fc2.weight", "mlp.c_proj.weight"),
    layer!("mlp.linear_fc2.bias", "mlp.c_proj.bias"),
];

/// Biases of norms.
pub(super) const NORM_BIASES: &[WeightRule] = &[
    layer!("input_layernorm.bias", "input_layernorm.bias"),
    layer!("pre_mlp_layernorm.bias", "post_attention_layernorm.bias"),
    rule("decoder.final_layernorm.bias", &["model.norm.bias"]),
];
