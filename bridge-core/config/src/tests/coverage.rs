//! Every row of the tables is accepted, or has a reason for its refusal, and `finalize` agrees.

use std::collections::BTreeSet;

use super::super::catalogue::{self, ROWS, Row};
use super::super::error::ErrorKind;
use super::super::limits::Limits;
use super::super::node::{Data, Entry, Node};
use super::super::refusal::Refusal;
use super::super::section::Section;
use super::super::spec::{FieldSpec, TypeSpec};
use crate::optimizer_rules::NAMES;

/// A row with a refusal.
struct Refused {
    key: &'static str,
    field: &'static FieldSpec,
    refusal: Refusal,
}

/// All rows with a refusal.
fn table() -> Vec<Refused> {
    let refused = |row: &'static Row| Some(Refused { key: &row.key, field: &row.field, refusal: row.field.refusal? });
    ROWS.iter().filter_map(refused).collect()
}

/// Values of a type, some of which are likely to differ from the default.
fn values(spec: &TypeSpec) -> Vec<Node> {
    let numbers = |floats: bool| {
        let number = move |n: i128| if floats { Data::Float(n as f64).into() } else { Data::Int(n).into() };
        (0..4).map(number).collect::<Vec<Node>>()
    };
    match spec {
        TypeSpec::Bool => vec![Data::Bool(false).into(), Data::Bool(true).into()],
        TypeSpec::Count | TypeSpec::Integer => numbers(false),
        TypeSpec::Float => {
            numbers(true).into_iter().chain([Data::Float(0.5).into(), Data::Float(0.25).into()]).collect()
        }
        TypeSpec::String => vec![Node::string("something"), Node::string("else")],
        TypeSpec::Choice(names) => names.iter().map(|name| Node::string(*name)).collect(),
        TypeSpec::List(item) => {
            let items = values(item).into_iter().map(|item| Data::List(vec![item]).into());
            items.chain([Data::List(Vec::new()).into()]).collect()
        }
        TypeSpec::Array(item, length) => {
            values(item).into_iter().map(|item| Data::List(vec![item; *length]).into()).collect()
        }
        TypeSpec::Map(value) => {
            values(value).into_iter().map(|value| Data::Table(vec![Entry::new("a", value)]).into()).collect()
        }
        TypeSpec::OneOf(options) => options.iter().flat_map(values).collect(),
        TypeSpec::Nullable(inner) => values(inner),
        TypeSpec::Section(_) => vec![Data::Table(Vec::new()).into()],
        TypeSpec::Any => vec![Node::string("something")],
    }
}

fn fits(limits: &Limits, value: &Node) -> bool {
    limits.violation(value).is_none()
}

fn setting(key: &str, value: &Node) -> String {
    format!("{key}={}", value.to_inline())
}

/// True if the tiny recipe with `value` is refused for the row's reason.
fn is_refused(row: &Refused, value: &Node) -> bool {
    let Err(errors) = super::tiny(&[&setting(row.key, value)]) else {
        return false;
    };
    errors.iter().any(|error| {
        let is_it = error.key == row.key && error.kind == ErrorKind::NotImplemented;
        is_it && error.message == row.refusal.message() && error.found.is_some()
    })
}

/// The value of the setting that a row repeats, which the row accepts.
fn repeated(row: &Refused, other: &str) -> Node {
    let tiny = super::tiny_raw().recipe().to_node();
    let value = tiny.get_path(other).or_else(|| Some(&catalogue::row(other)?.field.default)).cloned();
    let value = value.unwrap_or_else(|| panic!("{}: {other} does not exist", row.key));
    assert!(!is_refused(row, &value), "{}", setting(row.key, &value));
    value
}

#[test]
fn what_a_row_accepts_passes_and_anything_else_is_refused_with_its_reason() {
    for row in table() {
        let field = row.field;
        let accepted = row.refusal.accepted(&field.default);
        for value in &accepted {
            assert!(!is_refused(&row, value), "{}", setting(row.key, value));
            let text = value.to_inline();
            let does_nothing = !row.refusal.built.iter().any(|built| text.trim_matches('"') == *built);
            if does_nothing {
                // Settings of experts say nothing to a dense model, and are refused there.
                let experts = if row.key.starts_with("model.moe_") { "4" } else { "null" };
                // An adapter is one of a base.
                let base = if row.key.starts_with("peft.") { "base" } else { "null" };
                let around =
                    [format!("model.num_moe_experts={experts}"), format!("checkpoint.pretrained_checkpoint={base}")];
                let overrides = [&setting(row.key, value), &around[0], &around[1]];
                super::tiny(&overrides.map(String::as_str)).unwrap_or_else(|errors| panic!("{}: {errors}", row.key));
            }
        }
        let same = row.refusal.same_as.map(|key| repeated(&row, key));
        let others = values(&(field.spec)()).into_iter().filter(|value| Some(value) != same.as_ref());
        let others: Vec<_> = others.filter(|v| fits(&field.limits, v) && !accepted.contains(v)).collect();
        let has_no_others = row.refusal.is_inert(field) || same.is_some();
        assert!(!others.is_empty() || has_no_others, "{}: nothing else to write", row.key);
        assert!(others.is_empty() || !row.refusal.is_inert(field), "{}: {others:?} can be written", row.key);
        for value in &others {
            assert!(is_refused(&row, value), "{} should be refused", setting(row.key, value));
        }
    }
}

#[test]
fn each_refusal_has_a_reason_of_its_own() {
    let mut reasons = BTreeSet::new();
    let rows = table();
    assert!(rows.len() > 100, "the walk over the tables finds {} rows", rows.len());
    for Refused { key, field, refusal } in rows {
        let section = key.split_once('.').map_or("", |(section, _)| section).to_owned();
        let reason = refusal.reason;
        assert!(reason.len() > 10 && !reason.ends_with('.'), "{key}: {reason:?}");
        assert!(reasons.insert((section, reason)), "{key}: another setting of the section has the reason {reason:?}");
        let accepted = refusal.accepted(&field.default);
        let repeated = accepted.iter().enumerate().find(|(index, value)| accepted[..*index].contains(value));
        assert!(repeated.is_none(), "{key}: {repeated:?} is accepted twice");
    }
}

#[test]
fn an_error_shows_what_is_accepted_instead() {
    let errors = super::tiny_errors(&["optimizer.optimizer=dist_muon", "dataset.trust_remote_code=true"]);
    let expected = |key: &str| errors.iter().find(|e| e.key == key).and_then(|e| e.expected.clone());
    let rules: Vec<String> = NAMES.iter().map(|name| format!("{name:?}")).collect();
    assert_eq!(expected("optimizer.optimizer"), Some(rules.join(" or ")));
    assert_eq!(expected("dataset.trust_remote_code").as_deref(), Some("null or false"));
}
