//! Settings of T5; absent ones have the values of `T5Config`.

use crate::decoder::{EncoderConfig, RelativeConfig};
use crate::families::prelude::*;
use crate::huggingface::fields::{activation_called, activation_name};

pub(super) const SETTINGS: &[Setting] = &[
    size("vocab_size", |c| &mut c.vocab_size),
    size("d_model", |c| &mut c.hidden_size),
    size("d_kv", |c| &mut c.kv_channels),
    size("d_ff", |c| &mut c.ffn_hidden_size),
    size("num_heads", |c| &mut c.num_attention_heads),
    Setting::Always(|c| c.num_query_groups = c.num_attention_heads),
    size("num_layers", |c| &mut encoder(c).num_layers),
    size_from(
        "num_decoder_layers",
        |c| &mut c.num_layers,
        |_, c| Ok(c.encoder.map_or(0, |encoder| encoder.num_layers)),
    ),
    // Relative positions have no end; old files name the length of the training sequences.
    size_or("n_positions", |c| &mut c.max_position_embeddings, 512),
    size_or("relative_attention_num_buckets", |c| &mut relative(c).num_buckets, 32),
    size_or("relative_attention_max_distance", |c| &mut relative(c).max_distance, 128),
    Setting::Always(|c| {
        c.norm.kind = Normalization::RmsNorm;
        c.softmax_scale = 1.0;
    }),
    Setting::Number("layer_norm_epsilon", |c| &mut c.norm.epsilon, 1e-6),
    Setting::Number("dropout_rate", |c| &mut c.hidden_dropout, 0.1),
    Setting::Always(|c| (c.attention_dropout, c.embedding_dropout) = (c.hidden_dropout, c.hidden_dropout)),
    Setting::Keys { read: read_feed_forward, write: write_feed_forward },
    tied_embeddings(true),
    Setting::Keys { read: read_output, write: write_output },
    // Not T5's key, whose factor scales deviations that differ from matrix to matrix.
    initializer_range(0.02),
];

fn encoder(config: &mut DecoderConfig) -> &mut EncoderConfig {
    config.encoder.get_or_insert_with(EncoderConfig::neutral)
}

fn relative(config: &mut DecoderConfig) -> &mut RelativeConfig {
    if !matches!(config.position_embedding, PositionEmbedding::Relative(_)) {
        config.position_embedding = PositionEmbedding::Relative(RelativeConfig::neutral());
    }
    match &mut config.position_embedding {
        PositionEmbedding::Relative(relative) => relative,
        PositionEmbedding::LearnedAbsolute | PositionEmbedding::Rope(_) | PositionEmbedding::None => {
            unreachable!("positions are relative by now")
        }
    }
}

const FEED_FORWARD: &str = "feed_forward_proj";

/// `NAME` or `gated-NAME`, where `gated-gelu` means the tanh approximation. Separate keys for the
/// two parts take precedence.
fn read_feed_forward(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let name = fields.string(FEED_FORWARD)?.unwrap_or("relu");
    let (gated, inner) = match name.strip_prefix("gated-") {
        Some("gelu") => (true, "gelu_new"),
        Some(inner) => (true, inner),
        None => (false, name),
    };
    config.gated_linear_unit = fields.bool("is_gated_act")?.unwrap_or(gated);
    config.activation = match fields.string("dense_act_fn")? {
        Some(inner) => activation_called(fields, "dense_act_fn", inner)?,
        None => activation_called(fields, FEED_FORWARD, inner)?,
    };
    Ok(())
}

fn write_feed_forward(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let name = match (config.gated_linear_unit, config.activation) {
        (true, Activation::GeluTanh) => "gated-gelu".to_owned(),
        (true, Activation::Gelu) => "gated-gelu_python".to_owned(),
        (true, activation) => format!("gated-{}", activation_name(activation)),
        (false, activation) => activation_name(activation).to_owned(),
    };
    settings.insert(FEED_FORWARD.into(), json!(name));
}

/// Start and end of the decoder. T5 v1.0 scales the input of the tied projection; files of
/// transformers 5 have a key for later models that are tied and not scaled.
fn read_output(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let tied = config.share_embeddings_and_output_weights;
    let is_encoder_decoder = fields.bool("is_encoder_decoder")?.unwrap_or(true);
    fields.require(is_encoder_decoder, "is_encoder_decoder", "false", "true: an encoder alone is not implemented")?;
    let scale_outputs = fields.bool("scale_decoder_outputs")?.unwrap_or(tied);
    // A negative token for padding means no padding.
    let has_padding = fields.get("pad_token_id").and_then(Value::as_i64).is_none_or(|id| id >= 0);
    let start_token = match fields.count("decoder_start_token_id")? {
        Some(token) => token,
        None if has_padding => fields.count("pad_token_id")?.unwrap_or(0),
        None => 0,
    };
    let encoder = encoder(config);
    (encoder.scale_outputs, encoder.start_token) = (scale_outputs, start_token);
    Ok(())
}

fn write_output(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    if let Some(encoder) = config.encoder {
        settings.insert("is_encoder_decoder".into(), json!(true));
        settings.insert("scale_decoder_outputs".into(), json!(encoder.scale_outputs));
        settings.insert("decoder_start_token_id".into(), json!(encoder.start_token));
    }
}
