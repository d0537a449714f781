//! A conversation in the values of templates.

use std::ops::Range;

use serde_json::{Map, Value as Json};

use super::arguments::is_nothing;
use super::jinja::{Owned, Rendered, Value, limits};
use super::{ChatError, Conversation, Ending, Variant};

/// Names under which the reasoning of a message is passed; the first is the one that today's
/// templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// Most messages of a turn that are rendered for a generation prompt.
const WINDOW: usize = 6;

/// A conversation as a template reads it.
pub(super) struct Reading<'t> {
    pub(super) variant: &'t Variant,
    special_tokens: &'t Map<String, Json>,
    conversation: &'t Conversation,
    messages: Vec<Value>,
    tools: Value,
    /// Special tokens and arguments of the conversation.
    others: Vec<(&'t str, Value)>,
    /// Bytes of each message, and of all else, about.
    sizes: Vec<u64>,
    size_of_others: u64,
}

impl<'t> Reading<'t> {
    pub(super) fn new(
        variant: &'t Variant,
        special_tokens: &'t Map<String, Json>,
        conversation: &'t Conversation,
    ) -> Self {
        let tools = conversation.tools.as_ref().unwrap_or(&Json::Null);
        let given = &conversation.arguments;
        // An argument replaces the special token of its name.
        let tokens = special_tokens.iter().filter(|(name, _)| !given.contains_key(*name));
        let others = tokens.chain(given).map(|(name, value)| (name.as_str(), value_of(value)));
        let documents = (!given.contains_key("documents")).then_some(("documents", Value::None));
        Self {
            variant,
            special_tokens,
            conversation,
            messages: conversation.messages.iter().map(message_of).collect(),
            tools: value_of(tools),
            sizes: conversation.messages.iter().map(size_of).collect(),
            others: others.chain(documents).collect(),
            size_of_others: size_of(tools) + given.values().map(size_of).sum::<u64>(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn has_tools(&self) -> bool {
        self.conversation.tools.is_some()
    }

    /// Places of all messages.
    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.count()).collect()
    }

    /// The text of the messages at these places, with the bytes of each. Messages are numbered in
    /// the order of the places.
    pub(super) fn render(&self, places: &[usize], ending: Ending) -> Result<Rendered, ChatError> {
        let messages: Vec<Value> = places.iter().map(|at| self.messages[*at].clone()).collect();
        let is_prompt = ending == Ending::GenerationPrompt;
        let mut variables = vec![
            ("messages", Value::list(messages.clone())),
            ("tools", self.tools.clone()),
            ("add_generation_prompt", is_prompt.into()),
        ];
        variables.extend(self.others.iter().cloned());
        limits::open(self.size_of_others + places.iter().map(|at| self.sizes[*at]).sum::<u64>());
        let rendered = self.variant.template.render(variables, &messages);
        rendered.map_err(|error| ChatError::Refused(error.to_string()))
    }

    /// The token that begins sequences; empty without one.
    pub(super) fn bos(&self) -> &str {
        self.special_tokens.get("bos_token").and_then(Json::as_str).unwrap_or_default()
    }

    /// The generation prompt before a message: the end of the text of the messages before it,
    /// after the last bytes of `text` that were written for one of them. `None` if the template
    /// refuses these messages, or writes them otherwise.
    pub(super) fn prompt(&self, message: usize, text: &str, last: Option<&Owned>) -> Option<String> {
        let places = self.turn(message);
        let mut rendered = self.render(&places, Ending::GenerationPrompt).ok()?;
        let end = match last {
            None => 0,
            Some(last) => {
                let written = &text[last.bytes.clone()];
                // Templates may write the prompt while they are at the last message.
                let is_same = |owned: &&Owned| {
                    places[owned.message] == last.message && rendered.text[owned.bytes.clone()].starts_with(written)
                };
                rendered.owned.iter().rev().find(is_same)?.bytes.start + written.len()
            }
        };
        Some(rendered.text.split_off(end))
    }

    /// The last bytes of a message that ends a conversation, with the template's text after them.
    pub(super) fn ending_with(&self, message: usize) -> Option<String> {
        let mut places = self.turn(message);
        places.push(message);
        let mut rendered = self.render(&places, Ending::Complete).ok()?;
        let last = rendered.owned.iter().rev().find(|owned| places[owned.message] == message)?;
        Some(rendered.text.split_off(last.bytes.start))
    }

    pub(super) fn role(&self, message: usize) -> &str {
        self.conversation.messages[message]["role"].as_str().unwrap_or_default()
    }

    /// The text of a message, without blanks around; of a list of parts the first.
    pub(super) fn content(&self, message: usize) -> Option<&str> {
        let content = &self.conversation.messages[message]["content"];
        content.as_str().or_else(|| content[0]["text"].as_str()).map(str::trim)
    }

    /// Fields of messages and of their calls that hold something and were not read by a rendering,
    /// such as `messages[].name`.
    pub(super) fn unread(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut add = |place: &str, known: &[&str], fields: &Json, value: &Value| {
            let (Json::Object(fields), Value::Dict(dict)) = (fields, value) else { return };
            for name in fields.iter().filter(|(_, value)| !is_nothing(value)).map(|(name, _)| name.as_str()) {
                let aliases = if REASONING.contains(&name) { &REASONING[..] } else { &[name] };
                if !known.contains(&name) && !aliases.iter().any(|name| dict.was_read(name)) {
                    names.push(format!("{place}.{name}"));
                }
            }
        };
        for (message, value) in self.conversation.messages.iter().zip(&self.messages) {
            add("messages[]", &["role", "content", "tool_calls"], message, value);
            let Value::Dict(dict) = value else { continue };
            let (Json::Array(calls), Some(Value::List(values))) = (&message["tool_calls"], dict.peek("tool_calls"))
            else {
                continue;
            };
            // Calls that are not written are reported as a whole.
            for (call, value) in calls.iter().zip(&**values).filter(|_| dict.was_read("tool_calls")) {
                add("messages[].tool_calls[]", &["type", "function"], call, value);
                let Value::Dict(dict) = value else { continue };
                let function = dict.peek("function").unwrap_or(&Value::None);
                add("messages[].tool_calls[].function", &["name", "arguments"], &call["function"], function);
            }
        }
        names
    }

    /// Indices of the instructions, of the first turn, and of the turn before a message: the
    /// messages that a template may read to write this message.
    fn turn(&self, message: usize) -> Vec<usize> {
        if message <= WINDOW {
            return (0..message).collect();
        }
        let is_user = |at: &usize| self.role(*at) == "user";
        let turn = (0..message).rev().find(is_user).unwrap_or(0);
        let first = (0..message).find(is_user).unwrap_or(0);
        let second = (first + 1..message).find(is_user).unwrap_or(first + 1);
        // A turn of many calls is cut to the last ones with their replies.
        let cut = |turn: Range<usize>| match turn.len() <= WINDOW {
            true => turn.collect::<Vec<_>>(),
            false => {
                let recent = turn.end - WINDOW..turn.end;
                let calls = recent.clone().find(|at| self.role(*at) == "assistant").unwrap_or(recent.start);
                std::iter::once(turn.start).chain(calls..turn.end).collect()
            }
        };
        let first =
            if second <= turn { cut(0..first).into_iter().chain(cut(first..second)).collect() } else { Vec::new() };
        first.into_iter().chain(cut(turn..message)).collect()
    }
}

/// Bytes of a value, about.
fn size_of(json: &Json) -> u64 {
    16 + match json {
        Json::String(text) => text.len() as u64,
        Json::Array(items) => items.iter().map(size_of).sum(),
        Json::Object(fields) => fields.iter().map(|(name, value)| name.len() as u64 + size_of(value)).sum(),
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
    }
}

/// A value as a template reads it.
fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::None,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => Value::from(number),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::list(items.iter().map(value_of).collect()),
        Json::Object(fields) => {
            Value::recording_dict(fields.iter().map(|(name, value)| (Value::from(name.as_str()), value_of(value))))
        }
    }
}

/// A message as transformers hands it to templates: without keys whose value is null, and with its
/// reasoning under the names that templates read.
fn message_of(message: &Json) -> Value {
    let Json::Object(fields) = message else { return value_of(message) };
    let given = fields.iter().filter(|(_, value)| !value.is_null());
    let given = given.map(|(name, value)| (Value::from(name.as_str()), value_of(value)));
    let reasoning = REASONING.into_iter().find_map(|name| fields.get(name).filter(|value| !value.is_null()));
    match reasoning.map(value_of) {
        None => Value::recording_dict(given),
        Some(reasoning) => {
            let first = [("thinking".into(), reasoning.clone())];
            Value::recording_dict(first.into_iter().chain(given).chain([("reasoning_content".into(), reasoning)]))
        }
    }
}
