//! Values of the wrong type that are right but for their form: `"1000"` for 1000, 1e5 for 100000, `"yes"` for true.

use super::super::node::{Data, Node};
use super::super::overrides::value_of;
use super::super::spec::TypeSpec;

/// The same value in a form that the type accepts.
pub(super) fn converted(node: &Node, spec: &TypeSpec) -> Option<Node> {
    forms(node).into_iter().find(|form| form != node && spec.accepts(form))
}

fn forms(node: &Node) -> Vec<Node> {
    let mut forms = match &node.data {
        Data::String(text) => of_text(text),
        Data::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => vec![Data::Int(*number as i128).into()],
        Data::Int(number @ (0 | 1)) => vec![Data::Bool(*number == 1).into()],
        // A list of numbers is a text of shares elsewhere, and one item is itself.
        Data::List(items) => {
            let texts: Vec<_> = items.iter().map(Node::to_inline).collect();
            let only = (items.len() == 1).then(|| items[0].clone());
            only.into_iter().chain([Node::string(texts.join(","))]).collect()
        }
        Data::Unset | Data::Null | Data::Bool(_) | Data::Int(_) | Data::Float(_) | Data::Table(_) => Vec::new(),
    };
    forms.extend(forms.clone().iter().filter_map(as_integer).collect::<Vec<_>>());
    forms.push(Data::List(vec![node.clone()]).into());
    if !matches!(node.data, Data::String(_) | Data::List(_) | Data::Table(_)) {
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
    [value_of(&number), value_of(text)].into_iter().chain(scaled).chain(spoken).collect()
}
