//! Settings of Granite 4; absent ones have the values of `GraniteMoeHybridConfig`.

use crate::families::granite::config::FACTORS;
use crate::families::pairs::{self, ATTENTION, MAMBA, MAMBA_BLOCK, MixerNames};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_BESIDE_MLP),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Keys { read: read_layers, write: write_layers },
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
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
