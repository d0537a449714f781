//! K-EXAONE: attention with norms of queries and keys per head, a sliding window in most layers and
//! no rotation in the others, dense layers, then experts behind a sigmoid router, and experts that
//! all tokens go through.

#[cfg(test)]
mod tests;

use super::mixture::{self, FIRST_DENSE, FirstDense, MlpLayerTypes, SharedExperts, SigmoidRouter};
use super::prelude::*;
use super::{llama, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "exaone_moe",
    architecture: "ExaoneMoeForCausalLM",
    settings: SETTINGS,
    weights: &[
        qwen3::QK_NORMS,
        BIAS,
        mixture::SHARED_IN_MODULE,
        mixture::SHARED,
        mixture::APART,
        mixture::STACKED,
        llama::WEIGHTS,
    ],
    dropped: &["mtp."],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `ExaoneMoeConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(32),
    HEAD_SIZE,
    positions(2048),
    Setting::Always(|c| c.qk_layernorm = true),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 1024),
    size_or("num_experts", |c| &mut experts(c).num_experts, 64),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    Setting::Only("scoring_func", || json!("sigmoid")),
    Setting::Only("topk_method", || json!("noaux_tc")),
    Setting::Group(&SigmoidRouter { factor: 2.5, ..SigmoidRouter::UNGROUPED }),
    Setting::Group(&SharedExperts("num_shared_experts", Some(1))),
    Setting::Group(&MlpLayerTypes(Some(FirstDense(FIRST_DENSE, 1)))),
    Setting::Rows(BLOCKS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    ROPE,
    Setting::Keys { read: read_window, write: write_window },
    // The first key counts only without `mlp_layer_types`. transformers ignores layers of
    // multi-token prediction in this family.
    Setting::Unused(&["first_k_dense_replace", "num_nextn_predict_layers"]),
];

/// A window in the layers that `layer_types` names, or in all but each
/// `sliding_window_pattern`-th. If there is a window, layers without it have no rotation.
fn read_window(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let size = if fields.has("sliding_window") { fields.size("sliding_window")? } else { Some(4096) };
    fields.ask("sliding_window_pattern");
    let layers = match windows::layer_types(fields, config.num_layers)? {
        Some(layers) => layers,
        None => {
            let pattern = fields.size("sliding_window_pattern")?.unwrap_or(4);
            (1..=config.num_layers).map(|number| size.is_some() && !number.is_multiple_of(pattern)).collect()
        }
    };
    windows::set_unrotated(config, layers.iter().map(|has_window| size.is_some() && !has_window).collect());
    windows::set_switched(fields, config, size, layers)
}

fn write_window(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    // A size says that layers without a window have no rotation, even if no layer has one.
    let rotates = config.position_embedding != PositionEmbedding::None;
    let size = config.window_size.map(|left| left + 1).or((!rotates).then_some(4096));
    settings.insert("sliding_window".into(), json!(size));
    settings.insert("layer_types".into(), windows::type_names(&windows::windowed_layers(config)));
}

/// Name of the bias in the choice of experts in files.
const BIAS: &[WeightRule] = &[layer!("mlp.router.expert_bias", "mlp.e_score_correction_bias")];
