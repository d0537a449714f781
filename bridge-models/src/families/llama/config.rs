//! Llama: settings and table of weights. Query, key and value are three matrices there, gate and up two.

use serde_json::{Map, Value, json};

use crate::decoder::{
    DecoderConfig, LayerPattern, NormConfig, NormKind, PositionEmbedding, ResidualConfig, RopeConfig, RopeScaling,
};
use crate::huggingface::error::HfError;
use crate::huggingface::fields::{Fields, activation, activation_name};
use crate::huggingface::weight_map::{Fusion, Storage, WeightRule};

const fn rule(megatron: &'static str, hugging_face: &'static [&'static str]) -> WeightRule {
    WeightRule { megatron, hugging_face, fusion: Fusion::Single, storage: Storage::RowsAreOutputs }
}

const fn fused(fusion: Fusion, rule: WeightRule) -> WeightRule {
    WeightRule { fusion, ..rule }
}

/// Where each parameter is.
pub(crate) const RULES: &[WeightRule] = &[
    fused(Fusion::Vocabulary, rule("embedding.word_embeddings.weight", &["model.embed_tokens.weight"])),
    rule("decoder.layers.{}.input_layernorm.weight", &["model.layers.{}.input_layernorm.weight"]),
    fused(
        Fusion::Qkv,
        rule(
            "decoder.layers.{}.self_attention.linear_qkv.weight",
            &[
                "model.layers.{}.self_attn.q_proj.weight",
                "model.layers.{}.self_attn.k_proj.weight",
                "model.layers.{}.self_attn.v_proj.weight",
            ],
        ),
    ),
    fused(
        Fusion::Qkv,
        rule(
            "decoder.layers.{}.self_attention.linear_qkv.bias",
            &[
                "model.layers.{}.self_attn.q_proj.bias",
                "model.layers.{}.self_attn.k_proj.bias",
                "model.layers.{}.self_attn.v_proj.bias",
            ],
        ),
    ),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["model.layers.{}.self_attn.o_proj.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["model.layers.{}.self_attn.o_proj.bias"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["model.layers.{}.post_attention_layernorm.weight"]),
    fused(
        Fusion::GateUp,
        rule(
            "decoder.layers.{}.mlp.linear_fc1.weight",
            &["model.layers.{}.mlp.gate_proj.weight", "model.layers.{}.mlp.up_proj.weight"],
        ),
    ),
    fused(
        Fusion::GateUp,
        rule(
            "decoder.layers.{}.mlp.linear_fc1.bias",
            &["model.layers.{}.mlp.gate_proj.bias", "model.layers.{}.mlp.up_proj.bias"],
        ),
    ),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["model.layers.{}.mlp.down_proj.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc2.bias", &["model.layers.{}.mlp.down_proj.bias"]),
    rule("decoder.final_layernorm.weight", &["model.norm.weight"]),
    fused(Fusion::Vocabulary, rule("output_layer.weight", &["lm_head.weight"])),
];

/// The decoder of a Llama `config.json`; absent settings have the values of `LlamaConfig`.
pub(crate) fn decoder_config(fields: &Fields) -> Result<DecoderConfig, HfError> {
    let hidden_size = fields.required_size("hidden_size")?;
    let heads = fields.required_size("num_attention_heads")?;
    let groups = fields.size("num_key_value_heads")?.unwrap_or(heads);
    if heads % groups != 0 {
        let expected = format!("a divisor of num_attention_heads ({heads})");
        return Err(fields.error("num_key_value_heads", &groups.to_string(), &expected));
    }
    let head_size = match fields.size("head_dim")? {
        Some(size) => size,
        None if hidden_size % heads == 0 => hidden_size / heads,
        None => {
            let expected = format!("a divisor of hidden_size ({hidden_size}), or a head_dim");
            return Err(fields.error("num_attention_heads", &heads.to_string(), &expected));
        }
    };
    if head_size % 2 != 0 {
        return Err(fields.error("head_dim", &head_size.to_string(), "an even number, because it is rotated in pairs"));
    }
    let attention_bias = fields.bool("attention_bias")?.unwrap_or(false);
    let max_positions = fields.size("max_position_embeddings")?.unwrap_or(2048);
    let vocab_size = fields.required_size("vocab_size")?;
    let std = fields.number("initializer_range")?.unwrap_or(0.02);
    Ok(DecoderConfig {
        num_layers: fields.required_size("num_hidden_layers")?,
        hidden_size,
        ffn_hidden_size: fields.required_size("intermediate_size")?,
        num_attention_heads: heads,
        num_query_groups: groups,
        kv_channels: head_size,
        vocab_size,
        padded_vocab_size: vocab_size,
        max_position_embeddings: max_positions,
        position_embedding: PositionEmbedding::Rope(rope(fields, max_positions)?),
        no_rope_layers: LayerPattern::None,
        residual: ResidualConfig::default(),
        norm: NormConfig {
            kind: NormKind::RmsNorm,
            epsilon: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
            zero_centered_gamma: false,
        },
        qk_layernorm: false,
        qkv_bias: attention_bias,
        proj_bias: attention_bias,
        mlp_bias: fields.bool("mlp_bias")?.unwrap_or(false),
        gated_linear_unit: true,
        activation: activation(fields, "hidden_act", bridge_kernels::Activation::Silu)?,
        moe: None,
        embedding_dropout: 0.0,
        hidden_dropout: 0.0,
        attention_dropout: fields.number("attention_dropout")?.unwrap_or(0.0),
        softmax_scale: 1.0 / (head_size as f64).sqrt(),
        window_size: None,
        window_layers: LayerPattern::All,
        attention_softcap: None,
        logit_softcap: None,
        share_embeddings_and_output_weights: fields.bool("tie_word_embeddings")?.unwrap_or(false),
        init_method_std: std,
        embedding_init_method_std: std,
        perform_initialization: true,
    })
}

/// Rotary settings in either form: `rope_parameters`, or `rope_theta` and `rope_scaling` beside it.
fn rope(fields: &Fields, max_positions: usize) -> Result<RopeConfig, HfError> {
    let table = match fields.table("rope_parameters", "rope_parameters.")? {
        Some(table) => Some(table),
        None => fields.table("rope_scaling", "rope_scaling.")?,
    };
    fields.only("partial_rotary_factor", &json!(1.0))?;
    let in_table = match &table {
        Some(table) => {
            table.only("partial_rotary_factor", &json!(1.0))?;
            table.number("rope_theta")?
        }
        None => None,
    };
    let base = match in_table {
        Some(base) => base,
        None => fields.number("rope_theta")?.unwrap_or(10_000.0),
    };
    let scaling = match &table {
        Some(table) => rope_scaling(table, max_positions)?,
        None => None,
    };
    Ok(RopeConfig { base, percent: 1.0, interleaved: false, scaling })
}

fn rope_scaling(table: &Fields, max_positions: usize) -> Result<Option<RopeScaling>, HfError> {
    let key = if table.get("rope_type").is_some() { "rope_type" } else { "type" };
    match table.string(key)? {
        None | Some("default") => Ok(None),
        Some("linear") => Ok(Some(RopeScaling::Linear { factor: table.required_number("factor")? })),
        Some("llama3") => Ok(Some(RopeScaling::Llama3 {
            factor: table.required_number("factor")?,
            low_freq_factor: table.required_number("low_freq_factor")?,
            high_freq_factor: table.required_number("high_freq_factor")?,
            original_max_position_embeddings: table.size("original_max_position_embeddings")?.unwrap_or(max_positions),
        })),
        Some(other) => {
            Err(table.error(key, &format!("\"{other}\""), "one of default, linear, llama3: others are not implemented"))
        }
    }
}

/// The settings of a decoder that is a Llama.
pub(crate) fn settings(config: &DecoderConfig) -> Result<Map<String, Value>, HfError> {
    let not_of_family = |key, found: String, expected: &str| HfError::NotOfFamily {
        family: "llama",
        key,
        found,
        expected: expected.into(),
    };
    let PositionEmbedding::Rope(rope) = &config.position_embedding else {
        return Err(not_of_family("position_embedding", format!("{:?}", config.position_embedding), "rope"));
    };
    let scale = 1.0 / (config.kv_channels as f64).sqrt();
    let dropout = config.embedding_dropout.max(config.hidden_dropout);
    let softcap = config.attention_softcap.or(config.logit_softcap);
    let refused = [
        (rope.percent != 1.0, "rotary_percent", rope.percent.to_string(), "1"),
        (rope.interleaved, "rotary_interleaved", rope.interleaved.to_string(), "false"),
        (config.no_rope_layers != LayerPattern::None, "no_rope_layers", format!("{:?}", config.no_rope_layers), "none"),
        (config.norm.kind != NormKind::RmsNorm, "norm.kind", format!("{:?}", config.norm.kind), "RMSNorm"),
        (config.norm.zero_centered_gamma, "norm.zero_centered_gamma", "true".into(), "false"),
        (config.qk_layernorm, "qk_layernorm", "true".into(), "false"),
        (config.qkv_bias != config.proj_bias, "proj_bias", config.proj_bias.to_string(), "the same as qkv_bias"),
        (!config.gated_linear_unit, "gated_linear_unit", "false".into(), "true"),
        (dropout != 0.0, "hidden_dropout", dropout.to_string(), "0"),
        (config.softmax_scale != scale, "softmax_scale", config.softmax_scale.to_string(), "1 / sqrt(kv_channels)"),
        (config.window_size.is_some(), "window_size", format!("{:?}", config.window_size), "none"),
        (softcap.is_some(), "soft caps", format!("{softcap:?}"), "none"),
    ];
    if let Some((_, key, found, expected)) = refused.into_iter().find(|(is_refused, ..)| *is_refused) {
        return Err(not_of_family(key, found, expected));
    }
    let settings = json!({
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_query_groups,
        "head_dim": config.kv_channels,
        "hidden_act": activation_name(config.activation),
        "max_position_embeddings": config.max_position_embeddings,
        "initializer_range": config.init_method_std,
        "rms_norm_eps": config.norm.epsilon,
        "attention_bias": config.qkv_bias,
        "attention_dropout": config.attention_dropout,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.share_embeddings_and_output_weights,
        // Both forms: transformers 5 reads the first, transformers 4 the other two.
        "rope_parameters": rope_parameters(rope),
        "rope_theta": rope.base,
        "rope_scaling": rope.scaling.map(|_| rope_parameters(rope)),
    });
    Ok(crate::huggingface::export::object(settings))
}

fn rope_parameters(rope: &RopeConfig) -> Value {
    match rope.scaling {
        None => json!({ "rope_type": "default", "rope_theta": rope.base }),
        Some(RopeScaling::Linear { factor }) => {
            json!({ "rope_type": "linear", "rope_theta": rope.base, "factor": factor })
        }
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings }) => {
            json!({
                "rope_type": "llama3",
                "rope_theta": rope.base,
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_position_embeddings,
            })
        }
    }
}
