//! Settings that differ between two recipes.

use std::collections::BTreeSet;

use serde::Serialize;

use super::super::node::{Data, Node};
use super::super::section::Section;
use super::super::sections::RecipeConfig;

/// A setting with two values, without secrets; `None` if one side has no such setting.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Dotted path.
    pub key: String,
    /// The first recipe's value.
    pub left: Option<Node>,
    /// The second recipe's value.
    pub right: Option<Node>,
}

/// The settings in which two recipes differ, in the order of the sections.
pub fn diff(left: &RecipeConfig, right: &RecipeConfig) -> Vec<Difference> {
    let mut differences = Vec::new();
    compare(Some(&left.to_node()), Some(&right.to_node()), "", &mut differences);
    differences
}

/// The settings in which a recipe differs from the defaults, which are on the left.
pub fn diff_from_defaults(recipe: &RecipeConfig) -> Vec<Difference> {
    diff(&RecipeConfig::default(), recipe)
}

fn compare(left: Option<&Node>, right: Option<&Node>, path: &str, found: &mut Vec<Difference>) {
    if left == right {
        return;
    }
    let tables = [left, right].map(|node| node.and_then(Node::entries));
    let is_absent = |node: Option<&Node>| node.is_none_or(|node| node.data == Data::Null);
    // A section that exists only on one side is compared setting by setting as well.
    let both_tables = (tables[0].is_some() || is_absent(left))
        && (tables[1].is_some() || is_absent(right))
        && tables.iter().flatten().any(|entries| !entries.is_empty());
    if !both_tables {
        let safe = |node: Option<&Node>| node.map(|node| node.redacted_at(path));
        found.push(Difference { key: path.to_owned(), left: safe(left), right: safe(right) });
        return;
    }
    let mut seen = BTreeSet::new();
    for entry in tables.into_iter().flatten().flatten() {
        if seen.insert(&entry.key) {
            let key = if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
            let side = |node: Option<&'_ Node>| node.and_then(|node| node.get(&entry.key)).cloned();
            compare(side(left).as_ref(), side(right).as_ref(), &key, found);
        }
    }
}
