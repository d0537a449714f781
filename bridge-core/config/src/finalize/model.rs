//! The `[model]` section's own rules and derived sizes.

use super::super::choice::{Activation, DType, PositionEmbeddingType, RecomputeGranularity};
use super::super::error::ErrorKind;
use super::super::field::OneOrMany;
use super::super::run_config::{FinalModel, FinalTransformer};
use super::super::sections::TransformerConfig;
use super::Draft;

/// Modules of selective recompute.
const RECOMPUTE_MODULES: [&str; 7] =
    ["core_attn", "layernorm", "mlp", "mla_up_proj", "moe", "moe_act", "shared_experts"];

/// No tensor of a real model has more elements: 4 TiB in 32 bits.
const MAX_ELEMENTS: f64 = (1_u64 << 40) as f64;

/// Checks the model and fills in settings that are not set, in the draft's recipe too.
pub(super) fn resolve(draft: &mut Draft<'_>) -> FinalTransformer {
    let kind = draft.recipe.model.kind.clone();
    draft.check_kind::<TransformerConfig>("model.kind", &kind);
    sizes_are_given(draft);
    fill_sizes(draft);
    heads_fit(draft);
    rotary_size_is_even(draft);
    activation_fits(draft);
    let windowed_layers = windowed_layers(draft);
    let no_rope_layers = no_rope_layers(draft);
    rope_scaling(draft);
    layer_patterns(draft, &windowed_layers, &no_rope_layers);
    predictions(draft);
    let moe_layers = super::moe::resolve(draft);
    let recompute_modules = recompute(draft, &moe_layers);
    super::offload::check(draft, &moe_layers, &recompute_modules);
    tensors_are_bounded(draft);
    fits_float16(draft);
    float32_stream(draft);
    draft.recipe.model.extra = draft.extra_with_defaults(&draft.recipe.model);
    let config = draft.recipe.model.config.clone();
    let kv_channels = config.kv_channels.unwrap_or_default();
    FinalTransformer {
        ffn_hidden_size: config.ffn_hidden_size.unwrap_or_default(),
        kv_channels,
        num_query_groups: config.num_query_groups.unwrap_or_default(),
        softmax_scale: config.softmax_scale.unwrap_or_else(|| config.usual_softmax_scale(kv_channels)),
        embedding_init_method_std: config.embedding_init_method_std.unwrap_or(config.init_method_std),
        windowed_layers,
        no_rope_layers,
        moe_layers,
        recompute_modules,
        expert_tensor_parallel_size: config.expert_tensor_parallel_size.unwrap_or(config.tensor_model_parallel_size),
        config,
    }
}

/// Layers of each of the model's stacks, as its kind says. Reports settings that the kind cannot
/// build, if the section's own rules hold.
pub(super) fn stacks(draft: &mut Draft<'_>, model: &FinalModel) -> Vec<usize> {
    let one = vec![model.num_layers];
    let is_wrong = draft.errors.iter().any(|error| error.key.starts_with("model."));
    let Some(kind) = draft.model_kind().and_then(|kind| kind.model.as_ref()).filter(|_| !is_wrong) else { return one };
    kind.about(model).unwrap_or_else(|(key, message)| {
        draft.conflict(&key, message);
        one
    })
}

fn sizes_are_given(draft: &mut Draft<'_>) {
    let model = &draft.recipe.model;
    let sizes = [
        ("model.num_layers", model.num_layers),
        ("model.hidden_size", model.hidden_size),
        ("model.num_attention_heads", model.num_attention_heads),
    ];
    for (key, _) in sizes.into_iter().filter(|(_, size)| *size == 0) {
        if !draft.supports(&key["model.".len()..]) {
            continue;
        }
        if draft.is_explicit(key) {
            draft.error(ErrorKind::OutOfRange, key, "must be at least 1");
        } else {
            draft.missing(key, "must be given");
        }
    }
}

/// Fills in only settings that the kind of model has, because filled-in values become part of the
/// recipe in checkpoints.
fn fill_sizes(draft: &mut Draft<'_>) {
    let names = ["ffn_hidden_size", "kv_channels", "num_query_groups", "embedding_init_method_std"];
    let [has_ffn, has_kv, has_groups, has_std] = names.map(|name| draft.supports(name));
    let model = &mut draft.recipe.model.config;
    let (hidden, heads) = (model.hidden_size, model.num_attention_heads);
    let is_divisible = heads == 0 || hidden.is_multiple_of(heads);
    let is_latent = model.multi_latent_attention;
    let is_derived = model.kv_channels.is_none() && !is_latent;
    let head =
        if is_latent { model.qk_head_dim.saturating_add(model.qk_pos_emb_head_dim) } else { hidden / heads.max(1) };
    let std = model.init_method_std;
    model.ffn_hidden_size = model.ffn_hidden_size.or(has_ffn.then(|| hidden.saturating_mul(4)));
    model.kv_channels = model.kv_channels.or(has_kv.then_some(head));
    model.num_query_groups = model.num_query_groups.or(has_groups.then_some(heads));
    model.embedding_init_method_std = model.embedding_init_method_std.or(has_std.then_some(std));
    draft.require(
        !is_derived || is_divisible,
        "model.num_attention_heads",
        format!("must divide model.hidden_size = {hidden} unless model.kv_channels is given"),
    );
}

fn heads_fit(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    let heads = model.num_attention_heads;
    let tensor = model.tensor_model_parallel_size.max(1);
    let groups = model.num_query_groups.unwrap_or(heads);
    // A hybrid without attention has no heads.
    let has_attention = model.hybrid_override_pattern.as_ref().is_none_or(|blocks| blocks.contains(['*', 'P', 'Z']));
    let tensor = if has_attention { tensor } else { 1 };
    draft.require(
        groups == 0 || heads.is_multiple_of(groups),
        "model.num_query_groups",
        format!("must divide model.num_attention_heads = {heads}"),
    );
    draft.require(
        heads.is_multiple_of(tensor),
        "model.num_attention_heads",
        format!("must be divisible by model.tensor_model_parallel_size = {tensor}"),
    );
    draft.require(
        groups == 0 || groups.is_multiple_of(tensor) || tensor.is_multiple_of(groups),
        "model.num_query_groups",
        format!("and model.tensor_model_parallel_size = {tensor}: one must divide the other"),
    );
    draft.require(
        heads == 0 || model.kv_channels != Some(0),
        "model.num_attention_heads",
        "more heads than model.hidden_size has channels",
    );
}

/// True if layers rotate queries and keys.
fn uses_rope(model: &TransformerConfig) -> bool {
    matches!(
        model.position_embedding_type,
        PositionEmbeddingType::Rope
            | PositionEmbeddingType::Yarn
            | PositionEmbeddingType::LongRope
            | PositionEmbeddingType::Mrope
    )
}

fn rotary_size_is_even(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    if !uses_rope(&model) {
        return;
    }
    let head =
        if model.multi_latent_attention { model.qk_pos_emb_head_dim } else { model.kv_channels.unwrap_or_default() };
    let rotary_dim = (head as f64 * model.rotary_percent) as usize;
    let key = if model.rotary_percent < 1.0 {
        "model.rotary_percent"
    } else if draft.raw.model.kv_channels.is_some() {
        "model.kv_channels"
    } else {
        "model.num_attention_heads"
    };
    draft.require(
        head == 0 || (rotary_dim >= 2 && rotary_dim.is_multiple_of(2)),
        key,
        format!(
            "model.rotary_percent of model.kv_channels = {head} are {rotary_dim} dimensions to rotate; that must be an \
             even number above 0"
        ),
    );
}

fn activation_fits(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    let is_fusable = matches!(
        model.activation_func,
        Activation::Gelu | Activation::GeluTanh | Activation::Silu | Activation::QuickGelu
    );
    draft.require(
        !model.bias_activation_fusion || is_fusable,
        "model.bias_activation_fusion",
        "works only with model.activation_func gelu, silu and quick_gelu",
    );
}

/// Expands "every N-th layer" or a list of 0 and 1 to one flag per layer; `nth` is the flag of the
/// N-th.
fn per_layer(draft: &mut Draft<'_>, key: &str, freq: &OneOrMany<usize>, nth: bool) -> Vec<bool> {
    let num_layers = draft.recipe.model.num_layers;
    match freq {
        OneOrMany::One(0) => {
            draft.error(ErrorKind::OutOfRange, key, "must be at least 1");
            Vec::new()
        }
        OneOrMany::One(n) => (1..=num_layers.min(65_536)).map(|layer| layer.is_multiple_of(*n) == nth).collect(),
        OneOrMany::Many(flags) => {
            draft.require(
                flags.len() == num_layers,
                key,
                format!("must have one entry per layer: model.num_layers = {num_layers}"),
            );
            draft.require(flags.iter().all(|flag| *flag <= 1), key, "must be a list of 0 and 1");
            flags.iter().map(|flag| *flag == 1).collect()
        }
    }
}

fn windowed_layers(draft: &mut Draft<'_>) -> Vec<bool> {
    let model = draft.recipe.model.config.clone();
    let num_layers = model.num_layers.min(65_536);
    let key = "model.window_attn_skip_freq";
    if let Some([_, right]) = model.window_size {
        let message = "attention is causal: the right side is 0 or -1";
        draft.require((-1..=0).contains(&right), "model.window_size", message);
    }
    match (&model.window_size, &model.window_attn_skip_freq) {
        (Some(_), None) => vec![true; num_layers],
        (Some(_), Some(freq)) => per_layer(draft, key, freq, false),
        (None, _) => vec![false; num_layers],
    }
}

fn no_rope_layers(draft: &mut Draft<'_>) -> Vec<bool> {
    let key = "model.no_rope_freq";
    let model = draft.recipe.model.config.clone();
    match &model.no_rope_freq {
        None => vec![false; model.num_layers.min(65_536)],
        Some(freq) => {
            if let OneOrMany::One(n @ 1..) = freq {
                draft.require(
                    model.num_layers.is_multiple_of(*n),
                    key,
                    format!("must divide model.num_layers = {}", model.num_layers),
                );
            }
            per_layer(draft, key, freq, true)
        }
    }
}

fn rope_scaling(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    draft.require(
        !model.rope_scaling || model.rope_scaling_high_freq_factor >= model.rope_scaling_low_freq_factor,
        "model.rope_scaling_high_freq_factor",
        "must be at least model.rope_scaling_low_freq_factor",
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

fn recompute(draft: &mut Draft<'_>, moe_layers: &[bool]) -> Vec<String> {
    let model = draft.recipe.model.config.clone();
    let is_full = model.recompute_granularity == Some(RecomputeGranularity::Full);
    let is_selective = model.recompute_granularity == Some(RecomputeGranularity::Selective);
    if let Some(layers) = model.recompute_num_layers.filter(|_| is_full) {
        draft.require(
            layers <= model.num_layers,
            "model.recompute_num_layers",
            format!("is above model.num_layers = {}", model.num_layers),
        );
    }
    if !is_selective {
        return Vec::new();
    }
    let modules = model.recompute_modules;
    let modules = modules.unwrap_or_else(|| vec!["core_attn".into()]);
    for module in &modules {
        draft.knows_module("model.recompute_modules", module, &RECOMPUTE_MODULES);
    }
    recomputed_blocks_exist(draft, &modules, moe_layers);
    modules
}

/// Upstream's `mlp` is the dense block of a layer, `moe` that with experts.
fn recomputed_blocks_exist(draft: &mut Draft<'_>, modules: &[String], moe_layers: &[bool]) {
    let is_named = |name: &str| modules.iter().any(|module| module == name);
    let key = "model.recompute_modules";
    let only_experts = !moe_layers.is_empty() && moe_layers.iter().all(|has_experts| *has_experts);
    let message =
        "\"mlp\" has no effect, because every layer has experts (model.moe_layer_freq): \"moe\" recomputes those";
    draft.idle_if(is_named("mlp") && only_experts, key, message);
    let no_experts = !moe_layers.contains(&true);
    for name in ["moe", "moe_act"].into_iter().filter(|name| is_named(name)) {
        draft.idle_if(no_experts, key, format!("\"{name}\" has no effect without model.num_moe_experts"));
    }
    let model = &draft.recipe.model;
    let has_shared = !no_experts && model.moe_shared_expert_intermediate_size.is_some();
    let is_latent = model.multi_latent_attention;
    let message = "\"shared_experts\" has no effect without model.moe_shared_expert_intermediate_size";
    draft.idle_if(is_named("shared_experts") && !has_shared, key, message);
    let message = "\"mla_up_proj\" has no effect without model.multi_latent_attention";
    draft.idle_if(is_named("mla_up_proj") && !is_latent, key, message);
}

/// A residual stream in float32, which is what stages send.
fn float32_stream(draft: &mut Draft<'_>) {
    let model = &mut draft.recipe.model.config;
    if model.fp32_residual_connection {
        model.pipeline_dtype = model.pipeline_dtype.or(Some(DType::Float32));
    }
}

/// The range of the parameters' dtype, for numbers that are used in it.
fn fits_float16(draft: &mut Draft<'_>) {
    /// The smallest number above zero, and the largest.
    const RANGE: (f64, f64) = (5.96e-8, 65_504.0);
    let model = &draft.recipe.model;
    if model.params_dtype != DType::Float16 {
        return;
    }
    let values = [
        ("model.init_method_std", Some(model.init_method_std)),
        ("model.embedding_init_method_std", model.embedding_init_method_std),
        ("model.softmax_scale", model.softmax_scale),
    ];
    for (key, value) in values {
        let fits = value.is_none_or(|value| (RANGE.0..=RANGE.1).contains(&value));
        let message =
            format!("does not fit a 16-bit float (model.fp16), whose numbers go from {:e} to {}", RANGE.0, RANGE.1);
        draft.require(fits, key, message);
    }
}

/// Individually valid sizes can multiply to tensors that are too large for any machine or index
/// type.
fn tensors_are_bounded(draft: &mut Draft<'_>) {
    let model = draft.recipe.model.config.clone();
    let hidden = model.hidden_size as f64;
    let heads = model.num_attention_heads as f64 * model.kv_channels.unwrap_or(1) as f64;
    let micro_batch = draft.recipe.train.micro_batch_size.unwrap_or(1) as f64;
    let products = [
        (
            "model.ffn_hidden_size",
            "model.hidden_size x model.ffn_hidden_size",
            hidden * model.ffn_hidden_size.unwrap_or(1) as f64,
        ),
        ("model.vocab_size", "model.hidden_size x model.vocab_size", hidden * model.vocab_size.unwrap_or(1) as f64),
        ("model.kv_channels", "model.hidden_size x model.num_attention_heads x model.kv_channels", hidden * heads),
        ("model.hidden_size", "model.hidden_size x model.hidden_size", hidden * hidden),
        (
            "model.seq_length",
            "train.micro_batch_size x model.seq_length x model.hidden_size",
            micro_batch * model.seq_length as f64 * hidden,
        ),
    ];
    let experts = model.num_moe_experts.unwrap_or(0) as f64 * hidden * model.moe_ffn_hidden_size.unwrap_or(1) as f64;
    let experts = ("model.num_moe_experts", "num_moe_experts x hidden_size x moe_ffn_hidden_size", experts);
    for (key, what, elements) in products.into_iter().chain([experts]) {
        draft.require(
            elements <= MAX_ELEMENTS,
            key,
            format!("{what} is {elements:.3e} elements, above {MAX_ELEMENTS:.3e}"),
        );
    }
}
