//! Phi 1, 1.5 and 2: one LayerNorm, blocks side by side, biases everywhere, also of the output
//! projection, and heads of which a part is rotated.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "phi",
    architecture: "PhiForCausalLM",
    settings: SETTINGS,
    weights: &[OWN, OUTPUT_BIAS, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `PhiConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    positions(2048),
    USUAL_SOFTMAX_SCALE,
    Setting::Always(|c| {
        c.norm.kind = Normalization::LayerNorm;
        c.residual.blocks = BlockOrder::ParallelSharedNorm;
        (c.qkv_bias, c.proj_bias, c.mlp_bias, c.output_bias) = (true, true, true, true);
    }),
    Setting::NamedActivation("hidden_act", |c| &mut c.activation, "gelu_new"),
    initializer_range(0.02),
    Setting::Number("layer_norm_eps", |c| &mut c.norm.epsilon, 1e-5),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, 0.0),
    Setting::Number("resid_pdrop", |c| &mut c.hidden_dropout, 0.0),
    Setting::Number("embd_pdrop", |c| &mut c.embedding_dropout, 0.0),
    Setting::Switch("qk_layernorm", |c| &mut c.qk_layernorm, false),
    Setting::Rule(|fields, c| {
        let size = c.hidden_size / c.num_attention_heads;
        let expected = format!("{size}: the family's norms of queries have hidden_size / num_attention_heads elements");
        let fits = !c.qk_layernorm || c.kv_channels == size;
        fields.require(fits, "head_dim", &c.kv_channels.to_string(), &expected)
    }),
    tied_embeddings(false),
    Setting::Group(&RopeForm { percent: Some(0.5), ..RopeForm::USUAL }),
];

/// Names of the parameters that Llama does not have, or names otherwise.
const OWN: &[WeightRule] = &[
    layer!("input_layernorm.bias", "input_layernorm.bias"),
    layer!("self_attention.q_layernorm.weight", "self_attn.q_layernorm.weight"),
    layer!("self_attention.q_layernorm.bias", "self_attn.q_layernorm.bias"),
    layer!("self_attention.k_layernorm.weight", "self_attn.k_layernorm.weight"),
    layer!("self_attention.k_layernorm.bias", "self_attn.k_layernorm.bias"),
    layer!("self_attention.linear_proj.weight", "self_attn.dense.weight"),
    layer!("self_attention.linear_proj.bias", "self_attn.dense.bias"),
    layer!("mlp.linear_fc1.weight", "mlp.fc1.weight"),
    layer!("mlp.linear_fc1.bias", "mlp.fc1.bias"),
    layer!("mlp.linear_fc2.weight", "mlp.fc2.weight"),
    layer!("mlp.linear_fc2.bias", "mlp.fc2.bias"),
    rule("decoder.final_layernorm.weight", &["model.final_layernorm.weight"]),
    rule("decoder.final_layernorm.bias", &["model.final_layernorm.bias"]),
];

/// The bias of the output projection.
pub(super) const OUTPUT_BIAS: &[WeightRule] = &[rule("output_layer.bias", &["lm_head.bias"]).fused(Fusion::Vocabulary)];
