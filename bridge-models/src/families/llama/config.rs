//! Settings of Llama; absent ones have the values of `LlamaConfig`. Families that descend from it
//! share most rows.

use crate::families::prelude::*;
use crate::huggingface::settings::groups_divide_heads;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Switch("mlp_bias", |c| &mut c.mlp_bias, false),
    Setting::Rows(LAYERS),
];

/// Sizes that have the same names in all families of the line.
pub(crate) const SIZES: &[Setting] =
    &[Setting::Rows(SIZES_BESIDE_MLP), size("intermediate_size", |c| &mut c.ffn_hidden_size)];

/// [`SIZES`] of a family without dense feed-forward blocks.
pub(crate) const SIZES_BESIDE_MLP: &[Setting] = &[
    size("vocab_size", |c| &mut c.vocab_size),
    size("hidden_size", |c| &mut c.hidden_size),
    size("num_hidden_layers", |c| &mut c.num_layers),
    size("num_attention_heads", |c| &mut c.num_attention_heads),
    size_or("num_key_value_heads", |c| &mut c.num_query_groups, |_, c| Ok(c.num_attention_heads)),
    Setting::Rule(groups_divide_heads),
];

/// The size of a head, which need not be the hidden size over the number of heads.
pub(crate) const HEAD_SIZE: Setting = size_or(
    "head_dim",
    |c| &mut c.kv_channels,
    |fields, c| {
        let (hidden_size, heads) = (c.hidden_size, c.num_attention_heads);
        let expected = format!("a divisor of hidden_size ({hidden_size}), or a head_dim");
        let divides = hidden_size.is_multiple_of(heads);
        fields.require(divides, "num_attention_heads", &heads.to_string(), &expected)?;
        Ok(hidden_size / heads)
    },
);

/// RMSNorm, rotary positions, attention with one switch for all its biases, a gated unit. Head size
/// and positions are set before.
pub(crate) const LAYERS: &[Setting] = &[
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    ROPE,
];

/// Settings with the same default in all families of the Llama line: RMSNorm, attention with the
/// usual factor, a gated unit.
pub(crate) const BLOCKS: &[Setting] = &[
    Setting::Rows(ROWS_BESIDE_ACTIVATION),
    Setting::Activation("hidden_act", |c| &mut c.activation, Activation::Silu),
];

/// [`BLOCKS`] for families with another usual activation.
pub(crate) const ROWS_BESIDE_ACTIVATION: &[Setting] = &[
    USUAL_SOFTMAX_SCALE,
    Setting::Always(|c| {
        c.norm.kind = Normalization::RmsNorm;
        c.gated_linear_unit = true;
    }),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.02)),
    Setting::Number("attention_dropout", |c| &mut c.attention_dropout, |_, _| Ok(0.0)),
];

/// Biases of queries, keys, values and attention's output, all or none.
pub(crate) const ATTENTION_BIAS: &[Setting] =
    &[Setting::Switch("attention_bias", |c| &mut c.qkv_bias, false), Setting::Always(|c| c.proj_bias = c.qkv_bias)];

/// Whole heads that are rotated by the usual base.
pub(crate) const ROPE: Setting = Setting::Group(&RopeForm::USUAL);
