//! Settings of OLMo Hybrid; absent ones have the values of `OlmoHybridConfig`.

use crate::families::prelude::*;
use crate::families::qwen3_next::config::{convolution_has_silu, linear, read_linear_layers, write_linear_layers};

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(65_536)),
    Setting::Always(|c| {
        c.residual.norms = NormPlacement::Output;
        c.qk_layernorm = true;
        c.qk_layernorm_scope = QkNormScope::Projection;
        linear(c).norms = Some(NormPlacement::Before);
        // transformers has this number in its code.
        linear(c).norm_epsilon = Some(1e-5);
    }),
    size_or("linear_num_key_heads", |c| &mut linear(c).num_key_heads, |_, c| Ok(c.num_attention_heads)),
    size_or("linear_num_value_heads", |c| &mut linear(c).num_value_heads, |_, c| Ok(c.num_attention_heads)),
    size_or(
        "linear_key_head_dim",
        |c| &mut linear(c).key_head_size,
        |_, c| {
            let heads = c.linear_attention.as_ref().map_or(1, |linear| linear.num_key_heads);
            Ok((0.75 * c.hidden_size as f64 / heads as f64) as usize)
        },
    ),
    size_or(
        "linear_value_head_dim",
        |c| &mut linear(c).value_head_size,
        |_, c| Ok(2 * c.linear_attention.as_ref().map_or(0, |linear| linear.key_head_size)),
    ),
    size_or("linear_conv_kernel_dim", |c| &mut linear(c).conv_kernel, |_, _| Ok(4)),
    Setting::Switch("linear_allow_neg_eigval", |c| &mut linear(c).doubles_beta, true),
    Setting::Keys {
        read: |fields, c| {
            let last = c.num_layers.saturating_sub(1);
            read_linear_layers(fields, c, |layer| layer % 4 != 3 && (last >= 3 || layer != last))
        },
        write: write_linear_layers,
    },
    Setting::Rows(BLOCKS),
    Setting::Rule(convolution_has_silu),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: write_rope },
    // Initial values.
    Setting::Unused(&[
        "linear_a_log_min",
        "linear_a_log_max",
        "linear_dt_min",
        "linear_dt_max",
        "linear_dt_init_floor",
    ]),
];

/// Leaves the model without rotation if the base of the frequencies is null. transformers rotates
/// by its usual base where no key says it, also if the whole table is null.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let place = rope::table(fields)?.filter(|table| table.has("rope_theta")).unwrap_or(*fields);
    if place.has("rope_theta") && place.get("rope_theta").is_none() {
        return Ok(());
    }
    rope::read(fields, config, RopeForm::USUAL)
}

fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    match &config.position_embedding {
        PositionEmbedding::Rope(_) => rope::write(config, settings),
        PositionEmbedding::LearnedAbsolute | PositionEmbedding::Relative(_) | PositionEmbedding::None => {
            settings.insert("rope_parameters".into(), json!({ "rope_type": "default", "rope_theta": null }));
        }
    }
}
