//! Settings that are understood but not implemented in this release, as a table. `finalize`
//! consults it: anything but the inactive value is an error, so nothing is accepted and ignored.

mod table;

use table::{DATA, MODEL, RUNTIME, TRAINING};

use super::error::ErrorKind;
use super::finalize::{Draft, Purpose};
use super::node::Node;
use super::section::Section;
use super::sections::RecipeConfig;

/// Values besides the default that ask for nothing this release lacks.
const ALSO_INACTIVE: &[(&str, &[&str])] = &[
    ("model.attention_backend", &["\"local\""]),
    ("model.cp_comm_type", &["\"all_gather\""]),
    ("model.cuda_graph_scope", &["[]"]),
    ("model.mtp_num_layers", &["0"]),
    ("model.position_embedding_type", &["\"rope\"", "\"none\""]),
    ("model.moe_router_load_balancing_type", &["\"none\""]),
    ("model.moe_router_dtype", &["\"fp32\""]),
    ("model.moe_token_dispatcher_type", &["\"alltoall\""]),
    ("optimizer.optimizer", &["\"sgd\""]),
    ("dataset.multiple_validation_sets", &["false"]),
    ("dataset.full_validation", &["false"]),
    ("rerun_state_machine.rerun_mode", &["\"validate_results\""]),
];

/// What a plan counts although no run of this release can have it.
const PLANNED: &[(&str, &str)] = &[(
    "model",
    "overlap_p2p_comm batch_p2p_comm moe_router_load_balancing_type moe_router_score_function moe_router_dtype \
         moe_shared_expert_gate moe_token_dispatcher_type moe_grouped_gemm moe_per_layer_logging",
)];

/// Every setting that is not implemented, with the reason, wildcards expanded.
pub(super) fn table() -> Vec<(String, &'static str)> {
    let defaults = defaults();
    let groups = [MODEL, TRAINING, DATA, RUNTIME].into_iter().flatten();
    groups
        .flat_map(|group| {
            let names: Vec<String> = match group.fields {
                ["*"] => {
                    let section = defaults.get(group.section);
                    let entries = section.and_then(Node::entries).unwrap_or_default();
                    entries.iter().map(|entry| entry.key.clone()).collect()
                }
                fields => fields.iter().map(|field| (*field).to_owned()).collect(),
            };
            names.into_iter().map(|name| match group.section {
                "" => (name, group.reason),
                section => (format!("{section}.{name}"), group.reason),
            })
        })
        .collect()
}

/// All defaults. Absent sections are there to be compared, except adapters, which are not
/// implemented in any form.
fn defaults() -> Node {
    RecipeConfig { peft: None, ..RecipeConfig::with_every_section() }.to_node()
}

/// Reports every setting under `prefix` that asks for something this release does not implement.
pub(super) fn check(draft: &mut Draft<'_>, prefix: &str) {
    let defaults = defaults();
    let values = draft.recipe.to_node();
    for (key, reason) in table() {
        // A value already out of range is wrong in any release.
        let is_reported = draft.errors.names(&key);
        let Some(value) = values.get_path(&key).filter(|_| key.starts_with(prefix)) else {
            continue;
        };
        if is_reported || defaults.get_path(&key) == Some(value) || is_inactive(&key, value) {
            continue;
        }
        if draft.purpose == Purpose::Plan && is_planned(&key) {
            continue;
        }
        let message = format!("not implemented yet: {reason}");
        draft.error(ErrorKind::NotImplemented, &key, message);
    }
}

fn is_planned(key: &str) -> bool {
    let Some((section, field)) = key.split_once('.') else {
        return false;
    };
    PLANNED.iter().any(|(name, fields)| *name == section && fields.split_whitespace().any(|planned| planned == field))
}

fn is_inactive(key: &str, value: &Node) -> bool {
    let text = value.to_inline();
    ALSO_INACTIVE.iter().any(|(name, values)| *name == key && values.contains(&text.as_str()))
}
