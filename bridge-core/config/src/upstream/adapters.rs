//! Upstream's `CanonicalLoRA`, whose targets are parts of fused layers, as
//! `peft.canonical_mapping`.

use super::super::node::{Data, Entry, Node};
use super::entries::{set, take};

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
