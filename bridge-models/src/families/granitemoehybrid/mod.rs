//! Granite 4: Mamba-2 or attention in each layer, a feed-forward block that all tokens go through,
//! with or without experts, and Granite's factors.

#[cfg(test)]
mod tests;

use super::granite::FACTORS;
use super::llama;
use super::pairs::{self, ATTENTION, MAMBA, MAMBA_BLOCK, MixerNames};
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "granitemoehybrid",
    architecture: "GraniteMoeHybridForCausalLM",
    settings: SETTINGS,
    weights: &[WEIGHTS, ON_DISK, OF_MODULE, pairs::MIXER_WEIGHTS, llama::WEIGHTS],
    aliases: &[("layers_block_type", "layer_types")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `GraniteMoeHybridConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_BESIDE_MLP),
    HEAD_SIZE,
    positions(2048),
    Setting::Keys { read: read_layers, write: write_layers },
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    Setting::Rows(FACTORS),
    Setting::Keys { read: read_positions, write: write_positions },
    MAMBA_BLOCK,
    // Keys of published files that transformers does not read.
    Setting::Unused(&["init_method", "normalization_function"]),
];

const MIXERS: MixerNames = &[MAMBA, ATTENTION];
const NUM_EXPERTS: &str = "num_local_experts";

/// Reads the mixers, and the experts that all layers have or none.
fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let all_mamba = vec![HybridBlock::Mamba; config.num_layers];
    let mixers = pairs::listed_mixers(fields, config, MIXERS)?.unwrap_or(all_mamba);
    let shared = fields.size("shared_intermediate_size")?.unwrap_or(1024);
    let size = fields.size("intermediate_size")?.unwrap_or(11_008);
    let topk = fields.size("num_experts_per_tok")?.unwrap_or(2);
    let num_experts = match fields.get(NUM_EXPERTS) {
        None => 8,
        Some(count) if count.as_u64() == Some(0) => 0,
        Some(_) => fields.size(NUM_EXPERTS)?.unwrap_or(0),
    };
    config.ffn_hidden_size = if num_experts == 0 { shared } else { size };
    if num_experts > 0 {
        let moe = experts(config);
        (moe.num_experts, moe.topk, moe.ffn_hidden_size) = (num_experts, topk, size);
        moe.shared_expert_intermediate_size = Some(shared);
    }
    pairs::set_layers(config, &mixers, |_| num_experts > 0);
    Ok(())
}

fn write_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    pairs::write_num_layers(config, settings);
    pairs::write_mixers(config, settings, MIXERS);
    let moe = config.moe.as_ref();
    let size = moe.map_or(config.ffn_hidden_size, |moe| moe.ffn_hidden_size);
    let shared = moe.map_or(Some(config.ffn_hidden_size), |moe| moe.shared_expert_intermediate_size);
    settings.insert("intermediate_size".into(), json!(size));
    // Without a block for all tokens the usual one is read back, and refused so.
    settings.extend(shared.map(|size| ("shared_intermediate_size".into(), json!(size))));
    settings.insert(NUM_EXPERTS.into(), json!(moe.map_or(0, |moe| moe.num_experts)));
    settings.extend(moe.map(|moe| ("num_experts_per_tok".into(), json!(moe.topk))));
}

const POSITIONS: &str = "position_embedding_type";

/// Attention rotates if `position_embedding_type` is "rope", and has no positions otherwise.
fn read_positions(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    if fields.string(POSITIONS)? == Some("rope") {
        rope::read(fields, config, RopeForm::USUAL)?;
        pairs::rotates_attention_alone(config);
        return Ok(());
    }
    config.position_embedding = PositionEmbedding::None;
    ["rope_parameters", "rope_scaling", "rope_theta"].iter().for_each(|key| fields.ask(key));
    Ok(())
}

fn write_positions(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let is_rotated = matches!(config.position_embedding, PositionEmbedding::Rope(_));
    settings.insert(POSITIONS.into(), json!(if is_rotated { "rope" } else { "nope" }));
    rope::write(config, settings);
}

/// Names of the feed-forward blocks, each with its gate and its values in one matrix, and of the
/// experts, which are all in one tensor, in files and in the state of a module.
const WEIGHTS: &[WeightRule] = &[
    half_layer!("pre_mlp_layernorm.weight", "post_attention_layernorm.weight"),
    half_layer!("mlp.linear_fc1.weight", "shared_mlp.input_linear.weight"),
    half_layer!("mlp.linear_fc2.weight", "shared_mlp.output_linear.weight"),
    half_layer!("mlp.shared_experts.linear_fc1.weight", "shared_mlp.input_linear.weight"),
    half_layer!("mlp.shared_experts.linear_fc2.weight", "shared_mlp.output_linear.weight"),
];

const ON_DISK: &[WeightRule] = &[
    half_layer!("mlp.router.weight", "block_sparse_moe.router.layer.weight"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "block_sparse_moe.input_linear.weight"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "block_sparse_moe.output_linear.weight"),
];

const OF_MODULE: &[WeightRule] = &stacked([
    half_layer!("mlp.router.weight", "block_sparse_moe.router.weight"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "block_sparse_moe.experts.gate_up_proj"),
    half_layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "block_sparse_moe.experts.down_proj"),
]);
