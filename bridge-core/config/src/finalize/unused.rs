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
    rope(draft);
    rope_scaling(draft);
    extended_rope(draft);
    layer_patterns(draft, windowed, without_rope);
    biases(draft);
    details(draft);
    predictions(draft);
    vocabulary(draft);
    initial_values(draft);
    width_transfer(draft);
}

fn rope(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    let is_rope = uses_rope(&model);
    let needs_rope = [
        ("model.rotary_interleaved", model.rotary_interleaved),
        ("model.apply_rope_fusion", model.apply_rope_fusion),
        ("model.no_rope_freq", model.no_rope_freq.is_some()),
        ("model.rotary_base_local", model.rotary_base_local.is_some()),
    ];
    let shape = ["model.rotary_base", "model.rotary_percent"].map(|key| (key, draft.recipe_differs(key)));
    for (key, is_set) in needs_rope.into_iter().chain(shape) {
        draft.idle_unless(!is_set || is_rope, key, "has no effect without model.position_embedding_type = \"rope\"");
    }
}

/// The settings of yarn and longrope, and those that either excludes because it changes the
/// frequencies itself.
fn extended_rope(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    let positions = model.position_embedding_type;
    let yarn = [
        ("model.yarn_rotary_scaling_factor", model.yarn_rotary_scaling_factor.is_some()),
        ("model.yarn_original_max_position_embeddings", model.yarn_original_max_position_embeddings.is_some()),
        ("model.yarn_beta_fast", model.yarn_beta_fast.is_some()),
        ("model.yarn_beta_slow", model.yarn_beta_slow.is_some()),
        ("model.yarn_mscale", model.yarn_mscale.is_some()),
        ("model.yarn_mscale_all_dim", model.yarn_mscale_all_dim.is_some()),
        ("model.yarn_correction_range_round_to_int", model.yarn_correction_range_round_to_int.is_some()),
        ("model.yarn_attention_factor", model.yarn_attention_factor.is_some()),
    ];
    let longrope = [
        ("model.longrope_short_factor", model.longrope_short_factor.is_some()),
        ("model.longrope_long_factor", model.longrope_long_factor.is_some()),
        ("model.longrope_original_max_position_embeddings", model.longrope_original_max_position_embeddings.is_some()),
        ("model.longrope_attention_factor", model.longrope_attention_factor.is_some()),
    ];
    let plain = [
        ("model.rope_scaling", model.rope_scaling),
        ("model.seq_len_interpolation_factor", model.seq_len_interpolation_factor.is_some()),
    ];
    let of_type = [
        (PositionEmbeddingType::Yarn, &yarn[..]),
        (PositionEmbeddingType::LongRope, &longrope[..]),
        (PositionEmbeddingType::Rope, &plain[..]),
    ];
    for (needed, settings) in of_type {
        for (key, is_set) in settings {
            let message = format!("needs model.position_embedding_type = \"{needed}\"");
            draft.require(!is_set || positions == needed, key, message);
        }
    }
    // What a type cannot do without.
    let needed = [(PositionEmbeddingType::Yarn, &yarn[..2]), (PositionEmbeddingType::LongRope, &longrope[..3])];
    for (of, settings) in needed {
        for (key, is_set) in settings {
            if positions == of && !is_set && draft.supports(&key["model.".len()..]) {
                draft.missing(key, format!("must be given with model.position_embedding_type = \"{of}\""));
            }
        }
    }
    let mscale = model.yarn_mscale.is_some();
    let message = "has no effect without model.yarn_mscale_all_dim";
    draft.idle_unless(!mscale || model.yarn_mscale_all_dim.is_some(), "model.yarn_mscale", message);
    let is_overruled = mscale && model.yarn_attention_factor.is_some();
    let message = "excludes model.yarn_mscale: the factor follows from it";
    draft.require(!is_overruled, "model.yarn_attention_factor", message);
}

fn rope_scaling(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    draft.require(
        !model.rope_scaling || model.seq_len_interpolation_factor.is_none(),
        "model.seq_len_interpolation_factor",
        "excludes model.rope_scaling: both scale the rotary frequencies",
    );
    draft.require(
        !model.rope_scaling || model.rope_scaling_high_freq_factor > model.rope_scaling_low_freq_factor,
        "model.rope_scaling_high_freq_factor",
        "must be above model.rope_scaling_low_freq_factor",
    );
    for key in [
        "model.rope_scaling_factor",
        "model.rope_scaling_low_freq_factor",
        "model.rope_scaling_high_freq_factor",
        "model.rope_scaling_original_max_position_embeddings",
    ] {
        let is_changed = draft.recipe_differs(key);
        draft.idle_unless(model.rope_scaling || !is_changed, key, "has no effect without model.rope_scaling = true");
    }
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

fn biases(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    let some = [
        ("model.add_qkv_bias", model.add_qkv_bias),
        ("model.add_proj_bias", model.add_proj_bias),
        ("model.add_mlp_bias", model.add_mlp_bias),
    ];
    let message = "has no effect with model.add_bias_linear = true, which gives every linear layer a bias";
    for (key, is_set) in some {
        draft.idle_if(is_set && model.add_bias_linear, key, message);
    }
}

/// The weight of losses of layers that are not there.
fn predictions(draft: &mut Draft<'_>) {
    let model = &draft.recipe.model.config;
    let (layers, weight) = (model.mtp_num_layers.unwrap_or(0), model.mtp_loss_scaling_factor);
    let key = "model.mtp_loss_scaling_factor";
    let is_changed = draft.recipe_differs(key) && weight.is_some();
    draft.idle_unless(layers > 0 || !is_changed, key, "has no effect without model.mtp_num_layers");
    draft.require(layers == 0 || weight.is_some(), key, "must be a number with model.mtp_num_layers");
}

/// Settings of norms and rotations that the model lacks.
fn details(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    let is_changed = draft.recipe_differs("model.qk_layernorm_scope");
    let message = "has no effect without model.qk_layernorm = true";
    draft.idle_unless(model.qk_layernorm || !is_changed, "model.qk_layernorm_scope", message);
    let is_local = model.rotary_base_local.is_some();
    let message = "has no effect without model.window_size: it is the base in layers with a window";
    draft.idle_unless(!is_local || model.window_size.is_some(), "model.rotary_base_local", message);
}

/// Requirements of muP's settings, and settings that disable them.
fn width_transfer(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    let names = ["mup_base_hidden_size", "mup_base_head_dim", "mup_attn_scale_power"];
    for key in names.map(|name| format!("model.{name}")) {
        let is_set = draft.recipe_differs(&key);
        draft.idle_unless(model.use_mup || !is_set, &key, "has no effect without model.use_mup = true");
        let of_scores = key != "model.mup_base_hidden_size";
        let is_void = of_scores && is_set && model.softmax_scale.is_some();
        draft.idle_if(is_void, &key, "has no effect with model.softmax_scale, which is the scale of attention scores");
    }
}

/// A given vocabulary size is padded only on request; one from the tokenizer, always.
fn vocabulary(draft: &mut Draft<'_>) {
    let is_given = draft.recipe.model.vocab_size.is_some();
    let should_pad = draft.recipe.model.should_pad_vocab;
    let key = "model.make_vocab_size_divisible_by";
    let is_changed = draft.recipe_differs(key);
    let message = "has no effect with model.vocab_size, unless model.should_pad_vocab = true";
    draft.idle_unless(!is_given || should_pad || !is_changed, key, message);
    let message = "has no effect without model.vocab_size: a vocabulary that comes from the tokenizer is always padded";
    draft.idle_unless(is_given || !should_pad, "model.should_pad_vocab", message);
}

fn initial_values(draft: &mut Draft<'_>) {
    let model = &draft.recipe.model;
    let draws = model.perform_initialization;
    // If it was not set, it has been filled in from the other weights by now.
    let is_embedding_apart = model.embedding_init_method_std.is_some_and(|std| std != model.init_method_std);
    let is_changed = draft.recipe_differs("model.init_method_std");
    for (key, is_set) in
        [("model.init_method_std", is_changed), ("model.embedding_init_method_std", is_embedding_apart)]
    {
        draft.idle_unless(draws || !is_set, key, "has no effect with model.perform_initialization = false");
    }
}
