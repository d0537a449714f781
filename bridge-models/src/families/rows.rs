//! Rows of settings that families share: those of Llama, whose names and values most families have
//! kept, and the same rows with other values of absent keys.

use crate::families::prelude::*;
use crate::huggingface::settings::groups_divide_heads;

/// Sizes under Llama's key names.
pub(super) const SIZES: &[Setting] =
    &[Setting::Rows(SIZES_BESIDE_MLP), size("intermediate_size", |c| &mut c.ffn_hidden_size)];

/// [`SIZES`] of a family without dense feed-forward blocks.
pub(super) const SIZES_BESIDE_MLP: &[Setting] = &[
    size("vocab_size", |c| &mut c.vocab_size),
    size("hidden_size", |c| &mut c.hidden_size),
    size("num_hidden_layers", |c| &mut c.num_layers),
    size("num_attention_heads", |c| &mut c.num_attention_heads),
    size_from("num_key_value_heads", |c| &mut c.num_query_groups, |_, c| Ok(c.num_attention_heads)),
    Setting::Rule(groups_divide_heads),
];

/// The size of a head, which need not be the hidden size over the number of heads.
pub(super) const HEAD_SIZE: Setting = size_from(
    "head_dim",
    |c| &mut c.kv_channels,
    |fields, c| equal_heads(fields, c, "num_attention_heads", "hidden_size", ", or a head_dim"),
);

/// Head size with this default if `head_dim` is absent. Null means hidden size over heads, as in
/// [`HEAD_SIZE`].
pub(super) struct HeadSizeOr(pub usize);

impl KeyGroup for HeadSizeOr {
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        config.kv_channels = self.0;
        if fields.has("head_dim") { HEAD_SIZE.read(fields, config) } else { Ok(()) }
    }

    fn write(&self, config: &DecoderConfig, settings: &mut Map<String, Value>) {
        HEAD_SIZE.write(&mut config.clone(), settings);
    }
}

/// Head size of `width / heads`, with the keys of both.
pub(super) struct EqualHeads {
    pub width: &'static str,
    pub heads: &'static str,
}

impl KeyGroup for EqualHeads {
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        config.kv_channels = equal_heads(fields, config, self.heads, self.width, "")?;
        Ok(())
    }

    fn write(&self, _: &DecoderConfig, _: &mut Map<String, Value>) {}
}

/// The size of heads that share the model's width.
fn equal_heads(
    fields: &Fields,
    config: &DecoderConfig,
    heads_key: &str,
    width_key: &str,
    otherwise: &str,
) -> Result<usize, HfError> {
    let (width, heads) = (config.hidden_size, config.num_attention_heads);
    let expected = format!("a divisor of {width_key} ({width}){otherwise}");
    fields.require(width.is_multiple_of(heads), heads_key, &heads.to_string(), &expected)?;
    Ok(width / heads)
}

/// The size of a head in a family where null is the same as no key.
pub(super) const fn head_size(usual: usize) -> Setting {
    size_or("head_dim", |c| &mut c.kv_channels, usual)
}

/// The longest sequence, in tokens.
pub(super) const fn positions(usual: usize) -> Setting {
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, usual)
}

/// RMSNorm, rotary positions, attention with one switch for all its biases, a gated unit. Head size
/// and positions are set before.
pub(super) const LAYERS: &[Setting] =
    &[Setting::Rows(BLOCKS), Setting::Rows(ATTENTION_BIAS), rms_norm_epsilon(1e-6), tied_embeddings(false), ROPE];

/// Settings with the same default in all families of the Llama line: RMSNorm, attention with the
/// usual factor, a gated unit.
pub(super) const BLOCKS: &[Setting] = &[
    Setting::Rows(ROWS_BESIDE_ACTIVATION),
    Setting::Activation("hidden_act", |c| &mut c.activation, Activation::Silu),
];

/// [`BLOCKS`] for families with another usual activation.
pub(super) const ROWS_BESIDE_ACTIVATION: &[Setting] = &[
    USUAL_SOFTMAX_SCALE,
    Setting::Always(|c| {
        c.norm.kind = Normalization::RmsNorm;
        c.gated_linear_unit = true;
    }),
    initializer_range(0.02),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, 0.0),
];

/// The epsilon of RMSNorm.
pub(super) const fn rms_norm_epsilon(usual: f64) -> Setting {
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, usual)
}

/// The standard deviation of new weights.
pub(super) const fn initializer_range(usual: f64) -> Setting {
    Setting::Number("initializer_range", |c| &mut c.init_method_std, usual)
}

/// True if the embedding is the output projection too.
pub(super) const fn tied_embeddings(usual: bool) -> Setting {
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, usual)
}

/// Biases of feed-forward blocks.
pub(super) const MLP_BIAS: Setting = Setting::Switch("mlp_bias", |c| &mut c.mlp_bias, false);

/// Biases of queries, keys, values and attention's output, all or none.
pub(super) const ATTENTION_BIAS: &[Setting] =
    &[Setting::Switch("attention_bias", |c| &mut c.qkv_bias, false), Setting::Always(|c| c.proj_bias = c.qkv_bias)];

/// Rotary embedding of all elements of a head, with base 10,000 unless a key differs.
pub(super) const ROPE: Setting = Setting::Group(&RopeForm::USUAL);
