//! Settings of Llama; absent ones have the values of `LlamaConfig`. Families that descend from it share most rows.

use bridge_kernels::Activation;
use serde_json::{Map, Value, json};

use crate::decoder::{DecoderConfig, NormKind, PositionEmbedding, RopeConfig, RopeScaling};
use crate::huggingface::error::HfError;
use crate::huggingface::fields::Fields;
use crate::huggingface::settings::{Setting, USUAL_SOFTMAX_SCALE, size, size_or};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    size_or(
        "head_dim",
        |c| &mut c.kv_channels,
        |fields, c| {
            let (hidden_size, heads) = (c.hidden_size, c.num_attention_heads);
            let expected = format!("a divisor of hidden_size ({hidden_size}), or a head_dim");
            let divides = hidden_size.is_multiple_of(heads);
            fields.require(divides, "num_attention_heads", &heads.to_string(), &expected)?;
            Ok(hidden_size / heads)
        },
    ),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Switch("mlp_bias", |c| &mut c.mlp_bias, false),
    Setting::Rows(LAYERS),
];

/// Sizes that have the same names in all families of the line.
pub(crate) const SIZES: &[Setting] = &[
    size("vocab_size", |c| &mut c.vocab_size),
    size("hidden_size", |c| &mut c.hidden_size),
    size("intermediate_size", |c| &mut c.ffn_hidden_size),
    size("num_hidden_layers", |c| &mut c.num_layers),
    size("num_attention_heads", |c| &mut c.num_attention_heads),
    size_or("num_key_value_heads", |c| &mut c.num_query_groups, |_, c| Ok(c.num_attention_heads)),
    Setting::Rule(|fields, c| {
        let (heads, groups) = (c.num_attention_heads, c.num_query_groups);
        let expected = format!("a divisor of num_attention_heads ({heads})");
        fields.require(heads.is_multiple_of(groups), "num_key_value_heads", &groups.to_string(), &expected)
    }),
];

/// RMSNorm, rotary positions, attention with one switch for all its biases, a gated unit. Head size and positions are set before.
pub(crate) const LAYERS: &[Setting] = &[
    Setting::Rule(|fields, c| {
        let expected = "an even number, because it is rotated in pairs";
        fields.require(c.kv_channels.is_multiple_of(2), "head_dim", &c.kv_channels.to_string(), expected)
    }),
    USUAL_SOFTMAX_SCALE,
    Setting::Always(|c| {
        c.norm.kind = NormKind::RmsNorm;
        c.gated_linear_unit = true;
    }),
    Setting::Activation("hidden_act", |c| &mut c.activation, Activation::Silu),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.02)),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("attention_bias", |c| &mut c.qkv_bias, false),
    Setting::Always(|c| c.proj_bias = c.qkv_bias),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, |_, _| Ok(0.0)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Only("partial_rotary_factor", || json!(1.0)),
    Setting::Keys { read: read_rope, write: write_rope },
];

/// Rotary settings in either form: `rope_parameters`, or `rope_theta` and `rope_scaling` beside it.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let table = match fields.table("rope_parameters", "rope_parameters.")? {
        Some(table) => Some(table),
        None => fields.table("rope_scaling", "rope_scaling.")?,
    };
    let (in_table, scaling) = match &table {
        Some(table) => {
            table.only("partial_rotary_factor", &json!(1.0))?;
            (table.number("rope_theta")?, rope_scaling(table, config.max_position_embeddings)?)
        }
        None => (None, None),
    };
    let base = match in_table {
        Some(base) => base,
        None => fields.number("rope_theta")?.unwrap_or(10_000.0),
    };
    config.position_embedding = PositionEmbedding::Rope(RopeConfig { base, percent: 1.0, interleaved: false, scaling });
    Ok(())
}

/// Both forms: transformers 5 reads the first, transformers 4 the other two.
fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    if let PositionEmbedding::Rope(rope) = &config.position_embedding {
        settings.insert("rope_parameters".into(), rope_parameters(rope));
        settings.insert("rope_theta".into(), json!(rope.base));
        settings.insert("rope_scaling".into(), json!(rope.scaling.map(|_| rope_parameters(rope))));
    }
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
