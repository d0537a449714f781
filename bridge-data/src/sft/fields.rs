//! Fields of a record, with a list of the used ones. Unused fields are reported when all records
//! are read.

use serde_json::{Map, Value};

pub(super) use crate::chat::arguments::is_nothing;

/// Fields of a record.
pub(super) struct Fields<'r> {
    fields: &'r Map<String, Value>,
    used: Vec<&'r str>,
    /// Names of unused fields within fields, such as `messages[].id`.
    within: Vec<String>,
}

impl<'r> Fields<'r> {
    /// # Errors
    /// A record that is not an object, as a sentence.
    pub(super) fn survey(record: &'r Value) -> Result<Self, String> {
        let fields = record.as_object().ok_or("expected an object")?;
        Ok(Self { fields, used: Vec::new(), within: Vec::new() })
    }

    /// All fields.
    pub(super) fn all(&self) -> &'r Map<String, Value> {
        self.fields
    }

    /// A field, or null if the record has no such field. The field does not count as used.
    pub(super) fn look_at(&self, name: &str) -> &'r Value {
        self.fields.get(name).unwrap_or(&Value::Null)
    }

    /// A field, or null if the record has no such field. The field counts as used.
    pub(super) fn take(&mut self, name: &str) -> &'r Value {
        match self.fields.get_key_value(name) {
            Some((name, value)) => {
                self.used.push(name);
                value
            }
            None => &Value::Null,
        }
    }

    /// The text of a field that is used from now on, if it is text.
    pub(super) fn take_text(&mut self, name: &str) -> Option<&'r str> {
        let text = self.look_at(name).as_str()?;
        self.take(name);
        Some(text)
    }

    /// Notes a part of a field that nothing used.
    pub(super) fn leave(&mut self, part: String) {
        if !self.within.contains(&part) {
            self.within.push(part);
        }
    }

    /// Names of the fields, for messages.
    pub(super) fn names(&self) -> String {
        self.fields.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Names of fields and parts of fields that hold something and were not used.
    pub(super) fn unused(self) -> Vec<String> {
        let Self { fields, used, within } = self;
        let is_unused = |(name, value): &(&String, &Value)| !is_nothing(value) && !used.contains(&name.as_str());
        let unused = fields.iter().filter(is_unused).map(|(name, _)| name.clone());
        unused.chain(within).collect()
    }
}
