//! Writing a recipe as TOML, YAML or JSON. The text reads back as the same recipe, but for secrets.

use super::super::node::{Data, Entry, Node, float_text, key_text};
use super::super::raw::RawConfig;
use super::super::run_config::RunConfig;
use super::super::section::Section;
use super::super::sections::RecipeConfig;
use super::super::source::Format;

/// Amount of detail that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Every setting that is not null.
    All,
    /// Settings that differ from their defaults.
    NonDefault,
}

impl RecipeConfig {
    /// The recipe as text, without secrets.
    pub fn to_text(&self, format: Format, detail: Detail) -> String {
        let node = reduce(&self.to_node(), &Self::default().to_node(), detail).redacted();
        match format {
            Format::Toml => toml_text(&node),
            Format::Yaml => yaml_text(&node),
            Format::Json => {
                let text = serde_json::to_string_pretty(&node);
                text.unwrap_or_default() + "\n"
            }
        }
    }
}

impl RunConfig {
    /// The resolved configuration as TOML without secrets; reading and finalizing it gives a
    /// `RunConfig` that is equal but for those.
    pub fn to_toml(&self) -> String {
        self.to_text(Format::Toml, Detail::All)
    }

    /// The resolved configuration as text.
    pub fn to_text(&self, format: Format, detail: Detail) -> String {
        self.recipe().to_text(format, detail)
    }
}

impl RawConfig {
    /// Settings of the user, as TOML: everything that differs from the defaults.
    pub fn to_toml(&self) -> String {
        self.recipe().to_text(Format::Toml, Detail::NonDefault)
    }
}

/// Leaves out values that reading would fill in again: null if null is the default, and with
/// [`Detail::NonDefault`] every default.
fn reduce(node: &Node, default: &Node, detail: Detail) -> Node {
    let (Data::Table(entries), Some(_)) = (&node.data, default.entries()) else { return node.clone() };
    let absent = Node::null();
    let kept = entries.iter().filter_map(|entry| {
        let default = default.get(&entry.key).unwrap_or(&absent);
        let is_default = entry.node == *default;
        let is_table = entry.node.entries().is_some();
        let is_left_out = match detail {
            Detail::All => is_default && entry.node.is_null(),
            Detail::NonDefault => is_default,
        };
        if is_left_out {
            return None;
        }
        let inner = reduce(&entry.node, default, detail);
        let is_empty = is_table && inner.entries().is_some_and(<[Entry]>::is_empty);
        // An empty table has a meaning if the default is not a table.
        let says_nothing = is_empty && default.entries().is_some();
        (!says_nothing).then(|| Entry::new(&entry.key, inner))
    });
    Data::Table(kept.collect()).into()
}

fn toml_text(root: &Node) -> String {
    let mut text = String::new();
    toml_table(root.entries().unwrap_or_default(), "", &mut text);
    text
}

fn toml_table(entries: &[Entry], path: &str, text: &mut String) {
    // Plain values come first: after the header of a table they would belong to that table.
    for entry in entries.iter().filter(|entry| entry.node.entries().is_none()) {
        let value = toml_value(&entry.node);
        text.push_str(&format!("{} = {value}\n", key_text(&entry.key)));
    }
    for entry in entries {
        if let Data::Table(inner) = &entry.node.data {
            let key = key_text(&entry.key);
            let path = if path.is_empty() { key } else { format!("{path}.{key}") };
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&format!("[{path}]\n"));
            toml_table(inner, &path, text);
        }
    }
}

/// TOML has no null; the word `"null"` is read as null where null is allowed.
fn toml_value(node: &Node) -> String {
    match &node.data {
        Data::Null | Data::Unset => "\"null\"".into(),
        Data::List(items) => {
            let items: Vec<_> = items.iter().map(toml_value).collect();
            format!("[{}]", items.join(", "))
        }
        _ => node.to_inline(),
    }
}

fn yaml_text(root: &Node) -> String {
    let mut text = String::new();
    yaml_table(root.entries().unwrap_or_default(), 0, &mut text);
    if text.is_empty() {
        text.push_str("{}\n");
    }
    text
}

fn yaml_table(entries: &[Entry], indent: usize, text: &mut String) {
    for entry in entries {
        let key = json_string(&entry.key);
        let key = if key_text(&entry.key) == entry.key { &entry.key } else { &key };
        text.push_str(&format!("{:indent$}{key}:", ""));
        match &entry.node.data {
            Data::Table(inner) if !inner.is_empty() => {
                text.push('\n');
                yaml_table(inner, indent + 2, text);
            }
            _ => text.push_str(&format!(" {}\n", yaml_value(&entry.node))),
        }
    }
}

/// Values in flow style, which is JSON except for infinite and undefined numbers.
fn yaml_value(node: &Node) -> String {
    match &node.data {
        Data::Float(value) if !value.is_finite() => float_text(*value).replace("inf", ".inf").replace("nan", ".nan"),
        Data::Float(value) => float_text(*value),
        Data::String(text) => json_string(text),
        Data::List(items) => {
            let items: Vec<_> = items.iter().map(yaml_value).collect();
            format!("[{}]", items.join(", "))
        }
        Data::Table(entries) => {
            let entries: Vec<_> = entries
                .iter()
                .map(|entry| format!("{}: {}", json_string(&entry.key), yaml_value(&entry.node)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        _ => node.to_inline(),
    }
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
