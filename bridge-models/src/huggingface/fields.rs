//! Typed reading of `config.json`: errors name the key, the found and the expected value. `null`
//! counts as absent, except for booleans, where it is false, as in Python.

use std::cell::RefCell;
use std::collections::BTreeSet;

use bridge_core::config::Activation;
use serde_json::{Map, Value};

use super::error::HfError;
use super::json;

/// The top level of a `config.json`, or a table in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    /// Path of the table, with a trailing dot; empty at the top.
    prefix: &'a str,
    values: &'a Map<String, Value>,
    /// Record of the requested keys.
    read_keys: Option<&'a ReadKeys>,
}

/// Keys that were read.
pub(crate) type ReadKeys = RefCell<BTreeSet<String>>;

impl<'a> Fields<'a> {
    pub fn new(values: &'a Map<String, Value>) -> Self {
        Self { prefix: "", values, read_keys: None }
    }

    /// [`Self::new`] that records in `read_keys` which keys of the top level are read.
    pub fn recording(values: &'a Map<String, Value>, read_keys: &'a ReadKeys) -> Self {
        Self { read_keys: Some(read_keys), ..Self::new(values) }
    }

    /// A table that is reported with `prefix`.
    pub fn from_table(prefix: &'a str, values: &'a Map<String, Value>) -> Self {
        Self { prefix, values, read_keys: None }
    }

    /// All keys with their values.
    pub fn entries(&self) -> impl Iterator<Item = (String, Value)> + use<'a> {
        self.values.iter().map(|(key, value)| (key.clone(), value.clone()))
    }

    /// The value of a key that is there and not null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.ask(key);
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// The value of a key. Does not record that the key was read.
    pub fn peek(&self, key: &str) -> Option<&'a Value> {
        self.values.get(key)
    }

    /// True if `key` is present, null or not: for families in which an absent key differs from
    /// null.
    pub fn has(&self, key: &str) -> bool {
        self.ask(key);
        self.values.contains_key(key)
    }

    /// Records that a key was read.
    pub fn ask(&self, key: &str) {
        if let Some(read_keys) = self.read_keys {
            read_keys.borrow_mut().insert(key.to_owned());
        }
    }

    /// The table under `key`, whose keys are reported with `prefix`.
    pub fn table(&self, key: &str, prefix: &'a str) -> Result<Option<Fields<'a>>, HfError> {
        self.typed(key, "a table", Value::as_object)
            .map(|values| values.map(|values| Fields::from_table(prefix, values)))
    }

    /// [`Self::table`], but `None` where it is empty: transformers takes tables whose truth value
    /// is false for absent.
    pub fn filled_table(&self, key: &str, prefix: &'a str) -> Result<Option<Fields<'a>>, HfError> {
        self.table(key, prefix).map(|table| table.filter(|table| !table.values.is_empty()))
    }

    pub fn string(&self, key: &str) -> Result<Option<&'a str>, HfError> {
        self.typed(key, "a string", Value::as_str)
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, HfError> {
        let value = self.typed(key, "true or false", Value::as_bool)?;
        Ok(value.or(self.has(key).then_some(false)))
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>, HfError> {
        self.typed(key, "a number", json::number)
    }

    /// A size, which is at least 1.
    pub fn size(&self, key: &str) -> Result<Option<usize>, HfError> {
        self.typed(key, "an integer of at least 1", |value| count(value).filter(|size| *size > 0))
    }

    /// A number of things, of which there may be none.
    pub fn count(&self, key: &str) -> Result<Option<usize>, HfError> {
        self.typed(key, "an integer of at least 0", count)
    }

    /// A required number.
    pub fn required_number(&self, key: &str) -> Result<f64, HfError> {
        self.number(key)?.ok_or_else(|| self.missing(key, "a number"))
    }

    /// A required list of numbers.
    pub fn numbers(&self, key: &str) -> Result<Vec<f64>, HfError> {
        let expected = "a list of numbers";
        let numbers = self.typed(key, expected, |value| value.as_array()?.iter().map(Value::as_f64).collect())?;
        numbers.ok_or_else(|| self.missing(key, expected))
    }

    /// A list of numbers of layers.
    pub fn layers(&self, key: &str) -> Result<Option<Vec<usize>>, HfError> {
        self.typed(key, "a list of numbers of layers", |value| value.as_array()?.iter().map(count).collect())
    }

    /// Refuses any value of `key` but `expected` (and absence).
    pub fn only(&self, key: &str, expected: &Value) -> Result<(), HfError> {
        let off = (expected.is_boolean() && self.has(key)).then_some(&OFF);
        match self.get(key).or(off) {
            Some(found) if found != expected => {
                Err(self.error(key, &found.to_string(), &format!("{expected}: anything else is not implemented")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses `found` under `key` unless a condition holds.
    pub fn require(&self, is_met: bool, key: &str, found: &str, expected: &str) -> Result<(), HfError> {
        if is_met { Ok(()) } else { Err(self.error(key, found, expected)) }
    }

    /// An error about `key`.
    pub fn error(&self, key: &str, found: &str, expected: &str) -> HfError {
        HfError::Setting {
            path: "config.json".into(),
            key: format!("{}{key}", self.prefix),
            found: found.to_owned(),
            expected: expected.to_owned(),
        }
    }

    /// An error about a required key that is not there.
    pub fn missing(&self, key: &str, expected: &str) -> HfError {
        self.error(key, "no value", expected)
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, HfError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.error(key, &value.to_string(), expected)),
        }
    }
}

fn count(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// Value of null for a switch.
static OFF: Value = Value::Bool(false);

/// The activations with their names in `config.json`; the first name of each is the one written.
const ACTIVATIONS: [(&str, Activation); 11] = {
    use Activation::{Gelu, GeluTanh, QuickGelu, Relu, Silu, SquaredRelu, Xielu};
    [
        ("gelu_new", GeluTanh),
        ("gelu_pytorch_tanh", GeluTanh),
        ("gelu_fast", GeluTanh),
        ("gelu", Gelu),
        ("gelu_python", Gelu),
        ("silu", Silu),
        ("swish", Silu),
        ("relu", Relu),
        ("relu2", SquaredRelu),
        ("quick_gelu", QuickGelu),
        ("xielu", Xielu),
    ]
};

/// The activation under `key`.
pub(crate) fn activation(fields: &Fields, key: &str, default: Activation) -> Result<Activation, HfError> {
    let Some(name) = fields.string(key)? else { return Ok(default) };
    activation_called(fields, key, name)
}

/// The activation called `name`, which `key` says.
pub(crate) fn activation_called(fields: &Fields, key: &str, name: &str) -> Result<Activation, HfError> {
    match ACTIVATIONS.iter().find(|(known, _)| *known == name) {
        Some((_, activation)) => Ok(*activation),
        None => {
            let known: Vec<&str> = ACTIVATIONS.iter().map(|(name, _)| *name).collect();
            Err(fields.error(key, &format!("\"{name}\""), &format!("one of {}", known.join(", "))))
        }
    }
}

/// The activation called `name` in `config.json`. Panics if there is no activation of this name.
pub(crate) fn named_activation(name: &str) -> Activation {
    let known = ACTIVATIONS.iter().find(|(known, _)| *known == name);
    known.map(|(_, activation)| *activation).expect("a family's usual activation has a known name")
}

/// The name `config.json` has for an activation.
pub(crate) fn activation_name(activation: Activation) -> &'static str {
    let known = ACTIVATIONS.iter().find(|(_, known)| *known == activation);
    known.map(|(name, _)| *name).expect("the table has every activation")
}
