//! GPT-2: settings and table of weights. Its linear layers are `Conv1D`s, which store a row an input.

use serde_json::{Map, Value, json};

use crate::decoder::{DecoderConfig, LayerPattern, NormConfig, NormKind, PositionEmbedding, ResidualConfig};
use crate::huggingface::error::HfError;
use crate::huggingface::fields::{Fields, activation, activation_name};
use crate::huggingface::weight_map::{Fusion, Storage, WeightRule};

const fn rule(megatron: &'static str, hugging_face: &'static [&'static str]) -> WeightRule {
    WeightRule { megatron, hugging_face, fusion: Fusion::Single, storage: Storage::RowsAreOutputs }
}

const fn conv(megatron: &'static str, hugging_face: &'static [&'static str]) -> WeightRule {
    WeightRule { storage: Storage::RowsAreInputs, ..rule(megatron, hugging_face) }
}

const fn table(megatron: &'static str, hugging_face: &'static [&'static str]) -> WeightRule {
    WeightRule { fusion: Fusion::Vocabulary, ..rule(megatron, hugging_face) }
}

const fn packed(rule: WeightRule) -> WeightRule {
    WeightRule { fusion: Fusion::PackedQkv, ..rule }
}

/// Where each parameter is.
pub(crate) const RULES: &[WeightRule] = &[
    table("embedding.word_embeddings.weight", &["transformer.wte.weight"]),
    rule("embedding.position_embeddings.weight", &["transformer.wpe.weight"]),
    rule("decoder.layers.{}.input_layernorm.weight", &["transformer.h.{}.ln_1.weight"]),
    rule("decoder.layers.{}.input_layernorm.bias", &["transformer.h.{}.ln_1.bias"]),
    packed(conv("decoder.layers.{}.self_attention.linear_qkv.weight", &["transformer.h.{}.attn.c_attn.weight"])),
    packed(rule("decoder.layers.{}.self_attention.linear_qkv.bias", &["transformer.h.{}.attn.c_attn.bias"])),
    conv("decoder.layers.{}.self_attention.linear_proj.weight", &["transformer.h.{}.attn.c_proj.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["transformer.h.{}.attn.c_proj.bias"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["transformer.h.{}.ln_2.weight"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.bias", &["transformer.h.{}.ln_2.bias"]),
    conv("decoder.layers.{}.mlp.linear_fc1.weight", &["transformer.h.{}.mlp.c_fc.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.bias", &["transformer.h.{}.mlp.c_fc.bias"]),
    conv("decoder.layers.{}.mlp.linear_fc2.weight", &["transformer.h.{}.mlp.c_proj.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc2.bias", &["transformer.h.{}.mlp.c_proj.bias"]),
    rule("decoder.final_layernorm.weight", &["transformer.ln_f.weight"]),
    rule("decoder.final_layernorm.bias", &["transformer.ln_f.bias"]),
    table("output_layer.weight", &["lm_head.weight"]),
];

/// The decoder of a GPT-2 `config.json`; absent settings have the values of `GPT2Config`.
pub(crate) fn decoder_config(fields: &Fields) -> Result<DecoderConfig, HfError> {
    fields.only("scale_attn_by_inverse_layer_idx", &json!(false))?;
    fields.only("add_cross_attention", &json!(false))?;
    let hidden_size = fields.required_size("n_embd")?;
    let heads = fields.required_size("n_head")?;
    if hidden_size % heads != 0 {
        let expected = format!("a divisor of n_embd ({hidden_size})");
        return Err(fields.error("n_head", &heads.to_string(), &expected));
    }
    let head_size = hidden_size / heads;
    let scaled = fields.bool("scale_attn_weights")?.unwrap_or(true);
    let std = fields.number("initializer_range")?.unwrap_or(0.02);
    let vocab_size = fields.required_size("vocab_size")?;
    Ok(DecoderConfig {
        num_layers: fields.required_size("n_layer")?,
        hidden_size,
        ffn_hidden_size: fields.size("n_inner")?.unwrap_or(4 * hidden_size),
        num_attention_heads: heads,
        num_query_groups: heads,
        kv_channels: head_size,
        vocab_size,
        padded_vocab_size: vocab_size,
        max_position_embeddings: match fields.size("n_positions")? {
            Some(positions) => positions,
            None => fields.size("n_ctx")?.unwrap_or(1024),
        },
        position_embedding: PositionEmbedding::LearnedAbsolute,
        no_rope_layers: LayerPattern::None,
        residual: ResidualConfig::default(),
        norm: NormConfig {
            kind: NormKind::LayerNorm,
            epsilon: fields.number("layer_norm_epsilon")?.unwrap_or(1e-5),
            zero_centered_gamma: false,
        },
        qk_layernorm: false,
        qkv_bias: true,
        proj_bias: true,
        mlp_bias: true,
        gated_linear_unit: false,
        activation: activation(fields, "activation_function", bridge_kernels::Activation::GeluTanh)?,
        moe: None,
        embedding_dropout: fields.number("embd_pdrop")?.unwrap_or(0.1),
        hidden_dropout: fields.number("resid_pdrop")?.unwrap_or(0.1),
        attention_dropout: fields.number("attn_pdrop")?.unwrap_or(0.1),
        softmax_scale: if scaled { 1.0 / (head_size as f64).sqrt() } else { 1.0 },
        window_size: None,
        window_layers: LayerPattern::All,
        attention_softcap: None,
        logit_softcap: None,
        share_embeddings_and_output_weights: fields.bool("tie_word_embeddings")?.unwrap_or(true),
        init_method_std: std,
        embedding_init_method_std: std,
        perform_initialization: true,
    })
}

/// The settings of a decoder that is a GPT-2.
pub(crate) fn settings(config: &DecoderConfig) -> Result<Map<String, Value>, HfError> {
    let biases = [config.qkv_bias, config.proj_bias, config.mlp_bias];
    let plain_scale = 1.0 / (config.kv_channels as f64).sqrt();
    let softcap = config.attention_softcap.or(config.logit_softcap);
    let positions = config.position_embedding;
    let (heads, groups) = (config.num_attention_heads, config.num_query_groups);
    let refused = [
        (
            positions != PositionEmbedding::LearnedAbsolute,
            "position_embedding",
            format!("{positions:?}"),
            "learned_absolute",
        ),
        (config.norm.kind != NormKind::LayerNorm, "norm.kind", format!("{:?}", config.norm.kind), "LayerNorm"),
        (config.norm.zero_centered_gamma, "norm.zero_centered_gamma", "true".into(), "false"),
        (config.qk_layernorm, "qk_layernorm", "true".into(), "false"),
        (biases != [true; 3], "biases", format!("{biases:?}"), "biases in all linear layers"),
        (config.gated_linear_unit, "gated_linear_unit", "true".into(), "false"),
        (groups != heads, "num_query_groups", groups.to_string(), "num_attention_heads"),
        (
            config.kv_channels * heads != config.hidden_size,
            "kv_channels",
            config.kv_channels.to_string(),
            "hidden_size / num_attention_heads",
        ),
        (
            config.softmax_scale != plain_scale && config.softmax_scale != 1.0,
            "softmax_scale",
            config.softmax_scale.to_string(),
            "1 / sqrt(kv_channels) or 1",
        ),
        (config.window_size.is_some(), "window_size", format!("{:?}", config.window_size), "none"),
        (softcap.is_some(), "soft caps", format!("{softcap:?}"), "none"),
    ];
    if let Some((_, key, found, expected)) = refused.into_iter().find(|(is_refused, ..)| *is_refused) {
        return Err(HfError::NotOfFamily { family: "gpt2", key, found, expected: expected.into() });
    }
    let settings = json!({
        "vocab_size": config.vocab_size,
        "n_positions": config.max_position_embeddings,
        "n_embd": config.hidden_size,
        "n_layer": config.num_layers,
        "n_head": config.num_attention_heads,
        "n_inner": config.ffn_hidden_size,
        "activation_function": activation_name(config.activation),
        "resid_pdrop": config.hidden_dropout,
        "embd_pdrop": config.embedding_dropout,
        "attn_pdrop": config.attention_dropout,
        "layer_norm_epsilon": config.norm.epsilon,
        "initializer_range": config.init_method_std,
        "scale_attn_weights": config.softmax_scale == plain_scale,
        "tie_word_embeddings": config.share_embeddings_and_output_weights,
    });
    Ok(crate::huggingface::export::object(settings))
}
