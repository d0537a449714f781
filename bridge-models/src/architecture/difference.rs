//! Fields of a decoder that an export or a `[model]` section would lose: both are read back and
//! compared.

use serde_json::Value;

use super::config::DecoderConfig;

/// A field in which two decoders differ.
#[derive(Debug)]
pub(crate) struct Difference {
    /// Dotted name.
    pub field: String,
    /// Value in the first.
    pub ours: String,
    /// Value in the second.
    pub theirs: String,
}

impl DecoderConfig {
    /// The first field in which this decoder differs from another.
    pub(crate) fn difference(&self, other: &Self) -> Option<Difference> {
        let value = |config: &Self| serde_json::to_value(config).expect("a configuration is plain data");
        let found = difference("", &value(self), &value(other));
        // NaNs are written alike and equal nothing.
        let not_a_number = || Difference { field: "a number".into(), ours: "NaN".into(), theirs: "a number".into() };
        found.or_else(|| (self != other).then(not_a_number))
    }
}

fn difference(path: &str, ours: &Value, theirs: &Value) -> Option<Difference> {
    let (Value::Object(left), Value::Object(right)) = (ours, theirs) else {
        let (field, ours, theirs) = (path.to_owned(), ours.to_string(), theirs.to_string());
        return (ours != theirs).then_some(Difference { field, ours, theirs });
    };
    let names = left.keys().chain(right.keys().filter(|name| !left.contains_key(*name)));
    names.into_iter().find_map(|name| {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        difference(&path, left.get(name).unwrap_or(&Value::Null), right.get(name).unwrap_or(&Value::Null))
    })
}
