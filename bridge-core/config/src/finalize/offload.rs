//! Activations on the host between forward and backward: whole layers (`cpu_offloading`), or
//! modules (`fine_grained_activation_offloading`).

use super::super::choice::{RecomputeGranularity, ShardingStrategy};
use super::super::error::ErrorKind;
use super::super::sections::TransformerConfig;
use super::Draft;

const LAYERS: &str = "model.cpu_offloading";
const NUM_LAYERS: &str = "model.cpu_offloading_num_layers";
const FINE_GRAINED: &str = "model.fine_grained_activation_offloading";
const MODULES: &str = "model.offload_modules";

/// The modules that may be moved: `bridge_kernels::offload::Module`.
pub const NAMES: [&str; 7] = ["attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"];

/// Checks both settings, where the layers of which `moe_layers` says so have experts, and
/// `recomputed` are the modules of selective recompute.
pub(super) fn check(draft: &mut Draft<'_>, moe_layers: &[bool], recomputed: &[String]) {
    let model = draft.recipe.model.config.clone();
    layers(draft, &model);
    modules(draft, &model, moe_layers);
    if model.fine_grained_activation_offloading {
        draft.forbid(model.cpu_offloading, FINE_GRAINED, "excludes model.cpu_offloading, which moves whole layers");
        let is_full = model.recompute_granularity == Some(RecomputeGranularity::Full);
        let message = "excludes model.recompute_granularity = \"full\": a layer that runs again keeps its input alone";
        draft.forbid(is_full, FINE_GRAINED, message);
        not_recomputed(draft, &model, recomputed);
    }
    let is_sharded = draft.recipe.ddp.data_parallel_sharding_strategy == ShardingStrategy::OptimGradsParams;
    for (is_on, key) in [(model.cpu_offloading, LAYERS), (model.fine_grained_activation_offloading, FINE_GRAINED)] {
        let message = "excludes ddp.data_parallel_sharding_strategy = \"optim_grads_params\", which recomputes every layer from its input";
        draft.forbid(is_on && is_sharded, key, message);
    }
}

/// The first layers as a whole.
fn layers(draft: &mut Draft<'_>, model: &TransformerConfig) {
    let count = model.cpu_offloading_num_layers;
    if !model.cpu_offloading {
        draft.idle_if(count > 0, NUM_LAYERS, "has no effect without model.cpu_offloading = true");
        return;
    }
    if count == 0 {
        draft.missing(NUM_LAYERS, "must be given with model.cpu_offloading = true: without layers nothing is moved");
    }
    let message = format!(
        "must be below model.num_layers = {}: backward of the last layer follows its forward at once",
        model.num_layers
    );
    draft.require(count == 0 || count < model.num_layers, NUM_LAYERS, message);
    let pipeline = model.pipeline_model_parallel_size;
    let message = format!("excludes model.pipeline_model_parallel_size = {pipeline}: layers are counted on one stage");
    draft.require(pipeline <= 1, LAYERS, message);
    let message = "excludes model.recompute_granularity: what runs again is not kept, so there is nothing to move";
    draft.forbid(model.recompute_granularity.is_some(), LAYERS, message);
}

/// Modules by name.
fn modules(draft: &mut Draft<'_>, model: &TransformerConfig, moe_layers: &[bool]) {
    let named = &model.offload_modules;
    if !model.fine_grained_activation_offloading {
        draft.idle_unless(
            named.is_empty(),
            MODULES,
            "has no effect without model.fine_grained_activation_offloading = true",
        );
        return;
    }
    let there = existing(draft, model, moe_layers);
    if named.is_empty() {
        let message = format!("must name modules: one or more of {}", there.join(", "));
        draft.missing(MODULES, message);
    }
    for name in named {
        if !NAMES.contains(&name.as_str()) {
            let message = format!("unknown module {name:?}; known are {}", NAMES.join(", "));
            draft.error(ErrorKind::WrongType, MODULES, message);
            continue;
        }
        let message = format!("\"{name}\": no layer of this model has that; its layers have {}", there.join(", "));
        draft.require(there.contains(&name.as_str()), MODULES, message);
    }
    let has = |module: &str| named.iter().any(|name| name == module);
    let message = "\"attn_proj\" reads what \"core_attn\" keeps as well, so it frees nothing alone: name both";
    draft.require(!has("attn_proj") || has("core_attn"), MODULES, message);
}

/// The modules that layers have.
fn existing(draft: &Draft<'_>, model: &TransformerConfig, moe_layers: &[bool]) -> Vec<&'static str> {
    let pattern = model.hybrid_override_pattern.as_deref();
    let is_hybrid = draft.recipe.model.kind == "mamba";
    let has = |blocks: &[char]| pattern.map_or(!is_hybrid, |pattern| pattern.contains(blocks));
    let has_experts = match pattern {
        Some(pattern) => pattern.contains('E'),
        None => !is_hybrid && moe_layers.contains(&true),
    };
    let is_there = |module: &&str| match *module {
        "mlp_norm" => has(&['-', 'E']),
        "expert_fc1" | "moe_act" => has_experts,
        _ => has(&['*']),
    };
    NAMES.into_iter().filter(is_there).collect()
}

/// Selective recompute keeps nothing that could be moved.
fn not_recomputed(draft: &mut Draft<'_>, model: &TransformerConfig, recomputed: &[String]) {
    let covered = |by: &str, module: &str| match module {
        "mlp_norm" => matches!(by, "mlp" | "moe" | "layernorm"),
        "expert_fc1" => matches!(by, "moe" | "layernorm"),
        "moe_act" => matches!(by, "moe" | "layernorm" | "moe_act"),
        // Segments run again as a whole, with the norm in front.
        _ => matches!(by, "core_attn" | "layernorm") || by == "mla_up_proj" && module == "core_attn",
    };
    for module in &model.offload_modules {
        if let Some(by) = recomputed.iter().find(|by| covered(by, module)) {
            let message = format!(
                "\"{module}\" is among what model.recompute_modules = [\"{by}\"] runs again, so it is not kept"
            );
            draft.conflict(MODULES, message);
        }
    }
}
