//! Settings of `[model]` that have no effect because of others: each is a warning that names the
//! condition.

use super::super::choice::PositionEmbeddingType;
use super::super::sections::TransformerConfig;
use super::Draft;

/// True if layers rotate queries and keys.
pub(super) fn uses_rope(model: &TransformerConfig) -> bool {
    matches!(
        model.position_embedding_type,
        PositionEmbeddingType::Rope
            | PositionEmbeddingType::Yarn
            | PositionEmbeddingType::LongRope
            | PositionEmbeddingType::Mrope
    )
}

/// Checks the model settings that depend on each other; `windowed` and `without_rope` have one flag
/// per layer.
pub(super) fn check(draft: &mut Draft<'_>, windowed: &[bool], without_rope: &[bool]) {
    rope_scaling(draft);
    layer_patterns(draft, windowed, without_rope);
    predictions(draft);
}

fn rope_scaling(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    draft.require(
        !model.rope_scaling || model.rope_scaling_high_freq_factor > model.rope_scaling_low_freq_factor,
        "model.rope_scaling_high_freq_factor",
        "must be above model.rope_scaling_low_freq_factor",
    );
    let scales = |factor: f64| factor != 1.0;
    draft.require(
        !model.rope_scaling || scales(model.rope_scaling_factor),
        "model.rope_scaling_factor",
        "scales nothing: model.rope_scaling = true needs a factor above 1",
    );
    draft.idle_unless(
        model.seq_len_interpolation_factor.is_none_or(scales),
        "model.seq_len_interpolation_factor",
        "has no effect: a factor of 1 does not change positions",
    );
}

fn layer_patterns(draft: &mut Draft<'_>, windowed: &[bool], without_rope: &[bool]) {
    let model = draft.recipe.model.config.clone();
    // Lists of a wrong length are reported where they are expanded.
    let is_whole = |layers: &[bool]| !layers.is_empty() && layers.len() == model.num_layers;
    let sees_all = model.window_size.is_some_and(|[left, _]| left == -1);
    draft.idle_if(
        sees_all,
        "model.window_size",
        "has no effect: -1 to the left means all previous tokens, as null does",
    );
    if model.window_size.is_some() && is_whole(windowed) {
        let message = "leaves no layer with the window of model.window_size";
        draft.require(windowed.contains(&true), "model.window_attn_skip_freq", message);
    }
    if model.no_rope_freq.is_some() && is_whole(without_rope) {
        let key = "model.no_rope_freq";
        draft.idle_unless(without_rope.contains(&true), key, "has no effect: it names no layer");
        let message = "leaves no layer with rotary positions; use model.position_embedding_type = \"none\" instead";
        draft.require(without_rope.contains(&false), key, message);
    }
}

/// Checks that the losses of prediction layers have a weight.
fn predictions(draft: &mut Draft<'_>) {
    let model = &draft.recipe.model;
    let is_weighted = model.mtp_num_layers.unwrap_or(0) == 0 || model.mtp_loss_scaling_factor.is_some();
    draft.require(is_weighted, "model.mtp_loss_scaling_factor", "must be a number with model.mtp_num_layers");
}
