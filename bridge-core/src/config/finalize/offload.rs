//! Activations on the host between forward and backward: whole layers (`cpu_offloading`), or modules (`fine_grained_activation_offloading`).

use bridge_kernels::offload::Module;

use super::super::choice::{RecomputeGranularity, ShardingStrategy};
use super::super::error::ErrorKind;
use super::super::sections::TransformerConfig;
use super::Draft;

const LAYERS: &str = "model.cpu_offloading";
const NUM_LAYERS: &str = "model.cpu_offloading_num_layers";
const FINE_GRAINED: &str = "model.fine_grained_activation_offloading";
const MODULES: &str = "model.offload_modules";

/// Checks both settings, where the layers of which `moe_layers` says so have experts, and `recomputed` are the modules of selective recompute.
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
        draft.forbid(count > 0, NUM_LAYERS, "has no effect without model.cpu_offloading = true");
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
        draft.require(
            named.is_empty(),
            MODULES,
            "has no effect without model.fine_grained_activation_offloading = true",
        );
        return;
    }
    let there = existing(draft, model, moe_layers);
    let names = |modules: &[Module]| modules.iter().map(|module| module.name()).collect::<Vec<_>>().join(", ");
    if named.is_empty() {
        let message = format!("must name modules: one or more of {}", names(&there));
        draft.missing(MODULES, message);
    }
    for name in named {
        match Module::named(name) {
            None => {
                let message = format!("unknown module {name:?}; known are {}", names(&Module::ALL));
                draft.error(ErrorKind::WrongType, MODULES, message);
            }
            Some(module) => {
                let message = format!("\"{name}\": no layer of this model has that; its layers have {}", names(&there));
                draft.require(there.contains(&module), MODULES, message);
            }
        }
    }
    let has = |module: Module| named.iter().any(|name| name == module.name());
    let message = "\"attn_proj\" reads what \"core_attn\" keeps as well, so it frees nothing alone: name both";
    draft.require(!has(Module::AttnProj) || has(Module::CoreAttn), MODULES, message);
}

/// The modules that layers have.
fn existing(draft: &Draft<'_>, model: &TransformerConfig, moe_layers: &[bool]) -> Vec<Module> {
    let pattern = model.hybrid_override_pattern.as_deref();
    let is_hybrid = draft.recipe.model.kind == "mamba";
    let has = |blocks: &[char]| pattern.map_or(!is_hybrid, |pattern| pattern.contains(blocks));
    let has_experts = match pattern {
        Some(pattern) => pattern.contains('E'),
        None => !is_hybrid && moe_layers.contains(&true),
    };
    let is_there = |module: &Module| match module {
        Module::AttnNorm | Module::QkvLinear | Module::CoreAttn | Module::AttnProj => has(&['*']),
        Module::MlpNorm => has(&['-', 'E']),
        Module::ExpertFc1 | Module::MoeAct => has_experts,
    };
    Module::ALL.into_iter().filter(is_there).collect()
}

/// What selective recompute runs again keeps nothing that could be moved.
fn not_recomputed(draft: &mut Draft<'_>, model: &TransformerConfig, recomputed: &[String]) {
    let covered = |by: &str, module: Module| match module {
        // Segments run again as a whole, with the norm in front.
        Module::AttnNorm | Module::QkvLinear | Module::CoreAttn | Module::AttnProj => {
            matches!(by, "core_attn" | "layernorm") || by == "mla_up_proj" && module == Module::CoreAttn
        }
        Module::MlpNorm => matches!(by, "mlp" | "moe" | "layernorm"),
        Module::ExpertFc1 => matches!(by, "moe" | "layernorm"),
        Module::MoeAct => matches!(by, "moe" | "layernorm" | "moe_act"),
    };
    for module in model.offload_modules.iter().filter_map(|name| Module::named(name)) {
        if let Some(by) = recomputed.iter().find(|by| covered(by, module)) {
            let message = format!(
                "\"{}\" is among what model.recompute_modules = [\"{by}\"] runs again, so it is not kept",
                module.name()
            );
            draft.conflict(MODULES, message);
        }
    }
}
