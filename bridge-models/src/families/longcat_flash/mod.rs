//! LongCat-Flash: layers of latent attention, each with a dense block; beside every other one stand
//! experts, some of them the identity, whose output is added a layer later.

#[cfg(test)]
mod tests;

use super::deepseek_v3::config::{LatentSizes, latent, read_latent_rope};
use super::llama;
use super::mixture::{ExpertFactor, FACTOR};
use super::prelude::*;
use crate::huggingface::settings::groups_divide_heads;

pub(super) static FAMILY: Family = Family {
    model_type: "longcat_flash",
    architecture: "LongcatFlashForCausalLM",
    settings: SETTINGS,
    weights: &[OWN, llama::WEIGHTS],
    dropped: &["model.mtp."],
    aliases: &[
        ("num_local_experts", "n_routed_experts"),
        ("num_experts_per_tok", "moe_topk"),
        ("intermediate_size", "ffn_hidden_size"),
        ("moe_intermediate_size", "expert_ffn_hidden_size"),
    ],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `LongcatFlashConfig`.
const SETTINGS: &[Setting] = &[
    size("vocab_size", |c| &mut c.vocab_size),
    size("hidden_size", |c| &mut c.hidden_size),
    size("ffn_hidden_size", |c| &mut c.ffn_hidden_size),
    size("num_attention_heads", |c| &mut c.num_attention_heads),
    size_from("num_key_value_heads", |c| &mut c.num_query_groups, |_, c| Ok(c.num_attention_heads)),
    Setting::Rule(groups_divide_heads),
    positions(131_072),
    Setting::Group(&LatentSizes { query: Some(1536), key_value: 512, rotated: 64, plain: 128, value: Some(128) }),
    Setting::Keys { read: read_head, write: write_head },
    size_or("expert_ffn_hidden_size", |c| &mut experts(c).ffn_hidden_size, 2048),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 512),
    size_or("moe_topk", |c| &mut experts(c).topk, 12),
    // transformers makes the bias and does not add it.
    Setting::Only("router_bias", || json!(false)),
    Setting::Group(&ExpertFactor(FACTOR, 6.0)),
    Setting::Keys { read: read_layers, write: write_layers },
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Keys { read: |fields, c| read_latent_rope(fields, c, true, ROPE), write: rope::write },
    Setting::Keys { read: read_ranks, write: |_, _| {} },
    Setting::Only("zero_expert_type", || json!("identity")),
    Setting::Only("attention_method", || json!("MLA")),
    Setting::Only("mla_scale_q_lora", || json!(true)),
    Setting::Only("mla_scale_kv_lora", || json!(true)),
    Setting::Unused(&["qk_head_dim"]),
];

const ROPE: RopeForm = RopeForm { theta: 10_000_000.0, ..RopeForm::USUAL };

/// Tables of rotations have the size of `head_dim`, and are those of the rotated elements.
fn read_head(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let (size, rotated) = (fields.size("head_dim")?.unwrap_or(64), config.rotary_head());
    fields.require(size == rotated, "head_dim", &size.to_string(), &format!("{rotated}, as qk_rope_head_dim"))
}

fn write_head(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert("head_dim".into(), json!(config.rotary_head()));
}

const LAYERS: &str = "num_layers";
const IDENTITIES: &str = "zero_expert_num";

/// A file's layer is two of ours, the first of which has experts beside its dense block.
fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let layers = fields.size(LAYERS)?.ok_or_else(|| fields.missing(LAYERS, "an integer of at least 1"))?;
    config.num_layers = layers.saturating_mul(2);
    if let Some(both) = fields.size("num_hidden_layers")? {
        let expected = format!("{}, twice {LAYERS}", config.num_layers);
        fields.require(both == config.num_layers, "num_hidden_layers", &both.to_string(), &expected)?;
    }
    let absent = if fields.has(IDENTITIES) { 0 } else { 256 };
    let identities = fields.count(IDENTITIES)?.unwrap_or(absent);
    let with_experts = LayerPattern::from_list((0..config.num_layers).map(|layer| layer % 2 == 0).collect());
    let moe = experts(config);
    (moe.layers, moe.shortcut, moe.num_identity_experts) = (with_experts, true, identities);
    (moe.expert_bias, moe.pre_softmax, moe.router_precision) = (true, true, Some(RouterDType::Fp32));
    Ok(())
}

fn write_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert(LAYERS.into(), json!(config.num_layers / 2));
    settings.extend(config.moe.as_ref().map(|moe| (IDENTITIES.into(), json!(moe.num_identity_experts))));
}

/// Latent vectors are multiplied by the root of the model's width over theirs. The factor on
/// queries is one on scores.
fn read_ranks(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let rank = fields.size("q_lora_rank")?.unwrap_or(1536);
    let width = config.hidden_size as f64;
    let factor = |rank: usize| (width / rank as f64).sqrt();
    let (of_queries, of_keys) = (factor(rank), factor(latent(config).kv_lora_rank));
    config.softmax_scale *= of_queries;
    (latent(config).q_lora_rank, latent(config).kv_multiplier) = (Some(rank), Some(of_keys));
    Ok(())
}

/// Names of LongCat-Flash's parameters: a file's layer has two of each block, and the experts.
const OWN: &[WeightRule] = &[
    half_layer!("input_layernorm.weight", "input_layernorm.{%2}.weight"),
    half_layer!("pre_mlp_layernorm.weight", "post_attention_layernorm.{%2}.weight"),
    half_layer!("self_attention.linear_q_down_proj.weight", "self_attn.{%2}.q_a_proj.weight"),
    half_layer!("self_attention.linear_q_down_proj.bias", "self_attn.{%2}.q_a_proj.bias"),
    half_layer!("self_attention.q_layernorm.weight", "self_attn.{%2}.q_a_layernorm.weight"),
    half_layer!("self_attention.linear_q_up_proj.weight", "self_attn.{%2}.q_b_proj.weight"),
    half_layer!("self_attention.linear_kv_down_proj.weight", "self_attn.{%2}.kv_a_proj_with_mqa.weight"),
    half_layer!("self_attention.linear_kv_down_proj.bias", "self_attn.{%2}.kv_a_proj_with_mqa.bias"),
    half_layer!("self_attention.kv_layernorm.weight", "self_attn.{%2}.kv_a_layernorm.weight"),
    half_layer!("self_attention.linear_kv_up_proj.weight", "self_attn.{%2}.kv_b_proj.weight"),
    half_layer!("self_attention.linear_proj.weight", "self_attn.{%2}.o_proj.weight"),
    half_layer!("self_attention.linear_proj.bias", "self_attn.{%2}.o_proj.bias"),
    half_layer!("mlp.linear_fc1.weight", "mlps.{%2}.gate_proj.weight", "mlps.{%2}.up_proj.weight")
        .fused(Fusion::GateUp),
    half_layer!("mlp.linear_fc2.weight", "mlps.{%2}.down_proj.weight"),
    half_layer!("mlp.router.weight", "mlp.router.classifier.weight"),
    half_layer!("mlp.router.expert_bias", "mlp.router.e_score_correction_bias"),
    half_layer!(
        "mlp.experts.local_experts.{}.linear_fc1.weight",
        "mlp.experts.{}.gate_proj.weight",
        "mlp.experts.{}.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "mlp.experts.{}.down_proj.weight"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "mlp.experts.gate_up_proj").with_identities(),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "mlp.experts.down_proj").stacked(),
];
