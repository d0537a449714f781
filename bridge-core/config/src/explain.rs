//! Explanation of a setting or section: from the tables that the schema is made of, and by asking
//! the rules. No text of its own.

use std::collections::BTreeSet;

use serde::Serialize;

use super::advice::{ALIASES, meant_by};
use super::catalogue::{Row, SETTINGS, row};
use super::changes::concerns;
use super::error::ErrorKind;
use super::kinds::Kinds;
use super::loading::load_text;
use super::node::Node;
use super::rule::Rule;
use super::run_config::World;
use super::source::Format;
use super::spec::{Concerns, FieldSpec, TypeSpec};
use super::unread::words_in;
use super::upstream::classes_of;

/// Everything known about one setting, or one section.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// Dotted key.
    pub key: String,
    /// Name in Bridge of the requested name, if it is another one.
    pub asked: Option<String>,
    /// Effect of the setting.
    pub doc: String,
    /// The values that it takes, in words.
    pub values: String,
    /// The range of its numbers, if there is one.
    pub range: Option<String>,
    /// The default; null for a section.
    pub default: Node,
    /// `accepted`, `partly` (only some values are implemented), `refused`, or `inert` (it has no
    /// effect).
    pub status: &'static str,
    /// Effect of another value: on the function that the model computes, on the course of training,
    /// or only on execution.
    pub changes: &'static str,
    /// Why values are refused.
    pub reason: Option<String>,
    /// The values that are accepted, where not all are.
    pub accepted: Vec<Node>,
    /// Upstream's section and classes; empty for settings that only Bridge has.
    pub upstream: Vec<String>,
    /// Names in other programs.
    pub elsewhere: Vec<String>,
    /// Messages of the rules on its row, and of those that it breaks in a small recipe.
    pub rules: Vec<String>,
    /// The settings of a section.
    pub settings: Vec<Explanation>,
}

/// The explanation of a key.
///
/// # Errors
/// The nearest setting, if there is no such setting.
pub fn explain(key: &str, kinds: &Kinds) -> Result<Explanation, String> {
    let other = if row(key).is_none() { meant_by(key, kinds) } else { None };
    let meant = other.as_ref().and_then(|(_, meant)| row(meant.first()?));
    let Some(setting) = row(key).or(meant) else {
        let offer = other.map(|(text, _)| format!("; {text}")).unwrap_or_default();
        return Err(format!("{key}: there is no such setting{offer}"));
    };
    let mut explanation = explanation(setting, kinds);
    explanation.asked = other.map(|(text, _)| format!("{key}: {text}"));
    if setting.is_section {
        let inner = SETTINGS.iter().filter(|other| other.section() == setting.key);
        explanation.settings = inner.map(|inner| self::explanation(inner, kinds)).collect();
    } else if setting.refused(kinds, &Node::null()).is_none() {
        explanation.rules = rules(setting, kinds);
    }
    Ok(explanation)
}

/// The keys of all settings and sections.
pub fn keys(_kinds: &Kinds) -> Vec<String> {
    SETTINGS.iter().map(|setting| setting.key.clone()).collect()
}

fn explanation(setting: &Row, kinds: &Kinds) -> Explanation {
    let refused = setting.refused(kinds, &Node::null());
    let field = &setting.field;
    let (status, reason, accepted) = match &field.refusal {
        None => ("accepted", None, Vec::new()),
        Some(refusal) => (refusal.status(field), Some(refusal.message()), refusal.accepted(&field.default)),
    };
    let is_ours = field.doc.contains("(ours)");
    let section = if setting.is_section { setting.key.as_str() } else { setting.section() };
    Explanation {
        key: setting.key.clone(),
        asked: None,
        doc: field.doc.to_owned(),
        values: (field.spec)().to_string(),
        range: field.limits.is_bounded().then(|| field.limits.to_string()),
        default: if setting.is_section { Node::null() } else { field.default.clone() },
        status: if refused.is_some() && status == "accepted" { "refused" } else { status },
        changes: match concerns(&setting.key) {
            Concerns::Function => "what the model computes",
            Concerns::Training => "the course of training",
            Concerns::Execution => "nothing but how a run is executed",
        },
        reason: reason.or(refused),
        accepted,
        upstream: if is_ours { Vec::new() } else { classes_of(section) },
        elsewhere: elsewhere(&setting.key),
        rules: Vec::new(),
        settings: Vec::new(),
    }
}

/// Names in other programs.
fn elsewhere(key: &str) -> Vec<String> {
    let rows = ALIASES.names.iter().filter(|row| row.targets().any(|(target, _)| target == key));
    rows.flat_map(|row| row.names()).map(str::to_owned).collect()
}

/// A recipe that passes, with few settings, on which rules are tried.
const SMALL: [&str; 12] = [
    "model.num_layers=4",
    "model.hidden_size=64",
    "model.num_attention_heads=8",
    "model.seq_length=64",
    "model.vocab_size=512",
    "train.micro_batch_size=2",
    "train.global_batch_size=4",
    "train.train_iters=20",
    "optimizer.lr=1e-3",
    "validation.eval_interval=10",
    "validation.eval_iters=2",
    "dataset.kind=mock",
];

/// Maximum number of rules shown for a setting.
const MOST_RULES: usize = 12;

/// Messages of the rules on the setting's row, then of those that other values than its default
/// break: first alone, then beside each other setting of its section.
fn rules(setting: &Row, kinds: &Kinds) -> Vec<String> {
    let mut rules = setting.field.rules.iter().map(Rule::message).collect::<Vec<_>>();
    let shape_of = |rule: &str| rule.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    let mut said: BTreeSet<_> = rules.iter().map(|rule| (setting.key.clone(), shape_of(rule))).collect();
    let probes = probes(&setting.field);
    let alone = probes.iter().map(|value| vec![format!("{}={value}", setting.key)]);
    let beside = SETTINGS.iter().filter(|other| other.section() == setting.section() && other.key != setting.key);
    let beside = beside.filter(|other| other.refused(kinds, &Node::null()).is_none()).filter_map(|other| {
        let value = self::probes(&other.field).into_iter().next()?;
        Some(vec![format!("{}={value}", other.key), format!("{}={}", setting.key, probes.first()?)])
    });
    for overrides in alone.chain(beside) {
        for (about, rule) in broken(&overrides, kinds) {
            let others = overrides.iter().filter_map(|text| text.split_once('=')).map(|(key, _)| key);
            let concerns = |key: &str| about == key || words_in(&rule).any(|word| word == key);
            let is_of_all = others.clone().all(concerns);
            // Numbers differ from try to try.
            if is_of_all && rules.len() < MOST_RULES && said.insert((about.clone(), shape_of(&rule))) {
                rules.push(if about == setting.key { rule } else { format!("{about} {rule}") });
            }
        }
    }
    rules
}

/// The rules that the small recipe with overrides breaks, with the keys that they are about.
fn broken(overrides: &[String], kinds: &Kinds) -> Vec<(String, String)> {
    let overrides: Vec<String> = SMALL.iter().map(|text| (*text).to_owned()).chain(overrides.iter().cloned()).collect();
    let errors = load_text("", Format::Toml, &overrides, kinds, &World::SINGLE).err().into_iter().flatten();
    let rules = errors.filter(|error| matches!(error.kind, ErrorKind::Conflict | ErrorKind::Missing));
    rules.map(|error| (error.key, error.message)).collect()
}

/// Values besides the default, as in overrides.
fn probes(field: &FieldSpec) -> Vec<String> {
    let mut values = of_type(&(field.spec)());
    values.retain(|value| {
        let node = super::overrides::value_of(value);
        let is_accepted = field.refusal.as_ref().is_none_or(|refusal| refusal.accepted(&field.default).contains(&node));
        node != field.default && is_accepted && field.limits.violation(&node).is_none()
    });
    values
}

fn of_type(spec: &TypeSpec) -> Vec<String> {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    match spec {
        TypeSpec::Bool => texts(&["true", "false"]),
        TypeSpec::Integer | TypeSpec::Count => texts(&["2", "3", "1", "1000", "0"]),
        TypeSpec::Float => texts(&["0.5", "2.0", "0.0"]),
        TypeSpec::String => texts(&["\"a\""]),
        TypeSpec::Choice(names) => names.iter().map(|name| format!("{name:?}")).collect(),
        TypeSpec::List(item) => of_type(item).iter().take(1).map(|item| format!("[{item}]")).collect(),
        TypeSpec::Array(item, length) => {
            let item = of_type(item).into_iter().next();
            item.map(|item| format!("[{}]", vec![item; *length].join(", "))).into_iter().collect()
        }
        TypeSpec::OneOf(options) => options.iter().flat_map(of_type).collect(),
        TypeSpec::Nullable(inner) => of_type(inner),
        TypeSpec::Map(_) | TypeSpec::Section(_) | TypeSpec::Any => Vec::new(),
    }
}
