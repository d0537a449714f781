//! OLMo Hybrid: linear attention by the gated delta rule in most layers, with norms before blocks;
//! OLMo 2's attention, with norms behind blocks, in the others.

#[cfg(test)]
mod tests;

use super::prelude::*;
use super::qwen3_next::{convolution_has_silu, linear, read_linear_layers, write_linear_layers};
use super::{llama, olmo2, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "olmo_hybrid",
    architecture: "OlmoHybridForCausalLM",
    settings: SETTINGS,
    weights: &[WEIGHTS, olmo2::NORMS, qwen3::QK_NORMS, llama::WEIGHTS],
    module_names: &[
        (".attention_layer_norm.", ".input_layernorm."),
        (".feedforward_layer_norm.", ".post_attention_layernorm."),
    ],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `OlmoHybridConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    positions(65_536),
    Setting::Always(|c| {
        c.residual.norms = NormPlacement::Output;
        c.qk_layernorm = true;
        c.qk_layernorm_scope = QkNormScope::Projection;
        linear(c).norms = Some(NormPlacement::Before);
        // transformers has this number in its code.
        linear(c).norm_epsilon = Some(1e-5);
    }),
    size_from("linear_num_key_heads", |c| &mut linear(c).num_key_heads, |_, c| Ok(c.num_attention_heads)),
    size_from("linear_num_value_heads", |c| &mut linear(c).num_value_heads, |_, c| Ok(c.num_attention_heads)),
    size_from(
        "linear_key_head_dim",
        |c| &mut linear(c).key_head_size,
        |_, c| {
            let heads = c.linear_attention.as_ref().map_or(1, |linear| linear.num_key_heads);
            Ok((0.75 * c.hidden_size as f64 / heads as f64) as usize)
        },
    ),
    size_from(
        "linear_value_head_dim",
        |c| &mut linear(c).value_head_size,
        |_, c| Ok(2 * c.linear_attention.as_ref().map_or(0, |linear| linear.key_head_size)),
    ),
    size_or("linear_conv_kernel_dim", |c| &mut linear(c).conv_kernel, 4),
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
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
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

/// Names of linear attention's parameters, and of the norms of its layers.
const WEIGHTS: &[WeightRule] = &[
    layer!("input_layernorm.weight", "attention_layer_norm.weight"),
    layer!("pre_mlp_layernorm.weight", "feedforward_layer_norm.weight"),
    layer!(
        "self_attention.in_proj.weight",
        "linear_attn.q_proj.weight",
        "linear_attn.k_proj.weight",
        "linear_attn.v_proj.weight",
        "linear_attn.g_proj.weight",
        "linear_attn.b_proj.weight",
        "linear_attn.a_proj.weight"
    )
    .fused(Fusion::Linear(LinearRows::ALL)),
    layer!(
        "self_attention.conv1d.weight",
        "linear_attn.q_conv1d.weight",
        "linear_attn.k_conv1d.weight",
        "linear_attn.v_conv1d.weight"
    )
    .fused(Fusion::LinearConvolution(LinearRows::QKV)),
    layer!("self_attention.conv1d.weight", "linear_attn.conv1d.weight").fused(Fusion::Convolution).stacked(),
    layer!("self_attention.A_log", "linear_attn.A_log"),
    layer!("self_attention.dt_bias", "linear_attn.dt_bias"),
    layer!("self_attention.out_norm.weight", "linear_attn.o_norm.weight"),
    layer!("self_attention.out_proj.weight", "linear_attn.o_proj.weight"),
];
