//! Refusals: why a setting, or some of its values, is understood but not accepted. A refusal is part of the setting's row in
//! the section's table; `check`, a stage of `finalize`, turns it into an error. So no setting is accepted and ignored.

use super::error::{ConfigError, ErrorKind};
use super::field::TypeSpec;
use super::finalize::{Draft, Purpose};
use super::node::{Data, Node};
use super::overrides;
use super::section::{FieldSpec, Section};
use super::sections::{RecipeConfig, TransformerConfig};

/// The refusal of a setting; made by `not_built` and `no_counterpart`.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    cause: Cause,
    /// What the setting asks for, and why Bridge does not do it or what to use instead.
    pub reason: &'static str,
    /// Values besides the default that ask for nothing or state what Bridge does, written as in an override.
    pub inert: &'static [&'static str],
    /// Values that are implemented: only the others are refused, and never the default.
    pub built: &'static [&'static str],
    /// A setting that this one repeats: its value is accepted here too.
    pub same_as: Option<&'static str>,
    /// Values that upstream's classes set by themselves; they are left out when its saved files are read.
    pub upstream: &'static [&'static str],
    /// Whether a plan supports values that no run of this release supports.
    is_planned: bool,
    /// Settings that are implemented after all, by name.
    unless: Option<fn(&str) -> bool>,
}

/// The cause of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    NotBuilt,
    NoCounterpart,
}

/// Refuses what Bridge could implement but has not yet.
pub const fn not_built(reason: &'static str) -> Refusal {
    Refusal {
        cause: Cause::NotBuilt,
        reason,
        inert: &[],
        built: &[],
        same_as: None,
        upstream: &[],
        is_planned: false,
        unless: None,
    }
}

/// Refuses what has no meaning in Bridge: it controls a library, language or device that Bridge does not use.
pub const fn no_counterpart(reason: &'static str) -> Refusal {
    Refusal { cause: Cause::NoCounterpart, ..not_built(reason) }
}

impl Refusal {
    /// Accepts values that ask for nothing, or state what Bridge does anyway.
    #[must_use]
    pub const fn inert(self, values: &'static [&'static str]) -> Self {
        Self { inert: values, ..self }
    }

    /// Accepts values that are implemented: only the other values are refused.
    #[must_use]
    pub const fn built(self, values: &'static [&'static str]) -> Self {
        Self { built: values, ..self }
    }

    /// Accepts the value of another setting.
    #[must_use]
    pub const fn same_as(self, key: &'static str) -> Self {
        Self { same_as: Some(key), ..self }
    }

    /// Leaves values out when upstream's saved files are read: its classes set them by themselves.
    #[must_use]
    pub const fn upstream(self, values: &'static [&'static str]) -> Self {
        Self { upstream: values, ..self }
    }

    /// Lets a plan accept it.
    #[must_use]
    pub const fn planned(self) -> Self {
        Self { is_planned: true, ..self }
    }

    /// Removes the refusal of a setting that `is_built` names as implemented.
    #[must_use]
    pub const fn unless(self, is_built: fn(&str) -> bool) -> Self {
        Self { unless: Some(is_built), ..self }
    }

    /// Whether the setting of this name is refused.
    pub(super) fn holds(&self, name: &str) -> bool {
        !self.unless.is_some_and(|is_built| is_built(name))
    }

    /// Whether it controls something that Bridge does not have.
    pub(super) const fn is_without_counterpart(&self) -> bool {
        matches!(self.cause, Cause::NoCounterpart)
    }

    /// Whether every value that would have an effect is refused.
    pub const fn is_whole(&self) -> bool {
        self.built.is_empty()
    }

    /// Whether the setting has no effect and all values of its type are accepted.
    pub fn is_inert(&self, field: &FieldSpec) -> bool {
        let has = |node: &Node| self.accepted(&field.default).contains(node);
        let (spec, is_nullable) = match (field.spec)() {
            TypeSpec::Nullable(inner) => (*inner, true),
            spec => (spec, false),
        };
        let has_all = match spec {
            TypeSpec::Bool => [true, false].iter().all(|value| has(&Data::Bool(*value).into())),
            TypeSpec::Choice(names) => names.iter().all(|name| has(&Node::string(*name))),
            _ => false,
        };
        has_all && (!is_nullable || has(&Node::null()))
    }

    /// The message of the error.
    pub fn message(&self) -> String {
        let cause = match self.cause {
            Cause::NotBuilt => "not implemented yet",
            Cause::NoCounterpart => "no counterpart here",
        };
        format!("{cause}: {}", self.reason)
    }

    /// The values that are accepted, the default first.
    pub(super) fn accepted(&self, default: &Node) -> Vec<Node> {
        let others = self.built.iter().chain(self.inert).map(|text| overrides::value_of(text));
        std::iter::once(default.clone()).chain(others.filter(|value| value != default)).collect()
    }
}

impl TransformerConfig {
    /// The key of the first setting that asks for something not implemented, and the message about it.
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
pub(super) struct Refused {
    pub key: String,
    pub refusal: Refusal,
    pub default: Node,
}

/// Every refusal, with the setting's dotted key. A section that is refused as a whole has one entry.
pub(super) fn table() -> Vec<Refused> {
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

/// Reports every setting under `prefix` with a refused value: refused by the tables, or by a kind of model that lists what it supports.
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

/// Reports every setting of the model that its kind does not list. A value that asks for nothing is fine.
fn check_kind(draft: &mut Draft<'_>, values: &Node) {
    let message = format!("model.kind = {:?} does not have this setting", draft.recipe.model.kind);
    for field in TransformerConfig::fields() {
        if !draft.supports(field.name) {
            let refusal = field.refusal.map(|refusal| Refusal { built: &[], ..refusal });
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
