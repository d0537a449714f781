//! Meaning of a family's table of settings: a row maps a key of `config.json` to a field of the
//! decoder, and is used for reading and writing.

use bridge_core::config::Activation;
use serde_json::{Map, Value, json};

use super::error::HfError;
use super::fields::{Fields, activation, activation_name, named_activation};
use crate::decoder::DecoderConfig;

/// A field of the decoder.
type Field<T> = fn(&mut DecoderConfig) -> &mut T;

/// The size without its key.
pub(crate) enum Absent {
    /// The key is required.
    Refused,
    /// This size.
    Usual(usize),
    /// A size that follows from other keys, and from fields that earlier rows have set.
    From(fn(&Fields, &DecoderConfig) -> Result<usize, HfError>),
}

/// One row of a family's table. Rows are read in their order.
pub(crate) enum Setting {
    /// An integer of at least 1.
    Size(&'static str, Field<usize>, Absent),
    /// An integer of at least 0.
    Count(&'static str, Field<usize>, usize),
    /// Number of key/value groups if `num_key_value_heads` is absent: after the row of that key,
    /// for which both absence and null mean one group a head.
    KeyValueHeads(usize),
    /// A number.
    Number(&'static str, Field<f64>, f64),
    /// A number or null, which means that the model has none, as does absence without a default.
    NumberOrNone(&'static str, Field<Option<f64>>, Option<f64>),
    /// A switch.
    Switch(&'static str, Field<bool>, bool),
    /// A switch for something else than a boolean field: its value without the key, a test of the
    /// decoder, and the change that a value means.
    Flag(&'static str, bool, fn(&DecoderConfig) -> bool, fn(&mut DecoderConfig, bool)),
    /// The name of a non-linearity.
    Activation(&'static str, Field<Activation>, Activation),
    /// The same where the family has its own name for its default non-linearity, which is used if
    /// the key is absent.
    NamedActivation(&'static str, Field<Activation>, &'static str),
    /// Value of every model of the family, without a key.
    Always(fn(&mut DecoderConfig)),
    /// A key for features that are not implemented: all values but one are refused, and the key is
    /// not written.
    Only(&'static str, fn() -> Value),
    /// Keys that follow from others, or that models of the family do not read.
    Unused(&'static [&'static str]),
    /// A rule that the keys must follow.
    Rule(fn(&Fields, &DecoderConfig) -> Result<(), HfError>),
    /// Keys that say something together.
    Keys {
        /// Sets fields of the decoder.
        read: fn(&Fields, &mut DecoderConfig) -> Result<(), HfError>,
        /// Writes the keys.
        write: fn(&DecoderConfig, &mut Map<String, Value>),
    },
    /// The same by a rule with values of its own, such as those of absent keys.
    Group(&'static dyn KeyGroup),
    /// Rows that several families have.
    Rows(&'static [Setting]),
}

/// Keys that say something together, with the values of absent keys. See [`Setting::Group`].
pub(crate) trait KeyGroup: Sync {
    /// Sets fields of the decoder.
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError>;
    /// Writes the keys.
    fn write(&self, config: &DecoderConfig, settings: &mut Map<String, Value>);
}

/// A size that must be there.
pub(crate) const fn size(key: &'static str, field: Field<usize>) -> Setting {
    Setting::Size(key, field, Absent::Refused)
}

/// A size that may be absent.
pub(crate) const fn size_or(key: &'static str, field: Field<usize>, usual: usize) -> Setting {
    Setting::Size(key, field, Absent::Usual(usual))
}

/// A size that follows from others where its key is absent.
pub(crate) const fn size_from(
    key: &'static str,
    field: Field<usize>,
    absent: fn(&Fields, &DecoderConfig) -> Result<usize, HfError>,
) -> Setting {
    Setting::Size(key, field, Absent::From(absent))
}

const KEY_VALUE_HEADS: &str = "num_key_value_heads";

/// Query heads share keys and values in equal groups.
pub(crate) fn groups_divide_heads(fields: &Fields, config: &DecoderConfig) -> Result<(), HfError> {
    let (heads, groups) = (config.num_attention_heads, config.num_query_groups);
    let expected = format!("a divisor of num_attention_heads ({heads})");
    fields.require(heads.is_multiple_of(groups), KEY_VALUE_HEADS, &groups.to_string(), &expected)
}

/// The usual factor on attention scores, which no key says.
pub(crate) const USUAL_SOFTMAX_SCALE: Setting = Setting::Always(|c| c.softmax_scale = usual_softmax_scale(c));

/// One over the square root of the head size.
pub(crate) fn usual_softmax_scale(config: &DecoderConfig) -> f64 {
    1.0 / (config.kv_channels as f64).sqrt()
}

/// The number with the fewest digits that means `value`. But for rounding it is `about`.
pub(crate) fn as_said(value: f64, meaning: impl Fn(f64) -> f64, about: f64) -> f64 {
    let rounded = (0..16).filter_map(|digits| format!("{about:.digits$e}").parse().ok());
    let beside = [about, about.next_up(), about.next_down()];
    rounded.chain(beside).find(|number| meaning(*number) == value).unwrap_or(about)
}

/// The activation under `key`, which has parameters only in a family whose usual one has.
fn known_activation(fields: &Fields, key: &str, usual: Activation) -> Result<Activation, HfError> {
    let found = activation(fields, key, usual)?;
    let expected = "another: this family has no names for the slopes of xielu";
    fields.require(found != Activation::Xielu || usual == Activation::Xielu, key, "\"xielu\"", expected)?;
    Ok(found)
}

impl Setting {
    /// Sets the row's fields of `config` to the values of the file.
    pub fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        match self {
            Self::Size(key, field, absent) => {
                *field(config) = match (fields.size(key)?, absent) {
                    (Some(size), _) => size,
                    (None, Absent::Usual(size)) => *size,
                    (None, Absent::From(absent)) => absent(fields, config)?,
                    (None, Absent::Refused) => return Err(fields.missing(key, "an integer of at least 1")),
                }
            }
            Self::Count(key, field, absent) => *field(config) = fields.count(key)?.unwrap_or(*absent),
            Self::KeyValueHeads(absent) => {
                if !fields.has(KEY_VALUE_HEADS) {
                    config.num_query_groups = *absent;
                    groups_divide_heads(fields, config)?;
                }
            }
            Self::Number(key, field, absent) => *field(config) = fields.number(key)?.unwrap_or(*absent),
            Self::NumberOrNone(key, field, absent) => {
                *field(config) = if fields.has(key) { fields.number(key)? } else { *absent }
            }
            Self::Switch(key, field, absent) => *field(config) = fields.bool(key)?.unwrap_or(*absent),
            Self::Flag(key, absent, _, set) => set(config, fields.bool(key)?.unwrap_or(*absent)),
            Self::Activation(key, field, absent) => *field(config) = known_activation(fields, key, *absent)?,
            Self::NamedActivation(key, field, usual) => {
                *field(config) = known_activation(fields, key, named_activation(usual))?
            }
            Self::Always(set) => set(config),
            Self::Only(key, expected) => fields.only(key, &expected())?,
            Self::Unused(keys) => keys.iter().for_each(|key| fields.ask(key)),
            Self::Rule(check) => check(fields, config)?,
            Self::Keys { read, .. } => read(fields, config)?,
            Self::Group(group) => group.read(fields, config)?,
            Self::Rows(rows) => rows.iter().try_for_each(|row| row.read(fields, config))?,
        }
        Ok(())
    }

    /// Writes the row's keys. `config` is not changed.
    pub fn write(&self, config: &mut DecoderConfig, settings: &mut Map<String, Value>) {
        let (key, value) = match self {
            Self::Size(key, field, _) => (key, json!(*field(config))),
            Self::Count(key, field, _) => (key, json!(*field(config))),
            Self::Number(key, field, _) => (key, json!(*field(config))),
            Self::NumberOrNone(key, field, _) => (key, json!(*field(config))),
            Self::Switch(key, field, _) => (key, json!(*field(config))),
            Self::Flag(key, _, is_on, _) => (key, json!(is_on(config))),
            Self::Activation(key, field, _) => (key, json!(activation_name(*field(config)))),
            Self::NamedActivation(key, field, usual) => {
                let value = *field(config);
                let name = if value == named_activation(usual) { usual } else { activation_name(value) };
                (key, json!(name))
            }
            Self::Always(_) | Self::Only(..) | Self::Unused(_) | Self::Rule(_) | Self::KeyValueHeads(_) => return,
            Self::Keys { write, .. } => return write(config, settings),
            Self::Group(group) => return group.write(config, settings),
            Self::Rows(rows) => return rows.iter().for_each(|row| row.write(config, settings)),
        };
        settings.insert((*key).to_owned(), value);
    }
}
