//! Stage 0: checks every number by itself against the range in its section's field table.

use super::super::advice::advice_on_number;
use super::super::error::{ConfigError, ErrorKind};
use super::super::node::Node;
use super::super::section::Section;
use super::super::sections::RecipeConfig;
use super::super::spec::FieldSpec;
use super::Draft;

/// Reports every number outside its range whose key begins with `prefix`.
pub(super) fn check(draft: &mut Draft<'_>, prefix: &str) {
    let root = draft.recipe.to_node();
    let mut found = Vec::new();
    walk(&RecipeConfig::fields(), &root, "", &mut found);
    for mut error in found {
        if error.key.starts_with(prefix) {
            error.location = draft.raw.location(&error.key);
            error.hint = error.written.take().and_then(|value| advice_on_number(&error.key, &value, draft.raw.kinds()));
            draft.errors.push(error);
        }
    }
}

fn walk(fields: &[FieldSpec], node: &Node, path: &str, found: &mut Vec<ConfigError>) {
    for entry in node.entries().unwrap_or_default() {
        let key = if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
        // Settings that code registered have no range of their own.
        let Some(field) = fields.iter().find(|field| field.name == entry.key) else {
            continue;
        };
        if let (Some(inner), Some(_)) = ((field.spec)().section_fields(), entry.node.entries()) {
            walk(&inner, &entry.node, &key, found);
        } else if let Some((value, expected)) = field.limits.violation(&entry.node) {
            let mut error = ConfigError::new(ErrorKind::OutOfRange, key, "out of range")
                .with_found_node(value)
                .with_expected(expected);
            error.written = Some(entry.node.clone());
            found.push(error);
        }
    }
}
