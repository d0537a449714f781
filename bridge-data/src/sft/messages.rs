//! Messages as people write them, in the spelling that chat templates read.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::calls;
use super::fields::is_nothing;
use crate::chat::{ChatTemplate, arguments};

/// Other names of the roles, in lower case and with underscores.
const ROLES: [(&str, &[&str]); 4] = [
    ("user", &["human", "prompter", "customer"]),
    (
        "assistant",
        &["gpt", "chatgpt", "bing", "bard", "model", "bot", "ai", "function_call", "tool_call", "tool_calls"],
    ),
    ("system", &["developer"]),
    (
        "tool",
        &["function", "observation", "function_response", "tool_response", "tool_result", "tool_output", "ipython"],
    ),
];
/// Roles of an assistant's message that is calls alone.
const CALLERS: [&str; 3] = ["function_call", "tool_call", "tool_calls"];
/// Roles that templates of their families have beside the usual name.
const NATIVE: [&str; 2] = ["developer", "ipython"];

/// Names of a role and of a text in a message.
const ROLE_KEYS: [&str; 2] = ["role", "from"];
const CONTENT_KEYS: [&str; 4] = ["content", "value", "text", "refusal"];
/// Fields of an item that is two messages.
const TURN_KEYS: [(&str, &str); 5] =
    [("human", "assistant"), ("user", "assistant"), ("human", "gpt"), ("input", "output"), ("user", "bot")];
/// Factors of a message's loss, or switches.
const FACTORS: [&str; 8] =
    ["weight", "loss", "loss_weight", "loss_scale", "loss_mask", "train", "training", "trainable"];
/// Switches that leave a message out of the loss.
const INVERSES: [&str; 3] = ["masked", "mask", "ignore_loss"];
/// Fields of media, in messages and in records.
const MEDIA: [&str; 8] = ["images", "image", "videos", "video", "audios", "audio", "image_url", "pixel_values"];

/// Words of a chat template: its names of roles and arguments.
#[derive(Debug, Default)]
pub(super) struct Words {
    words: HashSet<String>,
    /// Words that are texts of their own, such as the roles that it compares with.
    quoted: HashSet<String>,
    /// True if it writes messages whole, with fields that it does not name.
    writes_whole: bool,
}

impl Words {
    pub(super) fn from_template(template: Option<&ChatTemplate>) -> Self {
        let Some(template) = template else { return Self::default() };
        let text = template.written();
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let words = text.split(|c: char| !is_word(c)).filter(|word| !word.is_empty());
        let quoted = text.split(['\'', '"']).filter(|text| !text.is_empty() && text.chars().all(is_word));
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let whole = ["message|tojson", "messages|tojson", "message.items(", "m|tojson", "msg|tojson", "message|items"];
        Self {
            words: words.map(str::to_owned).collect(),
            quoted: quoted.map(str::to_owned).collect(),
            writes_whole: whole.iter().any(|written| compact.contains(written)),
        }
    }

    /// True if the template names a word.
    pub(super) fn names(&self, word: &str) -> bool {
        self.words.contains(word)
    }

    /// The role that the template knows for a written one.
    fn role(&self, written: &str) -> String {
        let lower = plain(written);
        let known = ROLES.iter().find(|(role, names)| *role == lower || names.contains(&lower.as_str()));
        let Some((role, _)) = known else { return written.to_owned() };
        let is_native = !CALLERS.contains(&lower.as_str())
            && self.quoted.contains(&lower)
            && (NATIVE.contains(&lower.as_str()) || *role == "tool" && !self.quoted.contains(*role));
        if is_native { lower } else { (*role).to_owned() }
    }

    /// True if the template takes the parts of a content apart.
    fn reads_parts(&self) -> bool {
        self.names("text") || self.writes_whole
    }
}

/// A role in lower case and with underscores.
fn plain(role: &str) -> String {
    role.trim().to_lowercase().replace(['-', ' '], "_")
}

/// A message with `role` and `content`.
#[derive(Clone)]
pub(super) struct Message {
    pub(super) value: Value,
    /// Factor on its loss.
    pub(super) weight: f32,
    /// True if it is calls alone, which may belong to the message before it.
    is_call: bool,
}

impl Message {
    /// A system message.
    pub(super) fn system(text: &str) -> Self {
        Self { value: json!({ "role": "system", "content": text }), weight: 1.0, is_call: false }
    }
}

/// Messages of a list. Calls in messages of their own join the assistant's message before them.
///
/// # Errors
/// The place of a message that cannot be read, and why, as a sentence.
pub(super) fn messages_of(key: &str, list: &[Value], words: &Words) -> Result<Vec<Message>, String> {
    let mut messages: Vec<Message> = Vec::with_capacity(list.len());
    for (at, written) in list.iter().enumerate() {
        let problem = |problem| format!("{key}[{at}]: {problem}");
        for written in turns(at, written).map_err(problem)? {
            let message = normal(&written, words).map_err(problem)?;
            match messages.last_mut().filter(|last| message.is_call && joins(last, &message)) {
                Some(last) => join(last, message),
                None => messages.push(message),
            }
        }
    }
    Ok(messages)
}

/// True if the calls of a message belong to the message before it.
fn joins(last: &Message, message: &Message) -> bool {
    let is_plain = last.is_call || is_nothing(&last.value["tool_calls"]);
    last.value["role"] == "assistant" && last.weight == message.weight && is_plain
}

fn join(last: &mut Message, message: Message) {
    let mut calls = last.value["tool_calls"].as_array().cloned().unwrap_or_default();
    calls.extend(message.value["tool_calls"].as_array().cloned().unwrap_or_default());
    last.value["tool_calls"] = calls.into();
    last.is_call = true;
}

/// The messages of an item of a list: itself; a text, of which user and assistant have every other
/// one; or a question with its answer.
fn turns(at: usize, written: &Value) -> Result<Vec<Cow<'_, Value>>, String> {
    if let Some(text) = written.as_str() {
        let role = if at.is_multiple_of(2) { "user" } else { "assistant" };
        return Ok(vec![Cow::Owned(json!({ "role": role, "content": text }))]);
    }
    let fields = written.as_object().ok_or("expected an object")?;
    if ROLE_KEYS.iter().any(|key| fields.contains_key(*key)) {
        return Ok(vec![Cow::Borrowed(written)]);
    }
    let Some((user, assistant)) =
        TURN_KEYS.into_iter().find(|(user, assistant)| fields.contains_key(*user) && fields.contains_key(*assistant))
    else {
        return Ok(vec![Cow::Borrowed(written)]);
    };
    let message = |role: &str, key: &str| {
        let mut message = fields.clone();
        message.retain(|name, _| name != user && name != assistant);
        message.insert("role".to_owned(), role.into());
        message.insert("content".to_owned(), fields[key].clone());
        Cow::Owned(Value::Object(message))
    };
    Ok(vec![message("user", user), message("assistant", assistant)])
}

/// A message with `role` and `content`, and its factor on the loss.
fn normal(message: &Value, words: &Words) -> Result<Message, String> {
    let fields = message.as_object().ok_or("expected an object")?;
    let written = ROLE_KEYS.iter().find_map(|key| fields.get(*key).and_then(Value::as_str));
    let written = written.ok_or("expected a \"role\" (or \"from\") that is text")?;
    refuse_media(fields)?;
    let weight = weight_of_message(fields)?;
    let mut normal = Map::new();
    normal.insert("role".into(), words.role(written).into());
    let present = CONTENT_KEYS.iter().find(|key| fields.get(**key).is_some_and(|value| !value.is_null()));
    let content = present.and_then(|key| fields.get(*key));
    let is_call = CALLERS.contains(&plain(written).as_str()) && calls::calls_of(fields)?.is_none();
    let calls = match is_call {
        true => {
            let call = content.ok_or("expected a \"value\" (or \"content\"): the call")?;
            let key = present.copied().unwrap_or("value");
            let calls = calls::listed(key, call)?;
            if calls.is_empty() {
                return Err(format!("{key}: expected a call, found an empty list"));
            }
            normal.insert("content".into(), "".into());
            Some(calls)
        }
        false => calls::calls_of(fields)?,
    };
    if !is_call {
        match content {
            Some(content) => drop(normal.insert("content".into(), text_of(content, words)?)),
            // Beside calls it is left out; without, templates that ask for a content find an empty
            // one.
            None if calls.is_some() => {
                if fields.contains_key("content") {
                    normal.insert("content".into(), Value::Null);
                }
            }
            None if CONTENT_KEYS.iter().any(|key| fields.contains_key(*key)) || fields.contains_key("tool_calls") => {
                normal.insert("content".into(), "".into());
            }
            None => return Err("expected a \"content\" (or \"value\")".to_owned()),
        }
    }
    if let Some(calls) = calls {
        normal.insert("tool_calls".into(), calls.into());
    }
    let role = ROLE_KEYS.into_iter().find(|key| fields.get(*key).is_some_and(Value::is_string));
    let read: Vec<&str> = role.into_iter().chain(present.copied()).chain(["tool_calls", "function_call"]).collect();
    let is_read = |key: &str| read.contains(&key) || FACTORS.contains(&key) || INVERSES.contains(&key);
    for (key, value) in fields.iter().filter(|(key, value)| !is_read(key.as_str()) && !value.is_null()) {
        normal.entry(key.clone()).or_insert_with(|| value.clone());
    }
    Ok(Message { value: Value::Object(normal), weight, is_call })
}

/// The content of a message: text, or parts that are text. Parts are joined for a template that
/// does not take them apart: it would write the list.
fn text_of(content: &Value, words: &Words) -> Result<Value, String> {
    let parts = match content {
        Value::String(_) => return Ok(content.clone()),
        Value::Array(parts) => parts,
        other => return Err(format!("content: expected text, or a list of parts that are text, found {other}")),
    };
    let text = |(at, part): (usize, &Value)| {
        let text = part.as_str().or_else(|| part["text"].as_str());
        let is_text = part["type"].as_str().is_none_or(|kind| kind == "text");
        match text.filter(|_| is_text) {
            Some(text) => Ok(text.to_owned()),
            None => {
                let kind =
                    part["type"].as_str().map_or_else(|| part.to_string(), |kind| format!("a part of type {kind:?}"));
                Err(format!("content[{at}]: expected text, found {kind}: models here read text alone"))
            }
        }
    };
    let texts = parts.iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?;
    // Templates take objects apart, and leave out a part that is a string.
    let are_objects = parts.iter().all(Value::is_object);
    Ok(if are_objects && words.reads_parts() { content.clone() } else { texts.concat().into() })
}

/// Refuses images, sound and films.
///
/// # Errors
/// The field that has them, as a sentence.
pub(super) fn refuse_media(fields: &Map<String, Value>) -> Result<(), String> {
    match MEDIA.iter().find(|field| fields.get(**field).is_some_and(|value| !is_nothing(value))) {
        Some(field) => Err(format!("`{field}`: models here read text alone: leave the field out, or the record")),
        None => Ok(()),
    }
}

/// Factor of a message on its loss: 1 if it names none.
fn weight_of_message(fields: &Map<String, Value>) -> Result<f32, String> {
    let unknown = |name: &str| (name.starts_with("loss") || name.starts_with("train")) && !FACTORS.contains(&name);
    if let Some((name, value)) = fields.iter().find(|(name, value)| unknown(name) && !value.is_null()) {
        return Err(format!("{name}: found {value}; the loss of a message is set by one of {}", FACTORS.join(", ")));
    }
    weight(fields, &FACTORS, &INVERSES)
}

/// Factor of a record on the loss of all that it holds: 1 if it names none. Fails on a weight that
/// is not a number of 0 or more.
pub(super) fn weight_of_record(fields: &mut super::fields::Fields<'_>) -> Result<f32, String> {
    const OWN: [&str; 7] = ["weight", "train", "training", "trainable", "loss_weight", "loss_scale", "sample_weight"];
    let is_one = |value: &Value| value.is_boolean() || value.is_number();
    let factors: Vec<&str> = OWN.into_iter().filter(|name| *name == "weight" || is_one(fields.look_at(name))).collect();
    for name in &factors {
        fields.take(name);
    }
    weight(fields.all(), &factors, &[])
}

/// The product of factors and switches.
fn weight(fields: &Map<String, Value>, factors: &[&str], inverses: &[&str]) -> Result<f32, String> {
    let mut product = 1.0;
    for (names, is_inverse) in [(factors, false), (inverses, true)] {
        for name in names {
            let value = fields.get(*name).unwrap_or(&Value::Null);
            let number = value.as_f64().or_else(|| value.as_bool().map(f64::from));
            let most = if is_inverse { 1.0 } else { f64::from(f32::MAX) };
            product *= match number.filter(|number| (0.0..=most).contains(number)) {
                Some(number) if is_inverse => 1.0 - number,
                Some(number) => number,
                None if value.is_null() => 1.0,
                None => return Err(format!("{name}: expected a number that is not negative, found {value}")),
            };
        }
    }
    Ok(product as f32)
}

/// True if a message calls tools.
pub(super) fn has_calls(message: &Value) -> bool {
    says_something(&message["tool_calls"])
}

/// True if a message is the assistant's and says nothing: no text, no calls, nothing else that a
/// template could write.
pub(super) fn is_blank_answer(message: &Value) -> bool {
    let known = |key: &str| matches!(key, "role" | "name" | "id");
    message["role"] == "assistant"
        && !message.as_object().into_iter().flatten().any(|(key, value)| !known(key) && says_something(value))
}

fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(values) => values.iter().any(says_something),
        Value::Object(fields) => fields.iter().any(|(key, value)| key != "type" && says_something(value)),
    }
}

/// True if a field holds a list of messages, as far as its beginning tells.
pub(super) fn is_list(value: &Value) -> bool {
    match value {
        Value::Array(_) => true,
        Value::String(text) => text.trim_start().starts_with('['),
        Value::Object(_) => column(value, &ROLE_KEYS).is_some() && column(value, &CONTENT_KEYS).is_some(),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The list under a field: of messages, written as text too, as in tables; or a table with a list
/// of roles and one of texts.
///
/// # Errors
/// The reason, as a sentence, if text begins like a list and is not a list.
pub(super) fn list_of<'v>(key: &str, value: &'v Value) -> Result<Option<Cow<'v, [Value]>>, String> {
    Ok(match value {
        Value::Array(list) => Some(Cow::Borrowed(list.as_slice())),
        Value::String(_) if is_list(value) => match arguments::json(value) {
            Ok(Cow::Owned(Value::Array(list))) => Some(Cow::Owned(list)),
            Ok(_) => None,
            // A text that begins with a bracket may be a prompt, or an answer.
            Err(_) if !["messages", "conversations", "conversation", "history"].contains(&key) => None,
            Err(error) => return Err(format!("{key}: {error}")),
        },
        Value::Object(_) => match (column(value, &ROLE_KEYS), column(value, &CONTENT_KEYS)) {
            (Some(roles), Some(texts)) if roles.len() == texts.len() => {
                let messages = roles.iter().zip(texts).map(|(role, text)| json!({ "role": role, "content": text }));
                Some(messages.collect())
            }
            _ => None,
        },
        _ => None,
    })
}

/// The first list among fields of a table.
fn column<'v>(table: &'v Value, names: &[&str]) -> Option<&'v Vec<Value>> {
    names.iter().find_map(|name| table.get(*name)?.as_array())
}
