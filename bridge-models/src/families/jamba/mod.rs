//! Jamba: the first Mamba's block or attention without positions in each layer, and experts in
//! every other layer.

#[cfg(test)]
mod tests;

use super::llama;
use super::mamba2::mamba;
use super::pairs::{self, MAMBA_CONVOLUTION, Period, expanded, write_expanded};
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "jamba",
    architecture: "JambaForCausalLM",
    settings: SETTINGS,
    weights: &[APART, STACKED, pairs::MIXER_WEIGHTS, pairs::FEED_FORWARD_WEIGHTS, llama::WEIGHTS],
    buffers: &[],
    aliases: &[("num_local_experts", "num_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `JambaConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    HEAD_SIZE,
    Setting::Always(|c| c.position_embedding = PositionEmbedding::None),
    positions(262_144),
    Setting::Keys { read: read_layers, write: write_layers },
    Setting::Rows(BLOCKS),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    size_or("mamba_d_state", |c| &mut mamba(c).state_size, 16),
    Setting::Rows(MAMBA_CONVOLUTION),
    Setting::Keys { read: read_mamba, write: write_mamba },
    Setting::Only("mamba_inner_layernorms", || json!(true)),
    // Implementations of the same scan, and of the same logits.
    Setting::Unused(&["calc_logits_for_entire_prompt", "use_associative_scan", "use_mambapy"]),
];

const ATTENTION: Period = Period { keys: ["attn_layer_period", "attn_layer_offset"], usual: [8, 4] };
const EXPERTS: Period = Period { keys: ["expert_layer_period", "expert_layer_offset"], usual: [2, 1] };

/// Reads which layers have attention, and which have experts, of which one is a dense block.
fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let [[period, offset], [expert_period, expert_offset]] = [ATTENTION.read(fields)?, EXPERTS.read(fields)?];
    let num_experts = fields.size("num_experts")?.unwrap_or(16);
    let topk = fields.size("num_experts_per_tok")?.unwrap_or(2);
    let has_attention = |layer: usize| layer % period == offset;
    let mixer = |layer| if has_attention(layer) { HybridBlock::Attention } else { HybridBlock::Selective };
    let mixers: Vec<HybridBlock> = (0..config.num_layers).map(mixer).collect();
    let size = config.ffn_hidden_size;
    let moe = experts(config);
    (moe.num_experts, moe.topk, moe.ffn_hidden_size, moe.pre_softmax) = (num_experts, topk, size, true);
    pairs::set_layers(config, &mixers, |layer| num_experts > 1 && layer % expert_period == expert_offset);
    Ok(())
}

fn write_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    pairs::write_num_layers(config, settings);
    let layers = pairs::layers(config);
    let with = |block: HybridBlock| layers.iter().map(|pair| pair.contains(&block)).collect::<Vec<_>>();
    ATTENTION.write(&with(HybridBlock::Attention), settings);
    EXPERTS.write(&with(HybridBlock::Moe), settings);
    settings.insert("num_experts".into(), json!(config.moe.as_ref().map_or(1, |moe| moe.num_experts)));
    settings.extend(config.moe.as_ref().map(|moe| ("num_experts_per_tok".into(), json!(moe.topk))));
}

const DT_RANK: &str = "mamba_dt_rank";

/// Reads the block of the first Mamba, each of whose channels is a head.
fn read_mamba(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let inner = expanded(fields, config)?;
    let is_auto = fields.get(DT_RANK).is_some_and(|rank| rank == "auto");
    let rank = if is_auto { None } else { fields.size(DT_RANK)? };
    let mamba = mamba(config);
    (mamba.num_heads, mamba.head_size, mamba.num_groups, mamba.dt_rank) = (inner, 1, 1, rank);
    Ok(())
}

fn write_mamba(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    write_expanded(config, settings);
    let rank = config.hybrid.as_ref().map(|hybrid| hybrid.mamba.time_step_rank(config.hidden_size));
    settings.insert(DT_RANK.into(), json!(rank));
}

/// Names of the router and of the experts.
const APART: &[WeightRule] = &[
    half_layer!("mlp.router.weight", "feed_forward.router.weight"),
    half_layer!(
        "mlp.experts.local_experts.{}.linear_fc1.weight",
        "feed_forward.experts.{}.gate_proj.weight",
        "feed_forward.experts.{}.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "feed_forward.experts.{}.down_proj.weight"),
];

const STACKED: &[WeightRule] = &stacked([
    half_layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "feed_forward.experts.gate_up_proj"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "feed_forward.experts.down_proj"),
]);
