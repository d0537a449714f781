//! Activations on the host between forward and backward: whole layers (`cpu_offloading`), or
//! modules (`fine_grained_activation_offloading`).

use super::super::sections::TransformerConfig;
use super::Draft;

const NUM_LAYERS: &str = "model.cpu_offloading_num_layers";
const MODULES: &str = "model.offload_modules";

/// The modules that may be moved: `bridge_kernels::offload::Module`.
pub const NAMES: [&str; 7] = ["attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"];

/// Checks both settings, where layers with true in `moe_layers` have experts, and `recomputed` are
/// the modules of selective recompute.
pub(super) fn check(draft: &mut Draft<'_>, moe_layers: &[bool], recomputed: &[String]) {
    let model = draft.recipe.model.config.clone();
    layers(draft, &model);
    modules(draft, &model, moe_layers);
    if model.fine_grained_activation_offloading {
        not_recomputed(draft, &model, recomputed);
    }
}

/// The first layers as a whole.
fn layers(draft: &mut Draft<'_>, model: &TransformerConfig) {
    let count = model.cpu_offloading_num_layers;
    if !model.cpu_offloading {
        return;
    }
    let message = format!(
        "must be below model.num_layers = {}: backward of the last layer follows its forward at once",
        model.num_layers
    );
    draft.require(count == 0 || count < model.num_layers, NUM_LAYERS, message);
}

/// Modules by name.
fn modules(draft: &mut Draft<'_>, model: &TransformerConfig, moe_layers: &[bool]) {
    let named = &model.offload_modules;
    if !model.fine_grained_activation_offloading {
        return;
    }
    let there = existing(draft, model, moe_layers);
    if named.is_empty() {
        let message = format!("must name modules: one or more of {}", there.join(", "));
        draft.missing(MODULES, message);
    }
    for name in named {
        if !draft.knows_module(MODULES, name, &NAMES) {
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
        _ => has(&['*', 'P']),
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
