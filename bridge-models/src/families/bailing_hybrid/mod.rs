//! Bailing Hybrid (Ling and Ring 3): Kimi Delta Attention with bounded decays in most layers, gated
//! latent attention in the others, and DeepSeek-V3's experts.

#[cfg(test)]
mod tests;

use super::deepseek_v3::config::read_latent_rope;
use super::kimi_linear::config::{LATENT, ROUTER, set_kimi_heads};
use super::llama;
use super::mixture::{self, FIRST_DENSE, FirstDense, MlpLayerTypes, SharedExperts, SigmoidRouter};
use super::prelude::*;
use super::qwen3_next::{convolution_has_silu, linear, read_linear_layers, write_linear_layers};

pub(super) static FAMILY: Family = Family {
    model_type: "bailing_hybrid",
    architecture: "BailingHybridForCausalLM",
    settings: SETTINGS,
    weights: &[WEIGHTS, mixture::APART, mixture::STACKED, mixture::SHARED, llama::WEIGHTS],
    module_names: &[
        ("model.word_embeddings.", "model.embed_tokens."),
        (".attention.f_proj.", ".self_attn.forget_gate.f_proj."),
        (".attention.A_log", ".self_attn.forget_gate.A_log"),
        (".attention.dt_bias", ".self_attn.forget_gate.dt_bias"),
        (".attention.dense.", ".self_attn.o_proj."),
        (".attention.", ".self_attn."),
        (".gate.expert_bias", ".gate.e_score_correction_bias"),
    ],
    aliases: &[
        ("max_position_embeddings", "model_max_length"),
        ("norm_topk_prob", "moe_renormalize"),
        ("n_group", "num_expert_group"),
        ("num_local_experts", "num_experts"),
        ("num_experts_per_tok", "num_experts_per_token"),
        ("n_shared_experts", "num_shared_experts"),
        ("num_mtp_layers", "num_nextn_predict_layers"),
    ],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `BailingHybridConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    size_or("model_max_length", |c| &mut c.max_position_embeddings, 262_144),
    Setting::Group(&LATENT),
    Setting::Always(|c| c.output_gate = Some(OutputGateForm::Head)),
    Setting::Keys { read: read_linear, write: write_linear },
    // The second name, which transformers writes too, counts where both are there.
    size_or("short_conv_kernel_size", |c| &mut linear(c).conv_kernel, 4),
    size_from(
        "linear_conv_kernel_dim",
        |c| &mut linear(c).conv_kernel,
        |_, c| Ok(c.linear_attention.as_ref().map_or(4, |linear| linear.conv_kernel)),
    ),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 768),
    size_or("num_experts", |c| &mut experts(c).num_experts, 512),
    size_or("num_experts_per_token", |c| &mut experts(c).topk, 8),
    Setting::Group(&SigmoidRouter { groups: 8, chosen: 4, factor: 2.5, ..ROUTER }),
    Setting::Group(&SharedExperts("num_shared_experts", Some(1))),
    Setting::Group(&MlpLayerTypes(Some(FirstDense(FIRST_DENSE, 2)))),
    Setting::Rows(BLOCKS),
    Setting::Rule(convolution_has_silu),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    Setting::Keys { read: read_rope, write: rope::write },
    // Layers of multi-token prediction, which transformers drops, are not read.
    Setting::Unused(&["qk_head_dim", "num_nextn_predict_layers", "mtp_loss_scaling_factor", "first_k_dense_replace"]),
];

/// Every head is as large as `head_dim`, which transformers replaces by another size and then calls
/// `linear_head_dim`.
fn read_linear(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let (size, written) = (fields.size("head_dim")?, fields.size("linear_head_dim")?);
    let heads = fields.size("linear_num_heads")?.unwrap_or(config.num_attention_heads);
    set_kimi_heads(config, heads, written.or(size).unwrap_or(128));
    let is_bounded = fields.bool("kda_safe_gate")?.unwrap_or(true);
    let bound = fields.number("kda_lower_bound")?.unwrap_or(-5.0);
    linear(config).decay_bound = is_bounded.then_some(bound);
    let every = fields.size("layer_group_size")?.unwrap_or(6);
    read_linear_layers(fields, config, |layer| !(layer + 1).is_multiple_of(every))
}

fn write_linear(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(linear) = &config.linear_attention else { return };
    write_linear_layers(config, settings);
    settings.insert("linear_num_heads".into(), json!(linear.num_key_heads));
    settings.insert("head_dim".into(), json!(linear.key_head_size));
    settings.insert("linear_head_dim".into(), json!(linear.key_head_size));
    settings.insert("kda_safe_gate".into(), json!(linear.decay_bound.is_some()));
    settings.extend(linear.decay_bound.map(|bound| ("kda_lower_bound".to_owned(), json!(bound))));
}

/// Rotation in pairs, by the base 6,000,000 where no key says it.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    read_latent_rope(fields, config, true, RopeForm { theta: 6_000_000.0, ..RopeForm::USUAL })
}

/// Names of the parameters of attention of both kinds, and of the router's bias.
const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["model.word_embeddings.weight"]).fused(Fusion::Vocabulary),
    layer!(
        "self_attention.in_proj.weight",
        "attention.q_proj.weight",
        "attention.k_proj.weight",
        "attention.v_proj.weight",
        "attention.g_proj.weight",
        "attention.b_proj.weight",
        "attention.f_proj.weight"
    )
    .fused(Fusion::Linear(LinearRows::ALL)),
    layer!(
        "self_attention.conv1d.weight",
        "attention.q_conv1d.weight",
        "attention.k_conv1d.weight",
        "attention.v_conv1d.weight"
    )
    .fused(Fusion::LinearConvolution(LinearRows::QKV)),
    layer!("self_attention.conv1d.weight", "self_attn.conv1d.weight").fused(Fusion::Convolution).stacked(),
    layer!("self_attention.A_log", "attention.A_log"),
    layer!("self_attention.dt_bias", "attention.dt_bias"),
    layer!("self_attention.out_norm.weight", "attention.o_norm.weight"),
    layer!("self_attention.out_proj.weight", "attention.dense.weight"),
    layer!("self_attention.linear_q_proj.weight", "attention.q_proj.weight"),
    layer!("self_attention.linear_q_down_proj.weight", "attention.q_a_proj.weight"),
    layer!("self_attention.linear_q_down_proj.bias", "attention.q_a_proj.bias"),
    layer!("self_attention.q_layernorm.weight", "attention.q_a_layernorm.weight"),
    layer!("self_attention.linear_q_up_proj.weight", "attention.q_b_proj.weight"),
    layer!("self_attention.linear_kv_down_proj.weight", "attention.kv_a_proj_with_mqa.weight"),
    layer!("self_attention.linear_kv_down_proj.bias", "attention.kv_a_proj_with_mqa.bias"),
    layer!("self_attention.kv_layernorm.weight", "attention.kv_a_layernorm.weight"),
    layer!("self_attention.linear_kv_up_proj.weight", "attention.kv_b_proj.weight"),
    layer!("self_attention.linear_gate.weight", "attention.g_proj.weight"),
    layer!("self_attention.linear_proj.weight", "attention.dense.weight"),
    layer!("self_attention.linear_proj.bias", "attention.dense.bias"),
    layer!("mlp.router.expert_bias", "mlp.gate.expert_bias"),
];
