//! GPT-2. Its linear layers are `Conv1D`s, which store a row an input.

pub(super) mod gguf;

use super::prelude::*;
use super::rows::EqualHeads;
use crate::huggingface::settings::usual_softmax_scale;

pub(super) static FAMILY: Family = Family {
    model_type: "gpt2",
    architecture: "GPT2LMHeadModel",
    settings: SETTINGS,
    weights: &[WEIGHTS],
    prefix: "transformer.",
    buffers: &[".attn.bias", ".attn.masked_bias"],
    aliases: &[
        ("hidden_size", "n_embd"),
        ("max_position_embeddings", "n_positions"),
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
    ],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `GPT2Config`.
const SETTINGS: &[Setting] = &[
    Setting::Always(|c| {
        c.position_embedding = PositionEmbedding::LearnedAbsolute;
        c.norm.kind = Normalization::LayerNorm;
        (c.qkv_bias, c.proj_bias, c.mlp_bias) = (true, true, true);
    }),
    Setting::Only("scale_attn_by_inverse_layer_idx", || json!(false)),
    Setting::Only("add_cross_attention", || json!(false)),
    size("vocab_size", |c| &mut c.vocab_size),
    size_from("n_positions", |c| &mut c.max_position_embeddings, |fields, _| Ok(fields.size("n_ctx")?.unwrap_or(1024))),
    size("n_embd", |c| &mut c.hidden_size),
    size("n_layer", |c| &mut c.num_layers),
    size("n_head", |c| &mut c.num_attention_heads),
    Setting::Group(&EqualHeads { width: "n_embd", heads: "n_head" }),
    Setting::Always(|c| c.num_query_groups = c.num_attention_heads),
    size_from("n_inner", |c| &mut c.ffn_hidden_size, |_, c| Ok(4 * c.hidden_size)),
    Setting::Activation("activation_function", |c| &mut c.activation, Activation::GeluTanh),
    Setting::Number("resid_pdrop", |c| &mut c.hidden_dropout, 0.1),
    Setting::Number("embd_pdrop", |c| &mut c.embedding_dropout, 0.1),
    Setting::Number("attn_pdrop", |c| &mut c.attention_dropout, 0.1),
    Setting::Number("layer_norm_epsilon", |c| &mut c.norm.epsilon, 1e-5),
    initializer_range(0.02),
    Setting::Flag(
        "scale_attn_weights",
        true,
        |c| c.softmax_scale == usual_softmax_scale(c),
        |c, on| c.softmax_scale = if on { usual_softmax_scale(c) } else { 1.0 },
    ),
    tied_embeddings(true),
];

/// Names of GPT-2's parameters.
const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["transformer.wte.weight"]).fused(Fusion::Vocabulary),
    rule("embedding.position_embeddings.weight", &["transformer.wpe.weight"]),
    rule("decoder.layers.{}.input_layernorm.weight", &["transformer.h.{}.ln_1.weight"]),
    rule("decoder.layers.{}.input_layernorm.bias", &["transformer.h.{}.ln_1.bias"]),
    rule("decoder.layers.{}.self_attention.linear_qkv.weight", &["transformer.h.{}.attn.c_attn.weight"])
        .fused(Fusion::PackedQkv)
        .rows_are_inputs(),
    rule("decoder.layers.{}.self_attention.linear_qkv.bias", &["transformer.h.{}.attn.c_attn.bias"])
        .fused(Fusion::PackedQkv),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["transformer.h.{}.attn.c_proj.weight"])
        .rows_are_inputs(),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["transformer.h.{}.attn.c_proj.bias"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["transformer.h.{}.ln_2.weight"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.bias", &["transformer.h.{}.ln_2.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["transformer.h.{}.mlp.c_fc.weight"]).rows_are_inputs(),
    rule("decoder.layers.{}.mlp.linear_fc1.bias", &["transformer.h.{}.mlp.c_fc.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["transformer.h.{}.mlp.c_proj.weight"]).rows_are_inputs(),
    rule("decoder.layers.{}.mlp.linear_fc2.bias", &["transformer.h.{}.mlp.c_proj.bias"]),
    rule("decoder.final_layernorm.weight", &["transformer.ln_f.weight"]),
    rule("decoder.final_layernorm.bias", &["transformer.ln_f.bias"]),
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary),
];
