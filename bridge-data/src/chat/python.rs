//! What Hugging Face's templates expect of Python and of `transformers`, besides Jinja itself.

use std::fmt::Write;
use std::sync::Arc;

use ahash::AHashMap;
use minijinja::value::{Enumerator, Kwargs, Object, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::{budget, charged, printed};

/// Adds Python's methods of strings, lists and dictionaries, its way to print, and the functions that `transformers` adds.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(budget::method);
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", printed::printed);
    environment.add_filter(charged::PRINTED, printed::printed);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| {
        let mut text = String::new();
        // A format that means nothing is an error of its own, not a panic.
        write!(text, "{}", chrono::Local::now().format(&format)).map_err(|_| {
            Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {format:?} is not a format"))
        })?;
        Ok::<_, Error>(text)
    });
    environment.set_formatter(|out, state, value| {
        budget::charge_for(value)?;
        match value.kind() {
            // Errors within values, and what is undefined where that is an error.
            ValueKind::String | ValueKind::Undefined | ValueKind::Invalid => {
                minijinja::escape_formatter(out, state, value)?;
            }
            _ => out.write_str(&printed::text(value)?)?,
        }
        Ok(())
    });
}

/// A dictionary that keeps the order of its keys, as Python's do.
#[derive(Debug)]
struct Dictionary {
    fields: Vec<(String, Value)>,
    /// The places of the names, where looking at all of them takes longer.
    places: AHashMap<String, usize>,
}

impl Object for Dictionary {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let key = key.as_str()?;
        let at = match self.places.is_empty() {
            true => self.fields.iter().position(|(name, _)| name == key),
            false => self.places.get(key).copied(),
        };
        at.map(|at| self.fields[at].1.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.fields.iter().map(|(name, _)| Value::from(name.as_str())).collect())
    }
}

/// A dictionary of these fields, as a template reads it.
pub(super) fn dictionary(fields: Vec<(String, Value)>) -> Value {
    const FEW: usize = 16;
    let is_large = fields.len() > FEW;
    let places = fields.iter().enumerate().filter(|_| is_large).map(|(at, (name, _))| (name.clone(), at)).collect();
    Value::from_object(Dictionary { fields, places })
}

/// Bytes of a value, about.
pub(super) fn size_of(json: &Json) -> u64 {
    16 + match json {
        Json::String(text) => text.len() as u64,
        Json::Array(items) => items.iter().map(size_of).sum(),
        Json::Object(fields) => fields.iter().map(|(name, value)| name.len() as u64 + size_of(value)).sum(),
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
    }
}

/// Whether a text anywhere in a value holds one of `characters`.
pub(super) fn has_any(json: &Json, characters: &[char]) -> bool {
    let holds = |text: &str| characters.iter().any(|character| text.contains(*character));
    match json {
        Json::String(text) => holds(text),
        Json::Array(items) => items.iter().any(|item| has_any(item, characters)),
        Json::Object(fields) => fields.iter().any(|(name, value)| holds(name) || has_any(value, characters)),
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
    }
}

/// A value as a template reads it.
pub(super) fn value_of(json: &Json) -> Value {
    match json {
        Json::Object(fields) => dictionary_of(fields.iter()),
        Json::Array(items) => items.iter().map(value_of).collect(),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => Value::from_serialize(json),
    }
}

/// Names of a message's reasoning. Templates read one of the first two.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A message as transformers passes it to templates: without keys whose value is null, of which they would write `None`, and
/// with its reasoning under the two names that templates read.
pub(super) fn message_of(message: &Json) -> Value {
    let Json::Object(fields) = message else { return value_of(message) };
    let filled = || fields.iter().filter(|(_, value)| !value.is_null());
    let [content, thinking, _] = REASONING;
    let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name).filter(|value| !value.is_null())) else {
        return dictionary_of(filled());
    };
    let mut entries =
        vec![(thinking.to_owned(), value_of(fields.get(thinking).filter(|v| !v.is_null()).unwrap_or(reasoning)))];
    for (name, value) in filled().filter(|(name, _)| *name != thinking) {
        entries.push((name.clone(), value_of(if name == content { reasoning } else { value })));
    }
    if entries.iter().all(|(name, _)| name != content) {
        entries.push((content.to_owned(), value_of(reasoning)));
    }
    dictionary(entries)
}

fn dictionary_of<'j>(fields: impl Iterator<Item = (&'j String, &'j Json)>) -> Value {
    dictionary(fields.map(|(name, value)| (name.clone(), value_of(value))).collect())
}

/// An error as one line: a template's own message (`raise_exception`), or what Jinja says with the line.
pub(super) fn describe(error: &Error) -> String {
    match (error.detail(), error.line()) {
        (Some(detail), None) => detail.to_owned(),
        (Some(detail), Some(_)) if error.kind() == ErrorKind::InvalidOperation => detail.to_owned(),
        (Some(detail), Some(line)) => format!("{}: {detail} (line {line} of the template)", error.kind()),
        (None, Some(line)) => format!("{} (line {line} of the template)", error.kind()),
        (None, None) => error.kind().to_string(),
    }
}

/// `json.dumps(value, ensure_ascii=False)`, with the arguments that templates use.
fn to_json(value: &Value, positional: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    let failed = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let indent = match positional.first() {
        Some(indent) => Some(usize::try_from(indent.clone())?),
        None => options.get("indent")?,
    };
    let style = Style {
        indent,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        separators: options.get::<Option<Vec<String>>>("separators")?,
    };
    options.assert_all_used()?;
    let json = serde_json::to_value(value).map_err(failed)?;
    // The indentation of a line may be much longer than what it holds.
    let depth = style.indent.map_or(0, |indent| indent as u64 * NESTED);
    budget::charge(depth.saturating_mul(parts(&json)))?;
    let mut text = String::new();
    style.write(&json, 0, &mut text);
    Ok(text)
}

/// Levels of indentation that a value is charged for.
const NESTED: u64 = 8;

/// Values in a value.
fn parts(json: &Json) -> u64 {
    1 + match json {
        Json::Array(items) => items.iter().map(parts).sum::<u64>(),
        Json::Object(fields) => fields.values().map(parts).sum::<u64>(),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => 0,
    }
}

/// How Python writes JSON.
struct Style {
    indent: Option<usize>,
    sort_keys: bool,
    ensure_ascii: bool,
    separators: Option<Vec<String>>,
}

impl Style {
    fn separator(&self, at: usize, usual: &'static str) -> &str {
        self.separators.as_ref().and_then(|separators| separators.get(at)).map_or(usual, String::as_str)
    }

    fn write(&self, value: &Json, depth: usize, text: &mut String) {
        match value {
            Json::Array(items) => self.list(('[', ']'), items.iter(), depth, text, |item, text| {
                self.write(item, depth + 1, text);
            }),
            Json::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if self.sort_keys {
                    fields.sort_by_key(|(key, _)| *key);
                }
                self.list(('{', '}'), fields.into_iter(), depth, text, |(key, value), text| {
                    self.string(key, text);
                    text.push_str(self.separator(1, ": "));
                    self.write(value, depth + 1, text);
                });
            }
            Json::String(string) => self.string(string, text),
            Json::Number(number) if number.is_f64() => {
                text.push_str(&number.as_f64().map_or_else(|| number.to_string(), printed::float));
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => text.push_str(&value.to_string()),
        }
    }

    fn list<T>(
        &self,
        (open, close): (char, char),
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        text: &mut String,
        mut write: impl FnMut(T, &mut String),
    ) {
        let line = |depth: usize| self.indent.map(|indent| format!("\n{}", " ".repeat(indent * depth)));
        let is_empty = items.len() == 0;
        text.push(open);
        for (number, item) in items.enumerate() {
            if number > 0 {
                text.push_str(self.separator(0, if self.indent.is_some() { "," } else { ", " }));
            }
            text.push_str(&line(depth + 1).unwrap_or_default());
            write(item, text);
        }
        text.push_str(&line(depth).filter(|_| !is_empty).unwrap_or_default());
        text.push(close);
    }

    fn string(&self, string: &str, text: &mut String) {
        let quoted = Json::String(string.to_owned()).to_string();
        if !self.ensure_ascii {
            text.push_str(&quoted);
            return;
        }
        for character in quoted.chars() {
            if character.is_ascii() {
                text.push(character);
            } else {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
}
