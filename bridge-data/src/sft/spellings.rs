//! Conversations and prompts as people write them, in one spelling.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::chat::Conversation;

/// Where a record has its messages.
const LISTS: [&str; 3] = ["messages", "conversations", "conversation"];
/// Fields that hold a prompt and its answer, if a recipe names none.
const PAIRS: [(&str, &str); 5] = [
    ("input", "output"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    ("instruction", "response"),
];
/// What others call the roles.
const ROLES: [(&str, &[&str]); 4] = [
    ("user", &["human", "prompter"]),
    ("assistant", &["gpt", "chatgpt", "bing", "bard", "model", "bot", "function_call"]),
    ("system", &[]),
    ("tool", &["function", "observation", "function_response", "tool_response"]),
];

/// A conversation, and how much each of its messages counts.
pub(super) struct Spoken {
    pub(super) conversation: Conversation,
    /// A factor for each message.
    pub(super) weights: Vec<f32>,
}

/// Whether a record has messages.
pub(super) fn is_chat(record: &Value) -> bool {
    LISTS.iter().any(|key| messages(record, key).is_some()) || record["prompt"].is_array()
}

/// Whether a record has two answers, of which one is preferred.
pub(super) fn is_preference(record: &Value) -> bool {
    ["chosen", "rejected"].iter().all(|key| !record[key].is_null())
}

/// Names of fields that prompts and answers have.
pub(super) fn is_part(field: &str) -> bool {
    field == "instruction" || PAIRS.iter().any(|(prompt, answer)| field == *prompt || field == *answer)
}

/// The list under `key`, which may be written as text, as in tables of Hugging Face's hub.
fn messages<'r>(record: &'r Value, key: &str) -> Option<Cow<'r, [Value]>> {
    if let Some(list) = record[key].as_array() {
        return Some(Cow::Borrowed(list));
    }
    let text = record[key].as_str().filter(|text| text.trim_start().starts_with('['))?;
    let list: Vec<Value> = serde_json::from_str(text).ok()?;
    list.iter().all(Value::is_object).then_some(Cow::Owned(list))
}

/// The conversation of a record with messages.
///
/// # Errors
/// What is missing or of another type, as a sentence.
pub(super) fn conversation(record: &Value) -> Result<Spoken, String> {
    let (mut messages, mut weights) = (Vec::new(), Vec::new());
    let mut add = |key: &str, counts: bool| -> Result<(), String> {
        let list = self::messages(record, key).ok_or_else(|| format!("{key}: expected a list of messages"))?;
        for (at, message) in list.iter().enumerate() {
            let (message, weight) = normal(message).map_err(|problem| format!("{key}[{at}]: {problem}"))?;
            messages.push(message);
            weights.push(if counts { weight } else { 0.0 });
        }
        Ok(())
    };
    match LISTS.iter().find(|key| self::messages(record, key).is_some()) {
        Some(key) => add(key, true)?,
        None => {
            // A conversation as prompt, and the messages that answer it.
            add("prompt", false)?;
            add("completion", true)?;
        }
    }
    if let Some(system) = record["system"].as_str().or_else(|| record["system_prompt"].as_str())
        && messages.first().is_none_or(|first: &Value| first["role"] != "system")
        && !system.is_empty()
    {
        messages.insert(0, json!({ "role": "system", "content": system }));
        weights.insert(0, 1.0);
    }
    let tools = parsed(if record["tools"].is_null() { &record["functions"] } else { &record["tools"] })
        .map_err(|problem| format!("tools: {problem}"))?;
    let has_tools = !tools.is_null() && tools.as_array().is_none_or(|list| !list.is_empty());
    Ok(Spoken { conversation: Conversation { messages, tools: has_tools.then_some(tools) }, weights })
}

/// A list that may be written as text.
fn parsed(value: &Value) -> Result<Value, String> {
    match value.as_str() {
        Some("") => Ok(Value::Null),
        Some(text) => serde_json::from_str(text).map_err(|error| format!("not JSON: {error}")),
        None => Ok(value.clone()),
    }
}

/// A message with `role` and `content`, and how much it counts.
fn normal(message: &Value) -> Result<(Value, f32), String> {
    let fields = message.as_object().ok_or("expected an object")?;
    let written = ["role", "from"].iter().find_map(|key| fields.get(*key));
    let written = written.and_then(Value::as_str).ok_or("expected a \"role\" (or \"from\") that is text")?;
    let known = ROLES.iter().find(|(_, names)| names.contains(&written)).map(|(role, _)| *role);
    let mut normal = Map::new();
    normal.insert("role".into(), known.unwrap_or(written).into());
    let content = ["content", "value", "text"].iter().find_map(|key| fields.get(*key));
    if written == "function_call" {
        let call = content.ok_or("expected a \"value\": the call")?;
        let call = parsed(call)?;
        normal.insert("content".into(), "".into());
        normal.insert("tool_calls".into(), json!([{ "type": "function", "function": call }]));
    } else if let Some(content) = content {
        // Beside calls it is left out; without, templates that ask for a content find an empty one.
        let is_nothing = content.is_null() && !has_calls(message);
        normal.insert("content".into(), if is_nothing { "".into() } else { content.clone() });
    } else if !fields.contains_key("tool_calls") {
        return Err("expected a \"content\" (or \"value\")".to_owned());
    }
    let spelled = ["role", "from", "content", "value", "weight", "train", "training"];
    for (key, value) in fields.iter().filter(|(key, _)| !spelled.contains(&key.as_str())) {
        normal.entry(key.clone()).or_insert_with(|| value.clone());
    }
    Ok((Value::Object(normal), weight(message)?))
}

/// Whether a message calls tools.
pub(super) fn has_calls(message: &Value) -> bool {
    says_something(&message["tool_calls"])
}

/// Whether a message is the assistant's and says nothing: no text, no calls, nothing else that a template could write.
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

/// How much a message or a record counts: 1 if it does not say so.
///
/// # Errors
/// A weight that is not a number from 0 on.
pub(super) fn weight(value: &Value) -> Result<f32, String> {
    if [&value["train"], &value["training"]].iter().any(|flag| **flag == Value::Bool(false)) {
        return Ok(0.0);
    }
    match &value["weight"] {
        Value::Null => Ok(1.0),
        weight => match weight.as_f64() {
            Some(number) if number >= 0.0 && number <= f64::from(f32::MAX) => Ok(number as f32),
            _ => Err(format!("weight: expected a number that is not negative, found {weight}")),
        },
    }
}

/// Prompt and answer of a record, if a recipe does not say which fields they are.
///
/// # Errors
/// The fields that were found, as a sentence.
pub(super) fn pair(record: &Value, label_key: &str) -> Result<[String; 2], String> {
    let text = |key: &str| record[key].as_str();
    let label = text(label_key);
    if let (Some(instruction), Some(label)) = (text("instruction"), label.or_else(|| text("output"))) {
        let input = text("input").filter(|input| !input.is_empty());
        let prompt = input.map_or_else(|| instruction.to_owned(), |input| format!("{instruction}\n\n{input}"));
        return Ok([prompt, label.to_owned()]);
    }
    if let (Some(input), Some(label)) = (text("input"), label) {
        return Ok([input.to_owned(), label.to_owned()]);
    }
    let found = PAIRS.iter().find_map(|(prompt, answer)| Some([text(prompt)?.to_owned(), text(answer)?.to_owned()]));
    found.ok_or_else(|| {
        let keys = record.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>().join(", "));
        let found = keys.map_or_else(|| "no object".to_owned(), |keys| format!("the fields {keys}"));
        format!(
            "expected text in `input` and `{label_key}`, `instruction` and `output`, or `prompt` and `completion`, or a list of `messages`; \
             found {found}"
        )
    })
}
