//! Stages 0 and 1: what the rows of the sections' tables say about single settings: their ranges,
//! and the rules between settings.

use super::super::advice::advice_on_number;
use super::super::catalogue::ROWS;
use super::super::error::{ConfigError, ErrorKind};
use super::super::section::Section;
use super::Draft;

/// Reports every number under `prefix` outside its range. Settings that code registered have no
/// range of their own.
pub(super) fn check_ranges(draft: &mut Draft<'_>, prefix: &str) {
    let recipe = draft.recipe.to_node();
    for row in ROWS.iter().filter(|row| row.key.starts_with(prefix)) {
        let Some(node) = recipe.get_path(&row.key) else { continue };
        if let Some((value, expected)) = row.field.limits.violation(node) {
            let mut error = ConfigError::new(ErrorKind::OutOfRange, &row.key, "out of range")
                .with_found_node(value)
                .with_expected(expected)
                .with_location(draft.raw.location(&row.key));
            error.hint = advice_on_number(&row.key, node, draft.raw.kinds());
            draft.errors.push(error);
        }
    }
}

/// Reports every setting under `prefix` that breaks a rule on its row.
pub(super) fn check(draft: &mut Draft<'_>, prefix: &str) {
    let recipe = draft.recipe.to_node();
    for row in ROWS.iter().filter(|row| row.key.starts_with(prefix)) {
        let given = recipe.get_path(&row.key).filter(|value| **value != row.field.default);
        if draft.is_refused(&row.key) {
            continue;
        }
        // A section by itself has no others.
        for rule in row.field.rules.iter().filter(|rule| rule.is_within(prefix) && !rule.is_kept(&recipe, given)) {
            let message = rule.message_in(&recipe);
            if rule.is_about_missing() {
                let is_known = row.key.strip_prefix("model.").is_none_or(|name| draft.supports(name));
                if is_known {
                    draft.missing(&row.key, message);
                }
            } else if rule.is_warning() {
                draft.idle_if(true, &draft.written(&row.key), message);
            } else {
                draft.conflict(&draft.written(&row.key), message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::row;
    use crate::node::Node;
    use crate::rule::Rule;

    #[test]
    fn rules_name_settings_and_values_that_exist() {
        for ruled in ROWS.iter() {
            for (key, value) in ruled.field.rules.iter().flat_map(Rule::names) {
                let setting = row(key).unwrap_or_else(|| panic!("a rule of {} names {key}", ruled.key));
                let takes = |value: &Node| value.is_null() || (setting.field.spec)().accepts(value);
                assert!(value.is_none_or(takes), "a rule of {} compares {key} with {value:?}", ruled.key);
            }
        }
    }
}
