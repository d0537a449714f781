//! The located value tree into which TOML, YAML, JSON and command-line overrides are read, and to
//! which sections are written. Sections and file formats do not belong here.

use std::fmt;
use std::sync::Arc;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::secrets::{redacted, redacted_argument};

/// Place of a value: a file with line and column, or a command-line argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Location {
    /// File name, or `command line: key=value`.
    #[serde(serialize_with = "serialize_source")]
    pub source: Arc<str>,
    /// 1-based line.
    pub line: Option<usize>,
    /// 1-based column, in characters.
    pub column: Option<usize>,
}

fn serialize_source<S: Serializer>(source: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(source)
}

/// Prefix of the source of an override.
const COMMAND_LINE: &str = "command line: ";

impl Location {
    /// The location of a command-line argument.
    pub(crate) fn of_argument(argument: &str) -> Self {
        Self { source: format!("{COMMAND_LINE}{}", redacted_argument(argument)).into(), line: None, column: None }
    }

    /// A whole file.
    pub(crate) fn of_file(path: &std::path::Path) -> Self {
        Self { source: path.display().to_string().into(), line: None, column: None }
    }

    /// True if this is a command-line argument.
    pub(crate) fn is_command_line(&self) -> bool {
        self.source.starts_with(COMMAND_LINE)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(column) = self.column {
            write!(f, ":{column}")?;
        }
        Ok(())
    }
}

/// A value and where it came from.
#[derive(Debug, Clone)]
pub struct Node {
    /// The value.
    pub data: Data,
    /// Place of the value; `None` for values made by code.
    pub location: Option<Location>,
}

/// A value of the tree.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// `null` on the command line: the setting returns to its default, or to null if it may be
    /// null.
    Unset,
    /// An explicit null.
    Null,
    /// true or false.
    Bool(bool),
    /// A whole number; wide enough that range errors can quote the written number.
    Int(i128),
    /// A number with a fraction or exponent, infinite or NaN.
    Float(f64),
    /// Text.
    String(String),
    /// An array.
    List(Vec<Node>),
    /// A table, in the order written.
    Table(Vec<Entry>),
}

/// One `key = value` of a table.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The name.
    pub key: String,
    /// Place of the name.
    pub key_location: Option<Location>,
    /// The value.
    pub node: Node,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.node == other.node
    }
}

/// Two nodes are equal if their values are; their locations do not matter.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.data == other.data
    }
}

impl From<Data> for Node {
    fn from(data: Data) -> Self {
        Self { data, location: None }
    }
}

impl Entry {
    /// An entry made by code.
    pub fn new(key: impl Into<String>, node: Node) -> Self {
        Self { key: key.into(), key_location: None, node }
    }
}

impl Node {
    /// Null, made by code.
    pub fn null() -> Self {
        Data::Null.into()
    }

    /// Text, made by code.
    pub fn string(text: impl Into<String>) -> Self {
        Data::String(text.into()).into()
    }

    /// True if the value is null or unset.
    pub fn is_null(&self) -> bool {
        matches!(self.data, Data::Null | Data::Unset)
    }

    /// True if the value is null, or a list or table without content.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.data {
            Data::List(items) => items.is_empty(),
            Data::Table(entries) => entries.is_empty(),
            _ => self.is_null(),
        }
    }

    /// True if the value is empty, false or 0.
    pub(crate) fn asks_for_nothing(&self) -> bool {
        self.is_empty() || self.data == Data::Bool(false) || self.number() == Some(0.0)
    }

    /// The text of a string.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.data {
            Data::String(text) => Some(text),
            _ => None,
        }
    }

    /// A whole or floating-point number.
    pub(crate) fn number(&self) -> Option<f64> {
        match self.data {
            Data::Int(value) => Some(value as f64),
            Data::Float(value) => Some(value),
            _ => None,
        }
    }

    /// The entries, when this is a table.
    pub fn entries(&self) -> Option<&[Entry]> {
        match &self.data {
            Data::Table(entries) => Some(entries),
            _ => None,
        }
    }

    /// The value under `key`, when this is a table that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        let entry = self.entries()?.iter().find(|entry| entry.key == key)?;
        Some(&entry.node)
    }

    /// The value under `key`, without the rest of the table.
    pub(crate) fn take(self, key: &str) -> Option<Self> {
        match self.data {
            Data::Table(entries) => entries.into_iter().find(|entry| entry.key == key).map(|entry| entry.node),
            _ => None,
        }
    }

    /// The value under a dotted path.
    pub fn get_path(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, key| node.get(key))
    }

    /// The type's name with a shortened rendering of the value, for "found" in messages.
    pub fn describe(&self) -> String {
        match &self.data {
            Data::Unset | Data::Null => "null".into(),
            Data::Bool(value) => format!("boolean {value}"),
            Data::Int(value) => format!("integer {value}"),
            Data::Float(value) => format!("float {value:?}"),
            Data::String(text) => {
                let safe = redacted(text);
                let shown: String = safe.chars().take(60).collect();
                let more = if shown.len() < safe.len() { "..." } else { "" };
                format!("string {shown:?}{more}")
            }
            Data::List(items) => format!("list of {}", items.len()),
            Data::Table(_) => "table".into(),
        }
    }

    /// The value in one line, as it would be written in TOML (`null` for null), without the secrets
    /// of URLs.
    pub fn to_inline(&self) -> String {
        match &self.data {
            Data::Unset | Data::Null => "null".into(),
            Data::Bool(value) => value.to_string(),
            Data::Int(value) => value.to_string(),
            Data::Float(value) => float_text(*value),
            Data::String(text) => toml::Value::String(redacted(text).into_owned()).to_string(),
            Data::List(items) => {
                let items: Vec<_> = items.iter().map(Node::to_inline).collect();
                format!("[{}]", items.join(", "))
            }
            Data::Table(entries) => {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|entry| format!("{} = {}", key_text(&entry.key), entry.node.to_inline()))
                    .collect();
                format!("{{{}}}", entries.join(", "))
            }
        }
    }

    /// The value as TOML's own type; null, which TOML lacks, becomes the string `"null"`.
    pub fn to_toml_value(&self) -> toml::Value {
        match &self.data {
            Data::Unset | Data::Null => toml::Value::String("null".into()),
            Data::Bool(value) => toml::Value::Boolean(*value),
            Data::Int(value) => match i64::try_from(*value) {
                Ok(value) => toml::Value::Integer(value),
                Err(_) => toml::Value::String(value.to_string()),
            },
            Data::Float(value) => toml::Value::Float(*value),
            Data::String(text) => toml::Value::String(text.clone()),
            Data::List(items) => toml::Value::Array(items.iter().map(Node::to_toml_value).collect()),
            Data::Table(entries) => toml::Value::Table(
                entries.iter().map(|entry| (entry.key.clone(), entry.node.to_toml_value())).collect(),
            ),
        }
    }

    /// The tree of a TOML value; dates become strings, since no setting is a date.
    pub fn from_toml_value(value: &toml::Value) -> Self {
        match value {
            toml::Value::Boolean(value) => Data::Bool(*value),
            toml::Value::Integer(value) => Data::Int(i128::from(*value)),
            toml::Value::Float(value) => Data::Float(*value),
            toml::Value::String(text) => Data::String(text.clone()),
            toml::Value::Datetime(date) => Data::String(date.to_string()),
            toml::Value::Array(items) => Data::List(items.iter().map(Self::from_toml_value).collect()),
            toml::Value::Table(table) => {
                Data::Table(table.iter().map(|(key, value)| Entry::new(key, Self::from_toml_value(value))).collect())
            }
        }
        .into()
    }
}

/// The shortest text that reads back as the same float, always recognisable as a float.
pub(crate) fn float_text(value: f64) -> String {
    if value.is_nan() {
        "nan".into()
    } else if value.is_infinite() {
        if value > 0.0 { "inf" } else { "-inf" }.into()
    } else {
        format!("{value:?}")
    }
}

/// A key as TOML writes it, quoted only when it must be.
pub(crate) fn key_text(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { key.to_owned() } else { toml::Value::String(key.to_owned()).to_string() }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.data {
            Data::Unset | Data::Null => serializer.serialize_none(),
            Data::Bool(value) => serializer.serialize_bool(*value),
            // 64-bit forms first: not every format knows 128-bit integers.
            Data::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
                (Ok(value), _) => serializer.serialize_i64(value),
                (_, Ok(value)) => serializer.serialize_u64(value),
                _ => serializer.serialize_i128(*value),
            },
            Data::Float(value) => serializer.serialize_f64(*value),
            Data::String(text) => serializer.serialize_str(text),
            Data::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(item)?;
                }
                list.end()
            }
            Data::Table(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for entry in entries {
                    map.serialize_entry(&entry.key, &entry.node)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a configuration value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Data::Bool(value).into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Data::Int(i128::from(value)).into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Data::Int(i128::from(value)).into())
    }

    fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
        Ok(Data::Int(value).into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Data::Float(value).into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::string(text))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::null())
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::null())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Data::List(items).into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, node)) = map.next_entry::<String, Node>()? {
            entries.push(Entry::new(key, node));
        }
        Ok(Data::Table(entries).into())
    }
}
