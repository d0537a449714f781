//! GPT-NeoX and Pythia: LayerNorm, biases everywhere, heads of which a part is rotated, blocks side
//! by side.

#[cfg(test)]
mod tests;

use super::prelude::*;
use super::rows::EqualHeads;

pub(super) static FAMILY: Family = Family {
    model_type: "gpt_neox",
    architecture: "GPTNeoXForCausalLM",
    settings: SETTINGS,
    weights: &[WEIGHTS],
    prefix: "gpt_neox.",
    buffers: &[".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"],
    module_names: &[("embed_out", "lm_head")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `GPTNeoXConfig`.
const SETTINGS: &[Setting] = &[
    size("vocab_size", |c| &mut c.vocab_size),
    size("hidden_size", |c| &mut c.hidden_size),
    size("intermediate_size", |c| &mut c.ffn_hidden_size),
    size("num_hidden_layers", |c| &mut c.num_layers),
    size("num_attention_heads", |c| &mut c.num_attention_heads),
    positions(2048),
    Setting::Group(&EqualHeads { width: "hidden_size", heads: "num_attention_heads" }),
    Setting::Always(|c| {
        c.num_query_groups = c.num_attention_heads;
        c.norm.kind = Normalization::LayerNorm;
        c.mlp_bias = true;
    }),
    USUAL_SOFTMAX_SCALE,
    Setting::Activation("hidden_act", |c| &mut c.activation, Activation::Gelu),
    initializer_range(0.02),
    Setting::Number("layer_norm_eps", |c| &mut c.norm.epsilon, 1e-5),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, 0.0),
    Setting::Number("hidden_dropout", |c| &mut c.hidden_dropout, 0.0),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, true),
    Setting::Always(|c| {
        c.proj_bias = c.qkv_bias;
        c.embedding_dropout = c.hidden_dropout;
    }),
    tied_embeddings(false),
    Setting::Flag(
        "use_parallel_residual",
        true,
        |c| c.residual.blocks == BlockOrder::Parallel,
        |c, on| c.residual.blocks = if on { BlockOrder::Parallel } else { BlockOrder::Sequential },
    ),
    Setting::Keys { read: |fields, c| rope::read(fields, c, FORM), write: write_rope },
];

/// The usual tables, beside which the keys have names of the family's own: the usual ones there say
/// nothing.
const FORM: RopeForm = RopeForm { beside: ["rotary_emb_base", "rotary_pct"], percent: Some(0.25), ..RopeForm::USUAL };

fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    rope::write_with_percent(config, settings);
    if let PositionEmbedding::Rope(rope) = &config.position_embedding {
        settings.insert("rotary_pct".into(), json!(rope.percent));
        settings.insert("rotary_emb_base".into(), json!(rope.base));
    }
}

/// Names of GPT-NeoX's parameters. Rows of queries, keys and values are ordered by head, as in
/// Bridge.
const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["gpt_neox.embed_in.weight"]).fused(Fusion::Vocabulary),
    rule("decoder.layers.{}.input_layernorm.weight", &["gpt_neox.layers.{}.input_layernorm.weight"]),
    rule("decoder.layers.{}.input_layernorm.bias", &["gpt_neox.layers.{}.input_layernorm.bias"]),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.weight",
        &["gpt_neox.layers.{}.attention.query_key_value.weight"],
    ),
    rule("decoder.layers.{}.self_attention.linear_qkv.bias", &["gpt_neox.layers.{}.attention.query_key_value.bias"]),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["gpt_neox.layers.{}.attention.dense.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["gpt_neox.layers.{}.attention.dense.bias"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["gpt_neox.layers.{}.post_attention_layernorm.weight"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.bias", &["gpt_neox.layers.{}.post_attention_layernorm.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["gpt_neox.layers.{}.mlp.dense_h_to_4h.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.bias", &["gpt_neox.layers.{}.mlp.dense_h_to_4h.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["gpt_neox.layers.{}.mlp.dense_4h_to_h.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc2.bias", &["gpt_neox.layers.{}.mlp.dense_4h_to_h.bias"]),
    rule("decoder.final_layernorm.weight", &["gpt_neox.final_layer_norm.weight"]),
    rule("decoder.final_layernorm.bias", &["gpt_neox.final_layer_norm.bias"]),
    rule("output_layer.weight", &["embed_out.weight"]).fused(Fusion::Vocabulary).with_legacy_name("lm_head.weight"),
    // The state of a module of transformers 5.
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary).stacked(),
];
