//! Python objects as upstream writes them, and the corresponding values: functions and dtypes
//! (`_call_: false`), enums (`_args_`, newer versions with `_name_`) and partial functions.

use super::super::node::{Data, Entry, Node};
use super::entries::TARGET;

/// The kind of a node.
pub(super) enum Plain {
    /// A plain value.
    Same,
    /// An object with a corresponding value.
    Value(Data),
    /// An object of this class, without a corresponding value.
    Unknown(String),
}

/// Functions that `model.activation_func` has names for.
const ACTIVATIONS: &[(&str, &str)] = &[
    ("torch.nn.functional.silu", "silu"),
    ("torch.nn.functional.gelu", "gelu"),
    ("torch._C._nn.gelu", "gelu"),
    ("torch.nn.functional.relu", "relu"),
    ("torch.relu", "relu"),
    ("megatron.core.activations.squared_relu", "squared_relu"),
    ("megatron.core.activations.quick_gelu", "quick_gelu"),
    ("megatron.core.activations.fast_gelu", "gelu_tanh"),
    ("megatron.core.fusions.fused_bias_geglu.quick_gelu", "quick_gelu"),
];

/// Enums of versions that write no name, with the names of their values.
const ENUMS: &[(&str, &[(i128, &str)])] = &[
    (
        "megatron.core.transformer.enums.AttnBackend",
        &[(1, "flash"), (2, "fused"), (3, "unfused"), (4, "local"), (5, "auto")],
    ),
    ("signal.Signals", &[(1, "SIGHUP"), (2, "SIGINT"), (10, "SIGUSR1"), (12, "SIGUSR2"), (15, "SIGTERM")]),
];

/// The value of the setting `key` for a node; items of lists are converted, too.
pub(super) fn plain(key: &str, node: &Node) -> Plain {
    match &node.data {
        Data::List(items) => list(key, items),
        _ => node.get(TARGET).and_then(Node::text).map_or(Plain::Same, |target| object(key, target, node)),
    }
}

fn list(key: &str, items: &[Node]) -> Plain {
    let mut plain_items = Vec::new();
    for item in items {
        match plain(key, item) {
            Plain::Same => plain_items.push(item.clone()),
            Plain::Value(data) => plain_items.push(Node { data, location: item.location.clone() }),
            Plain::Unknown(target) => return Plain::Unknown(target),
        }
    }
    if plain_items == items { Plain::Same } else { Plain::Value(Data::List(plain_items)) }
}

fn object(key: &str, target: &str, node: &Node) -> Plain {
    let name = node.get("_name_").and_then(Node::text).map(str::to_owned);
    let named = name.or_else(|| argument(node).and_then(|argument| enum_name(target, argument)));
    let value = if target.starts_with("torch.") && is_dtype(target) {
        Some(target.to_owned())
    } else if key == "model.activation_func" {
        activation(target, node)
    } else {
        named
    };
    value.map_or_else(|| Plain::Unknown(target.to_owned()), |text| Plain::Value(Data::String(text)))
}

fn is_dtype(target: &str) -> bool {
    let kinds = ["float", "bfloat", "half", "double", "uint", "int"];
    target.strip_prefix("torch.").is_some_and(|name| kinds.iter().any(|kind| name.starts_with(kind)))
}

fn activation(target: &str, node: &Node) -> Option<String> {
    let name = ACTIVATIONS.iter().find(|(function, _)| *function == target)?.1;
    let is_tanh = node.get("approximate").and_then(Node::text) == Some("tanh");
    let name = if name == "gelu" && is_tanh { "gelu_tanh" } else { name };
    Some(name.to_owned())
}

/// The one argument of an enum's constructor.
fn argument(node: &Node) -> Option<&Data> {
    match &node.get("_args_")?.data {
        Data::List(items) => items.first().map(|item| &item.data),
        _ => None,
    }
}

/// Enums whose values are text become that text.
fn enum_name(target: &str, argument: &Data) -> Option<String> {
    match argument {
        Data::String(text) => Some(text.clone()),
        Data::Int(number) => {
            let (_, names) = ENUMS.iter().find(|(class, _)| *class == target)?;
            names.iter().find(|(value, _)| value == number).map(|(_, name)| (*name).to_owned())
        }
        _ => None,
    }
}

/// Moves the fields of an inner table up; newer model classes keep the transformer's fields in a
/// table of its own.
pub(super) fn flatten(entries: &mut Vec<Entry>, name: &str) {
    let Some(index) = entries.iter().position(|entry| entry.key == name) else { return };
    let Data::Table(inner) = entries.remove(index).node.data else { return };
    for entry in inner {
        if !entry.key.starts_with('_') && entries.iter().all(|outer| outer.key != entry.key) {
            entries.push(entry);
        }
    }
}
