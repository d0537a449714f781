//! Rules of the mixture-of-experts settings.

use super::super::catalogue::{ROWS, Row};
use super::super::choice::{LoadBalancing, RouterScoreFunction};
use super::super::error::ErrorKind;
use super::super::field::OneOrMany;
use super::super::sections::TransformerConfig;
use super::Draft;

/// Prefixes of settings that have a meaning only with experts.
const OF_EXPERTS: [&str; 3] = ["model.moe_", "model.expert_", "model.freeze_moe_"];

/// Checks the settings of experts; returns for each layer whether it has them.
pub(super) fn resolve(draft: &mut Draft<'_>) -> Vec<bool> {
    let model = draft.recipe.model.config.clone();
    let Some(experts) = model.num_moe_experts else {
        need_experts(draft);
        return vec![false; model.num_layers.min(65_536)];
    };
    let ffn = model.ffn_hidden_size;
    draft.recipe.model.config.moe_ffn_hidden_size = model.moe_ffn_hidden_size.or(ffn);
    choice_fits(draft, &model, experts);
    groups_fit(draft, &model, experts);
    biases_fit(draft, &model);
    losses_fit(draft, &model);
    ranks_fit(draft, &model, experts);
    layers(draft, &model)
}

/// Reports every setting about experts in a model without them.
fn need_experts(draft: &mut Draft<'_>) {
    let is_of_experts = |row: &&Row| OF_EXPERTS.iter().any(|prefix| row.key.starts_with(prefix));
    for Row { key, .. } in ROWS.iter().filter(is_of_experts) {
        let is_set = draft.recipe_differs(key) && !draft.is_refused(key);
        draft.require(!is_set, key, "needs model.num_moe_experts");
    }
}

fn choice_fits(draft: &mut Draft<'_>, model: &TransformerConfig, experts: usize) {
    let topk = model.moe_router_topk;
    let choices = experts.saturating_add(model.moe_num_identity_experts);
    draft.require(topk <= choices, "model.moe_router_topk", format!("is above model.num_moe_experts = {experts}"));
    // Merged models have one expert a token. Only balancing losses train such a router.
    let remedy = match model.moe_router_score_function {
        RouterScoreFunction::Softmax if is_sinkhorn(model) || model.moe_router_pre_softmax => return,
        RouterScoreFunction::Softmax => "model.moe_router_pre_softmax = true",
        RouterScoreFunction::Sigmoid | RouterScoreFunction::SqrtSoftplus if model.moe_router_raw_scores => return,
        RouterScoreFunction::Sigmoid | RouterScoreFunction::SqrtSoftplus => "model.moe_router_raw_scores = true",
        RouterScoreFunction::SparseMixer => return,
    };
    if topk == 1 {
        draft.warnings.push(format!(
            "model.moe_router_topk = 1: the share of a single expert is always 1, so the loss does not train the router; {remedy} weights \
             the expert by its score"
        ));
    }
}

fn groups_fit(draft: &mut Draft<'_>, model: &TransformerConfig, experts: usize) {
    let key = "model.moe_router_num_groups";
    let (Some(groups), Some(chosen)) = (model.moe_router_num_groups, model.moe_router_group_topk) else {
        let neither = model.moe_router_num_groups.is_none() && model.moe_router_group_topk.is_none();
        draft.require(neither, key, "and model.moe_router_group_topk are given together or not at all");
        return;
    };
    draft.require(experts.is_multiple_of(groups), key, format!("must divide model.num_moe_experts = {experts}"));
    let key = "model.moe_router_group_topk";
    draft.require(chosen <= groups, key, format!("is above model.moe_router_num_groups = {groups}"));
    let choices = chosen.saturating_mul(experts / groups);
    let topk = model.moe_router_topk;
    draft.require(
        topk <= choices,
        "model.moe_router_topk",
        format!("is above the {choices} experts of the groups that a token uses"),
    );
    draft.require(
        model.moe_router_group_score_topk.is_some() || topk.is_multiple_of(chosen),
        key,
        format!("must divide model.moe_router_topk = {topk}, or model.moe_router_group_score_topk says how groups are compared"),
    );
}

/// True if experts are chosen by scores that Sinkhorn's algorithm has balanced.
fn is_sinkhorn(model: &TransformerConfig) -> bool {
    model.moe_router_load_balancing_type == OneOrMany::One(LoadBalancing::Sinkhorn)
}

/// If the biases of experts move, no other setting may say that they stay.
fn biases_fit(draft: &mut Draft<'_>, model: &TransformerConfig) {
    let (key, rate) = ("model.moe_router_bias_update_rate", model.moe_router_bias_update_rate);
    if !model.moe_router_enable_expert_bias {
        let is_set = draft.recipe_differs(key) && rate != 0.0;
        draft.require(!is_set, key, "needs model.moe_router_enable_expert_bias = true");
        return;
    }
    draft.require(rate == 0.0 || !model.freeze_moe_router, key, "must be 0 with model.freeze_moe_router");
    draft.require(rate == 0.0 || draft.recipe.peft.is_none(), key, "must be 0 with [peft], which keeps the base model");
}

fn losses_fit(draft: &mut Draft<'_>, model: &TransformerConfig) {
    use LoadBalancing::{None as NoBalancing, Sinkhorn};
    let (kinds_key, key) = ("model.moe_router_load_balancing_type", "model.moe_aux_loss_coeff");
    let coefficients = model.moe_aux_loss_coeff.as_slice();
    let are_sane = coefficients.iter().all(|coefficient| coefficient.is_finite() && *coefficient >= 0.0);
    draft.require(are_sane, key, "must be a number of at least 0");
    match (&model.moe_router_load_balancing_type, &model.moe_aux_loss_coeff) {
        (OneOrMany::One(kind @ (NoBalancing | Sinkhorn)), OneOrMany::One(coefficient)) => {
            draft.idle_unless(*coefficient == 0.0, key, format!("has no effect with {kinds_key} = \"{kind}\""));
        }
        (OneOrMany::One(_), OneOrMany::One(_)) => {}
        (OneOrMany::Many(kinds), OneOrMany::Many(coefficients)) => {
            let is_loss = |kind: &LoadBalancing| !matches!(kind, NoBalancing | Sinkhorn);
            draft.require(!kinds.is_empty() && kinds.iter().all(is_loss), kinds_key, "must be a list of losses");
            let mut seen = kinds.clone();
            seen.sort_by_key(|kind| kind.as_str());
            seen.dedup();
            draft.require(seen.len() == kinds.len(), kinds_key, "names a loss twice");
            let fits = kinds.len() == coefficients.len();
            draft.require(fits, key, format!("must have one number for each of {kinds_key}, {}", kinds.len()));
        }
        (OneOrMany::Many(_), OneOrMany::One(_)) | (OneOrMany::One(_), OneOrMany::Many(_)) => {
            draft.require(false, key, format!("must be a list where {kinds_key} is one, and a number where it is not"));
        }
    }
    if let Some(coefficient) = model.moe_z_loss_coeff {
        let is_sane = coefficient.is_finite() && coefficient >= 0.0;
        draft.require(is_sane, "model.moe_z_loss_coeff", "must be a number of at least 0");
    }
}

fn ranks_fit(draft: &mut Draft<'_>, model: &TransformerConfig, experts: usize) {
    let ranks = model.expert_model_parallel_size.max(1);
    draft.require(
        experts.is_multiple_of(ranks),
        "model.num_moe_experts",
        format!("must be divisible by model.expert_model_parallel_size = {ranks}"),
    );
    let tensor = model.tensor_model_parallel_size.max(1);
    let expert_tensor = model.expert_tensor_parallel_size.unwrap_or(tensor).max(1);
    draft.require(
        expert_tensor == tensor || tensor == 1 || model.sequence_parallel,
        "model.expert_tensor_parallel_size",
        "experts that are sharded over other ranks than the rest need model.sequence_parallel, which gives each rank its own tokens",
    );
}

/// N: layers 0, N, 2 N and so on have experts; a list: 1 means experts.
fn layers(draft: &mut Draft<'_>, model: &TransformerConfig) -> Vec<bool> {
    let (key, num_layers) = ("model.moe_layer_freq", model.num_layers.min(65_536));
    if let Some(blocks) = &model.hybrid_override_pattern {
        return blocks.chars().take(num_layers).map(|block| block == 'E').collect();
    }
    let with_experts: Vec<bool> = match &model.moe_layer_freq {
        OneOrMany::One(0) => {
            draft.error(ErrorKind::OutOfRange, key, "must be at least 1");
            Vec::new()
        }
        OneOrMany::One(n) => (0..num_layers).map(|layer| layer.is_multiple_of(*n)).collect(),
        OneOrMany::Many(flags) => {
            draft.require(flags.len() == num_layers, key, format!("must have one entry per layer, {num_layers}"));
            draft.require(flags.iter().all(|flag| *flag <= 1), key, "must be a list of 0 and 1");
            if !flags.contains(&1) {
                draft.warnings.push(format!("{key} gives no layer experts: model.num_moe_experts has no effect"));
            }
            flags.iter().map(|flag| *flag == 1).collect()
        }
    };
    with_experts
}
