//! Upstream's `CanonicalLoRA`, whose targets are parts of fused layers, as
//! `peft.canonical_mapping`.

use super::super::error::{ConfigError, ErrorKind};
use super::super::node::{Data, Entry, Node};
use super::entries::{TARGET, fields_of, is_true, set, take, value};

/// Parts of fused layers, and the layer of each.
const PARTS: [(&str, &str); 5] = [
    ("linear_q", "linear_qkv"),
    ("linear_k", "linear_qkv"),
    ("linear_v", "linear_qkv"),
    ("linear_fc1_up", "linear_fc1"),
    ("linear_fc1_gate", "linear_fc1"),
];

/// Targets of `CanonicalLoRA` that a file leaves out.
const TARGETS: [&str; 7] =
    ["linear_q", "linear_k", "linear_v", "linear_proj", "linear_fc1_up", "linear_fc1_gate", "linear_fc2"];

/// Layers that experts have.
const OF_EXPERTS: [&str; 2] = ["linear_fc1", "linear_fc2"];

/// Removes upstream's choice of one branch for all experts of a rank. Bridge gives every expert a
/// branch of its own. Fails on experts of a grouped product whose branches upstream shares, as it
/// does by default and in versions without the field.
pub(super) fn share_expert_adapters(sections: &mut [Entry]) -> Result<(), Box<ConfigError>> {
    let model = value(sections, "model").and_then(Node::entries).unwrap_or_default();
    let inner = value(model, "transformer").and_then(Node::entries).unwrap_or_default();
    let has_experts = [model, inner]
        .iter()
        .any(|entries| value(entries, "num_moe_experts").is_some() && is_true(entries, "moe_grouped_gemm"));
    let is_of_expert = |target: &str| OF_EXPERTS.iter().any(|layer| target.contains(layer)) || target.ends_with('*');
    let at = value(sections, "peft").and_then(|section| section.location.clone());
    let Some(entries) = fields_of(sections, "peft") else { return Ok(()) };
    if value(entries, TARGET).is_none() {
        return Ok(());
    }
    let given = take(entries, "share_expert_adapters").map(|entry| entry.node);
    let adapts_experts = match value(entries, "target_modules").map(|node| &node.data) {
        // No targets mean all layers that are not excluded.
        Some(Data::List(items)) if !items.is_empty() => items.iter().filter_map(Node::text).any(is_of_expert),
        _ => true,
    };
    if !has_experts || !adapts_experts || given.as_ref().is_some_and(|node| node.data == Data::Bool(false)) {
        return Ok(());
    }
    let message =
        "one branch for all experts of a rank, which is not implemented: every expert has a branch of its own";
    let error = ConfigError::new(ErrorKind::NotImplemented, "peft.share_expert_adapters", message)
        .with_found(if given.is_some() { "true" } else { "no value, which is true" })
        .with_expected("false")
        .with_location(given.and_then(|node| node.location).or(at))
        .with_hint("write share_expert_adapters: false, or leave linear_fc1 and linear_fc2 out of peft.target_modules");
    Err(Box::new(error))
}

/// Turns the targets of `CanonicalLoRA` into a mapping; other classes stay as they are.
pub(super) fn settings_of(class: &str, entries: &mut Vec<Entry>) {
    if class != "CanonicalLoRA" {
        return;
    }
    // Upstream derives its mapping from the targets and saves both.
    take(entries, "canonical_mapping");
    let targets = match take(entries, "target_modules").map(|entry| entry.node.data) {
        Some(Data::List(items)) => items.iter().filter_map(Node::text).map(str::to_owned).collect(),
        _ => TARGETS.map(str::to_owned).to_vec(),
    };
    let mut mapping: Vec<(String, Vec<&str>)> = Vec::new();
    for target in &targets {
        let found = PARTS.iter().find_map(|(part, layer)| Some((target.strip_suffix(part)?, *part, *layer)));
        let (layer, part) = match found {
            Some((prefix, part, layer)) => (format!("{prefix}{layer}"), part),
            None => (target.clone(), target.rsplit('.').next().unwrap_or(target)),
        };
        match mapping.iter_mut().find(|(known, _)| *known == layer) {
            Some((_, parts)) => parts.push(part),
            None => mapping.push((layer, vec![part])),
        }
    }
    let table = mapping.into_iter().map(|(layer, parts)| Entry::new(layer, Node::string(parts.join(", ")))).collect();
    set(entries, "canonical_mapping", Data::Table(table));
}
