//! Stage 0: every refusal of the sections' tables, and the settings that a recipe gives refused
//! values.

use super::super::catalogue::{ROWS, Row};
use super::super::error::{ConfigError, ErrorKind};
use super::super::node::Node;
use super::super::refusal::Refusal;
use super::super::section::Section;
use super::super::sections::TransformerConfig;
use super::Draft;

impl TransformerConfig {
    /// The key of the first setting that asks for something not implemented, and the message about
    /// it.
    pub fn not_built(&self) -> Option<(String, String)> {
        let values = self.to_node();
        Self::fields().into_iter().find_map(|field| {
            let refusal = field.refusal.filter(|refusal| !refusal.is_without_counterpart())?;
            let is_accepted = refusal.accepted(&field.default).contains(values.get(field.name)?);
            (!is_accepted).then(|| (format!("model.{}", field.name), refusal.message()))
        })
    }
}

/// Reports every setting under `prefix` with a refused value: refused by the tables, or by a kind
/// of model that lists what it supports.
pub(super) fn check(draft: &mut Draft<'_>, prefix: &str) {
    let values = draft.recipe.to_node();
    let kind_lists = draft.model_kind().is_some_and(|kind| kind.settings.is_some());
    if kind_lists {
        check_kind(draft, &values);
    }
    let is_checked = |row: &&Row| row.key.starts_with(prefix) && !(kind_lists && row.key.starts_with("model."));
    for Row { key, field, .. } in ROWS.iter().filter(is_checked) {
        let (Some(refusal), Some(value)) = (&field.refusal, values.get_path(key)) else { continue };
        // A value already out of range is wrong in any release.
        if *value != field.default && !draft.errors.names(key) {
            refuse_others(draft, key, refusal.message(), &values, accepted(refusal, &field.default, &values));
        }
    }
}

/// Reports every setting of the model that its kind does not list. A value that asks for nothing is
/// fine.
fn check_kind(draft: &mut Draft<'_>, values: &Node) {
    let message = format!("model.kind = {:?} does not have this setting", draft.recipe.model.kind);
    for field in TransformerConfig::fields() {
        if !draft.supports(field.name) {
            let refusal = field.refusal.map(|refusal| refusal.built(&[]));
            let none = || vec![field.default.clone()];
            let accepted = refusal.map_or_else(none, |refusal| accepted(&refusal, &field.default, values));
            refuse_others(draft, &format!("model.{}", field.name), message.clone(), values, accepted);
        }
    }
}

/// The values that a row accepts in this recipe.
fn accepted(refusal: &Refusal, default: &Node, values: &Node) -> Vec<Node> {
    let mut accepted = refusal.accepted(default);
    accepted.extend(refusal.same_as.and_then(|key| values.get_path(key).cloned()));
    accepted
}

/// Reports the value of a setting if it is not one of the accepted values.
fn refuse_others(draft: &mut Draft<'_>, key: &str, message: String, values: &Node, accepted: Vec<Node>) {
    let Some(value) = values.get_path(key).filter(|value| !accepted.contains(value)) else { return };
    let error = ConfigError::new(ErrorKind::NotImplemented, key, message)
        .with_found(value.to_inline())
        .with_expected(accepted.iter().map(Node::to_inline).collect::<Vec<_>>().join(" or "))
        .with_location(draft.raw.location(key));
    draft.errors.push(error);
}
