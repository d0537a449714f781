//! Stage 0: every refusal of the sections' tables, and the settings that a recipe gives refused
//! values.

use super::super::error::{ConfigError, ErrorKind};
use super::super::node::Node;
use super::super::refusal::Refusal;
use super::super::section::Section;
use super::super::sections::{RecipeConfig, TransformerConfig};
use super::super::spec::FieldSpec;
use super::draft::{Draft, Purpose};

impl TransformerConfig {
    /// The key of the first setting that asks for something not implemented, and the message about
    /// it.
    pub fn not_built(&self) -> Option<(String, String)> {
        Self::fields().into_iter().find_map(|field| {
            let refusal = field.refusal.filter(|refusal| !refusal.is_without_counterpart())?;
            let is_accepted = refusal.accepted(&field.default).contains(&self.value(field.name)?);
            (!is_accepted).then(|| (format!("model.{}", field.name), refusal.message()))
        })
    }
}

/// One row of the tables with a refusal.
#[derive(Debug, Clone)]
pub(in super::super) struct Refused {
    pub key: String,
    pub refusal: Refusal,
    pub default: Node,
}

/// Every refusal, with the setting's dotted key. A section that is refused as a whole has one
/// entry.
pub(in super::super) fn table() -> Vec<Refused> {
    let mut rows = Vec::new();
    walk(&RecipeConfig::fields(), "", &mut rows);
    rows
}

fn walk(fields: &[FieldSpec], path: &str, rows: &mut Vec<Refused>) {
    for field in fields {
        let key = if path.is_empty() { field.name.to_owned() } else { format!("{path}.{}", field.name) };
        match (field.refusal, (field.spec)().section_fields()) {
            (Some(refusal), _) => rows.push(Refused { key, refusal, default: field.default.clone() }),
            (None, Some(inner)) => walk(&inner, &key, rows),
            (None, None) => {}
        }
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
    for Refused { key, refusal, default } in table() {
        let is_checked = key.starts_with(prefix) && !(kind_lists && key.starts_with("model."));
        let Some(value) = values.get_path(&key).filter(|_| is_checked) else {
            continue;
        };
        let is_planned = refusal.is_planned && draft.purpose == Purpose::Plan;
        // A value already out of range is wrong in any release.
        if *value == default || is_planned || draft.errors.names(&key) {
            continue;
        }
        refuse_others(draft, &key, refusal.message(), &values, accepted(&refusal, &default, &values));
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
    let Some(value) = values.get_path(key).filter(|value| !accepted.contains(value)) else {
        return;
    };
    let error = ConfigError::new(ErrorKind::NotImplemented, key, message)
        .with_found(value.to_inline())
        .with_expected(accepted.iter().map(Node::to_inline).collect::<Vec<_>>().join(" or "))
        .with_location(draft.raw.location(key));
    draft.errors.push(error);
}
