//! OLMo 2: a Llama whose norms are after its blocks, and whose queries and keys have one norm each
//! over all heads.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::prelude::*;
use super::{llama, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "olmo2",
    architecture: "Olmo2ForCausalLM",
    settings: SETTINGS,
    weights: &[NORMS, qwen3::QK_NORMS, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Olmo2Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(LAYERS),
    Setting::Keys { read: |fields, c| rope::read(fields, c, RopeForm::USUAL), write: write_rope },
];

/// Settings of OLMo 3 too.
pub(super) const LAYERS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    positions(2048),
    Setting::Always(|c| {
        c.residual.norms = NormPlacement::Output;
        c.qk_layernorm = true;
        c.qk_layernorm_scope = QkNormScope::Projection;
    }),
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
];

/// Olmo2Config of transformers 4 takes two fields and no other.
fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    rope::write(config, settings);
    if let PositionEmbedding::Rope(RopeConfig { scaling: Some(RopeScaling::Linear { factor }), .. }) =
        &config.position_embedding
    {
        settings.insert("rope_scaling".into(), json!({ "type": "linear", "factor": factor }));
    }
}

/// Names of the norms of the outputs of blocks.
pub(super) const NORMS: &[WeightRule] = &[
    layer!("post_self_attention_layernorm.weight", "post_attention_layernorm.weight"),
    layer!("post_mlp_layernorm.weight", "post_feedforward_layernorm.weight"),
];
