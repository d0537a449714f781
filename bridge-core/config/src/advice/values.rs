//! Values of the wrong type that are right but for their form: `"1000"` for 1000, 1e5 for 100000,
//! `"yes"` for true.

use super::super::node::{Data, Node};
use super::super::overrides::value_of;
use super::super::spec::TypeSpec;
use super::lists;

/// The least letters that a name and a text have in common.
const LEAST_PART: usize = 3;
/// Words that say that something is off.
const OFF: [&str; 7] = ["", "none", "no", "false", "off", "disabled", "null"];

/// True if a value says that a feature is off.
pub(super) fn is_off(value: &Node) -> bool {
    let says_so = |text: &str| OFF.contains(&text.trim().to_lowercase().as_str());
    value.is_empty() || value.data == Data::Bool(false) || value.text().is_some_and(says_so)
}

/// True if a default says that nothing is done.
pub(super) fn is_nothing(default: &Node) -> bool {
    default.asks_for_nothing() || default.text() == Some("no_shard") || is_off(default)
}

/// True if a value is one of the names of its setting, as the setting writes it.
pub(super) fn is_name(node: &Node, spec: &TypeSpec) -> bool {
    node.text().is_some() && name_of(node, spec) == node.text()
}

/// The setting's name for a value, ignoring case.
pub(super) fn name_of(node: &Node, spec: &TypeSpec) -> Option<&'static str> {
    match (spec, &node.data) {
        (TypeSpec::Choice(names), Data::String(text)) => {
            names.iter().find(|name| name.eq_ignore_ascii_case(text)).copied()
        }
        (TypeSpec::Nullable(inner), _) => name_of(node, inner),
        _ => None,
    }
}

/// The same value in a form that the type accepts.
pub(super) fn converted(node: &Node, spec: &TypeSpec) -> Option<Node> {
    forms(node).into_iter().find(|form| form != node && spec.accepts(form))
}

fn forms(node: &Node) -> Vec<Node> {
    let mut forms = match &node.data {
        Data::String(text) => of_text(text),
        Data::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => vec![Data::Int(*number as i128).into()],
        Data::Int(number @ (0 | 1)) => vec![Data::Bool(*number == 1).into()],
        Data::Bool(false) => vec![Node::null()],
        // A list of numbers is a text of shares elsewhere, and one item is itself.
        Data::List(items) => {
            let texts: Vec<_> = items.iter().map(Node::to_inline).collect();
            let are_numbers = items.iter().all(|item| matches!(item.data, Data::Int(_) | Data::Float(_)));
            let only = (items.len() == 1).then(|| items[0].clone());
            only.into_iter().chain(are_numbers.then(|| Node::string(texts.join(",")))).collect()
        }
        Data::Unset | Data::Null | Data::Bool(_) | Data::Int(_) | Data::Float(_) | Data::Table(_) => Vec::new(),
    };
    forms.extend(forms.clone().iter().filter_map(as_integer).collect::<Vec<_>>());
    forms.push(Data::List(vec![node.clone()]).into());
    // A boolean is not converted to text: `true` is not a project name.
    if !matches!(node.data, Data::Bool(_) | Data::String(_) | Data::List(_) | Data::Table(_)) {
        forms.push(Node::string(node.to_inline()));
    }
    forms
}

fn as_integer(node: &Node) -> Option<Node> {
    match node.data {
        Data::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => Some(Data::Int(number as i128).into()),
        _ => None,
    }
}

fn of_text(text: &str) -> Vec<Node> {
    let word = text.trim().to_lowercase();
    let number = word.replace([',', '_', ' '], "");
    let scaled = ["k", "m", "b"].iter().zip([1e3, 1e6, 1e9]).find_map(|(unit, factor)| {
        let count: f64 = number.strip_suffix(unit)?.parse().ok()?;
        Some(Data::Float(count * factor).into())
    });
    let spoken = match word.as_str() {
        "yes" | "on" | "true" | "y" | "1" | "enabled" => Some(Data::Bool(true).into()),
        "no" | "off" | "false" | "n" | "0" | "disabled" => Some(Data::Bool(false).into()),
        "none" | "nil" | "" => Some(Node::null()),
        _ => None,
    };
    let lists = items(text).into_iter().chain(lists::as_in_python(text));
    [value_of(&number), value_of(text)].into_iter().chain(lists).chain(scaled).chain(spoken).collect()
}

/// `"q_proj,v_proj"` and `"16 16 100"` as lists.
fn items(text: &str) -> Option<Node> {
    let by_commas: Vec<Node> = text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(value_of).collect();
    let by_spaces: Vec<Node> = text.split_whitespace().map(value_of).collect();
    let is_number = |item: &Node| matches!(item.data, Data::Int(_) | Data::Float(_));
    let items = if by_commas.len() > 1 { by_commas } else { by_spaces.into_iter().filter(is_number).collect() };
    (items.len() > 1).then(|| Data::List(items).into())
}

/// Longest name of the setting that is in a text or that contains the text: `SIGUSR1` for `USR1`.
pub(super) fn name_within(text: &str, spec: &TypeSpec) -> Option<&'static str> {
    let names = match spec {
        TypeSpec::Choice(names) => *names,
        TypeSpec::Nullable(inner) => return name_within(text, inner),
        _ => return None,
    };
    let text = text.to_lowercase();
    let fits = |name: &&&str| {
        let name = name.to_lowercase();
        name.len().min(text.len()) >= LEAST_PART && (text.contains(&name) || name.contains(&text))
    };
    names.iter().filter(fits).max_by_key(|name| name.len()).copied()
}
