//! Stage 1: the rules on the rows of the sections' tables.

use std::sync::LazyLock;

use super::super::node::Node;
use super::super::rule::ParsedRule;
use super::super::section::Section;
use super::super::sections::RecipeConfig;
use super::super::spec::FieldSpec;
use super::Draft;

/// A row with rules.
struct Row {
    key: String,
    default: Node,
    rules: Vec<ParsedRule>,
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let mut rows = Vec::new();
    walk(RecipeConfig::fields(), "", &mut rows);
    rows
});

fn walk(fields: Vec<FieldSpec>, prefix: &str, rows: &mut Vec<Row>) {
    for field in fields {
        let key = format!("{prefix}{}", field.name);
        if let Some(inner) = (field.spec)().section_fields() {
            walk(inner, &format!("{key}."), rows);
        }
        if !field.rules.is_empty() {
            let rules = field.rules.iter().map(|rule| rule.parsed()).collect();
            rows.push(Row { key, default: field.default, rules });
        }
    }
}

/// Reports every setting under `prefix` that breaks a rule on its row.
pub(super) fn check(draft: &mut Draft<'_>, prefix: &str) {
    let recipe = draft.recipe.to_node();
    for row in ROWS.iter().filter(|row| row.key.starts_with(prefix)) {
        let given = recipe.get_path(&row.key).filter(|value| **value != row.default);
        if draft.is_refused(&row.key) {
            continue;
        }
        // A section by itself has no others.
        for rule in row.rules.iter().filter(|rule| rule.is_within(prefix) && !rule.is_kept(&recipe, given)) {
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

/// Messages of the rules on the row of a setting.
pub(in super::super) fn messages_about(key: &str) -> Vec<String> {
    let rows = ROWS.iter().filter(|row| row.key == key);
    rows.flat_map(|row| &row.rules).map(ParsedRule::message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::settings;
    use crate::kinds::Kinds;

    #[test]
    fn rules_name_settings_and_values_that_exist() {
        let all = settings(&Kinds::builtin(), &Node::null());
        for row in ROWS.iter() {
            for (key, value) in row.rules.iter().flat_map(ParsedRule::names) {
                let setting = all.iter().find(|setting| setting.key == key);
                let setting = setting.unwrap_or_else(|| panic!("a rule of {} names {key}", row.key));
                let takes = |value: &Node| value.is_null() || (setting.field.spec)().accepts(value);
                assert!(value.is_none_or(takes), "a rule of {} compares {key} with {value:?}", row.key);
            }
        }
    }
}
