//! Settings of K-EXAONE; absent ones have the values of `ExaoneMoeConfig`.

use crate::families::mixture::{FIRST_DENSE, FirstDense, MlpLayerTypes, SharedExperts, SigmoidRouter};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(32),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(2048)),
    Setting::Always(|c| c.qk_layernorm = true),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(1024)),
    size_or("num_experts", |c| &mut experts(c).num_experts, |_, _| Ok(64)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Only("scoring_func", || json!("sigmoid")),
    Setting::Only("topk_method", || json!("noaux_tc")),
    Setting::Group(&ROUTER),
    Setting::Group(&SharedExperts("num_shared_experts", Some(1))),
    Setting::Group(&MlpLayerTypes(Some(FirstDense(FIRST_DENSE, 1)))),
    Setting::Rows(BLOCKS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    ROPE,
    Setting::Keys { read: read_window, write: write_window },
    // The first key counts only without `mlp_layer_types`. transformers ignores layers of
    // multi-token prediction in this family.
    Setting::Unused(&["first_k_dense_replace", "num_nextn_predict_layers"]),
];

const ROUTER: SigmoidRouter = SigmoidRouter { factor: 2.5, ..SigmoidRouter::UNGROUPED };

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
