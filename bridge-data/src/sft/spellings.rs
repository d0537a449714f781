//! Records as people write them: conversations, and prompts with their answers.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::calls;
use super::fields::{Fields, is_nothing};
use super::messages::{Message, Words, is_list, list_of, messages_of};
use crate::chat::{Conversation, arguments};

/// Fields that hold a record's messages.
const LISTS: [&str; 3] = ["messages", "conversations", "conversation"];
/// Fields that hold a prompt and its answer, in the order in which they are looked for.
const PAIRS: [(&str, &str); 13] = [
    ("input", "output"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    ("instruction", "response"),
    ("query", "response"),
    ("question", "response"),
    ("problem", "solution"),
    ("inputs", "targets"),
    ("inputs_pretokenized", "targets_pretokenized"),
    ("input", "target"),
    ("query", "answers"),
    ("question", "answers"),
];
/// Fields that hold a prompt, and fields that hold an answer, outside of these pairs.
const QUESTIONS: [&str; 7] = ["instruction", "input", "prompt", "question", "query", "problem", "inputs"];
const ANSWERS: [&str; 8] = ["output", "completion", "response", "answer", "answers", "solution", "target", "targets"];
/// Text that an answer is found in.
const CONTEXTS: [&str; 4] = ["context", "contexts", "passage", "background"];
const SYSTEMS: [&str; 3] = ["system", "system_prompt", "system_message"];
/// Reasoning that leads to an answer, beside it.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
const HISTORY: &str = "history";
const TOOLS: [&str; 2] = ["tools", "functions"];
/// Judgements of an answer, of which one alone is trained on.
const JUDGEMENTS: [&str; 2] = ["label", "kto_tag"];

/// A conversation, and how much each of its messages counts.
pub(super) struct Spoken {
    pub(super) conversation: Conversation,
    /// A factor for each message.
    pub(super) weights: Vec<f32>,
}

/// Text or calls that answer a prompt.
pub(super) enum Answer {
    Text(String),
    Calls(Vec<Value>),
}

/// A prompt with its answer.
pub(super) struct Asked {
    pub(super) system: Option<String>,
    pub(super) prompt: String,
    pub(super) answer: Answer,
    /// True if a blank stands between the two, as in upstream's "{input} {output}".
    pub(super) has_blank: bool,
}

/// True if a record is a conversation: it has messages, earlier turns or tools, which only a chat
/// template writes.
pub(super) fn is_conversation(fields: &Fields<'_>) -> bool {
    has_messages(fields)
        || fields.look_at(HISTORY).is_array()
        || !is_nothing(fields.look_at(HISTORY))
        || TOOLS.iter().any(|field| !is_nothing(fields.look_at(field)))
}

/// True if a record has messages.
pub(super) fn has_messages(fields: &Fields<'_>) -> bool {
    LISTS.iter().any(|key| is_list(fields.look_at(key))) || fields.look_at("prompt").is_array()
}

/// True if a record has two answers, of which one is preferred.
pub(super) fn is_preference(fields: &Fields<'_>) -> bool {
    let has = |names: &[&str]| names.iter().any(|name| !is_nothing(fields.look_at(name)));
    has(&["chosen"]) && has(&["rejected"]) || has(&["rejected_response"]) && has_messages(fields)
}

/// True if prompts and answers have a field of this name.
pub(super) fn is_part(field: &str) -> bool {
    QUESTIONS.contains(&field)
        || ANSWERS.contains(&field)
        || PAIRS.iter().any(|(prompt, answer)| field == *prompt || field == *answer)
}

/// A field and its list.
pub(super) type NamedList<'r, 'f> = (&'f str, Cow<'r, [Value]>);

/// The list of messages of a record, with its field.
pub(super) fn take_list<'r, 'f>(
    fields: &mut Fields<'r>,
    names: &[&'f str],
) -> Result<Option<NamedList<'r, 'f>>, String> {
    let mut found = None;
    for name in names {
        let Some(list) = list_of(name, fields.look_at(name))? else { continue };
        let is_empty = list.is_empty();
        found = Some((*name, list));
        if !is_empty {
            break;
        }
    }
    if let Some((name, _)) = &found {
        fields.take(name);
    }
    Ok(found)
}

/// The messages of a record outside of its answers: those of its list of messages, or of its list
/// as prompt.
pub(super) fn take_messages<'r>(fields: &mut Fields<'r>) -> Result<Option<NamedList<'r, 'static>>, String> {
    match take_list(fields, &LISTS)? {
        Some(found) => Ok(Some(found)),
        None if fields.look_at("prompt").is_array() => take_list(fields, &["prompt"]),
        None => Ok(None),
    }
}

/// The conversation of a record. Fails on a missing field or another type, as a sentence.
pub(super) fn conversation(fields: &mut Fields<'_>, words: &Words, label_key: &str) -> Result<Spoken, String> {
    refuse_judged(fields, label_key)?;
    let messages = match take_messages(fields)? {
        Some(("prompt", list)) => {
            // A conversation as prompt, and the messages that answer it.
            let mut messages = messages_of("prompt", &list, words)?;
            messages.iter_mut().for_each(|message| message.weight = 0.0);
            messages.extend(answering(fields, words)?);
            messages
        }
        Some((key, list)) => messages_of(key, &list, words)?,
        None => {
            let mut messages = history(fields, words)?;
            let Asked { system, prompt, answer, .. } = asked(fields, label_key)?;
            let mut answer = match answer {
                Answer::Text(text) => json!({ "role": "assistant", "content": text }),
                Answer::Calls(calls) => json!({ "role": "assistant", "content": "", "tool_calls": calls }),
            };
            if let Some(reasoning) = REASONING.iter().find_map(|name| fields.take_text(name)) {
                answer["reasoning_content"] = reasoning.into();
            }
            let asked = [json!({ "role": "user", "content": prompt }), answer];
            messages.extend(messages_of("messages", &asked, words)?);
            return finish(fields, messages, system, words);
        }
    };
    let system = take_system(fields)?;
    finish(fields, messages, system, words)
}

/// A conversation of messages, with the system message, tools and template arguments that stand
/// beside them.
pub(super) fn finish(
    fields: &mut Fields<'_>,
    mut messages: Vec<Message>,
    system: Option<String>,
    words: &Words,
) -> Result<Spoken, String> {
    if let Some(system) = system {
        match messages.first().filter(|first| first.value["role"] == "system") {
            None => messages.insert(0, Message::system(&system)),
            Some(first) if first.value["content"].as_str().is_some_and(|text| text.trim() == system.trim()) => {}
            Some(_) => {
                return Err(
                    "`system`: the conversation begins with another system message: leave one of the two".to_owned()
                );
            }
        }
    }
    if messages.is_empty() {
        return Err("expected a conversation, found an empty list of messages".to_owned());
    }
    let tools = match TOOLS.into_iter().find(|field| !is_nothing(fields.look_at(field))) {
        Some(field) => arguments::tools_of(field, fields.look_at(field))?,
        None => Value::Null,
    };
    let arguments = arguments::arguments_of(fields.all())?;
    let has_tools = words.names("tools");
    for name in fields.all().keys() {
        let is_argument = arguments.contains_key(name) && words.names(name);
        if is_argument || has_tools && TOOLS.contains(&name.as_str()) || arguments::is_group(name) {
            fields.take(name);
        }
    }
    let all = fields.all();
    let is_unused = |name: &str, value: &Value| !value.is_null() && !all.contains_key(name) && !words.names(name);
    for (name, _) in arguments.iter().filter(|(name, value)| is_unused(name, value)) {
        fields.leave(format!("{}.{name}", arguments::GROUPS[0]));
    }
    let (messages, weights) = messages.into_iter().map(|message| (message.value, message.weight)).unzip();
    let tools = Some(tools).filter(|tools| !is_nothing(tools));
    Ok(Spoken { conversation: Conversation { messages, tools, arguments }, weights })
}

/// The messages that answer a conversation: `completion` or another answer, as messages or as text.
fn answering(fields: &mut Fields<'_>, words: &Words) -> Result<Vec<Message>, String> {
    let name = ANSWERS.into_iter().filter(|name| *name != "answers").find(|name| !is_nothing(fields.look_at(name)));
    let name = name.ok_or("expected a `completion`: the messages that answer the prompt")?;
    let value = fields.take(name);
    answer_messages(name, value, words)
}

/// An answer as messages: a list of them, one, or its text.
pub(super) fn answer_messages(name: &str, value: &Value, words: &Words) -> Result<Vec<Message>, String> {
    let is_message = |item: &Value| item["role"].is_string() || item["from"].is_string();
    let list = match list_of(name, value) {
        // An answer may be a JSON list as text, such as `["a", "b"]`, that is not a list of
        // messages.
        Ok(Some(list)) if !value.is_string() || (!list.is_empty() && list.iter().all(is_message)) => list,
        Ok(None) if value.is_object() => Cow::Owned(vec![value.clone()]),
        _ if value.is_string() => Cow::Owned(vec![json!({ "role": "assistant", "content": value })]),
        _ => return Err(format!("{name}: expected text, or a list of messages")),
    };
    messages_of(name, &list, words)
}

/// Earlier turns, as pairs of a question and its answer, or as messages.
pub(super) fn history(fields: &mut Fields<'_>, words: &Words) -> Result<Vec<Message>, String> {
    let Some((_, list)) = take_list(fields, &[HISTORY])? else {
        return match fields.look_at(HISTORY) {
            value if is_nothing(value) => Ok(Vec::new()),
            value => Err(format!("`{HISTORY}`: expected a list of pairs of question and answer, found {value}")),
        };
    };
    let mut messages = Vec::new();
    for (at, turn) in list.iter().enumerate() {
        let pair = turn.as_array().map(Vec::as_slice);
        match (turn, pair) {
            (_, Some([question, answer])) => {
                messages.push(json!({ "role": "user", "content": question }));
                messages.push(json!({ "role": "assistant", "content": answer }));
            }
            (Value::Object(_), _) => messages.push(turn.clone()),
            _ => return Err(format!("{HISTORY}[{at}]: expected a pair of question and answer, found {turn}")),
        }
    }
    messages_of(HISTORY, &messages, words)
}

/// The system message that stands beside prompts and messages.
pub(super) fn take_system(fields: &mut Fields<'_>) -> Result<Option<String>, String> {
    let Some(name) = SYSTEMS.into_iter().find(|name| !is_nothing(fields.look_at(name))) else { return Ok(None) };
    let value = fields.take(name);
    match value.as_str() {
        Some(text) => Ok(Some(text.to_owned())),
        None => Err(format!("`{name}`: expected text, found {value}")),
    }
}

/// Refuses answers that are judged bad.
pub(super) fn refuse_judged(fields: &mut Fields<'_>, label_key: &str) -> Result<(), String> {
    for name in JUDGEMENTS.into_iter().filter(|name| *name != label_key) {
        match fields.look_at(name) {
            Value::Bool(true) => {
                fields.take(name);
            }
            Value::Bool(false) => {
                return Err(format!(
                    "`{name}`: found false: the answer is not wanted (KTO), and training makes it likelier"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The prompt of a record under any of its names, with the other fields of the question: an
/// instruction, its input, the text to answer from. `question` is the field with the prompt.
pub(super) fn prompt_of(fields: &mut Fields<'_>, question: &str) -> Result<String, String> {
    let mut parts = Vec::new();
    let mut add = |fields: &mut Fields<'_>, name: &str| -> Result<(), String> {
        parts.extend(passage(fields, name)?);
        Ok(())
    };
    if question != "definition" {
        add(fields, "definition")?;
    }
    if question == "instruction" {
        add(fields, "instruction")?;
        add(fields, "input")?;
    } else if !repeats(fields, question) {
        add(fields, "instruction")?;
    }
    for name in CONTEXTS {
        add(fields, name)?;
    }
    if question != "instruction" {
        match fields.take_text(question) {
            // An empty one is a prompt too.
            Some(text) => parts.push(text.to_owned()),
            None => return Err(format!("`{question}`: expected text")),
        }
    }
    Ok(parts.join("\n\n"))
}

/// True if a prompt has no separate instruction, or contains it.
fn repeats(fields: &mut Fields<'_>, question: &str) -> bool {
    let instruction = fields.look_at("instruction");
    let prompt = fields.look_at(question).as_str().unwrap_or_default();
    let repeats = is_nothing(instruction) || instruction.as_str().is_some_and(|text| prompt.contains(text.trim()));
    if repeats {
        fields.take("instruction");
    }
    repeats
}

/// The text of a field that may be left out: text, or a list of texts.
fn passage(fields: &mut Fields<'_>, name: &str) -> Result<Option<String>, String> {
    let value = fields.take(name);
    match value {
        _ if is_nothing(value) => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            let texts: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            Ok(Some(texts.join("\n\n")))
        }
        other => Err(format!("`{name}`: expected text that belongs to the prompt, found {}", excerpt(other))),
    }
}

/// The beginning of a value, for messages.
fn excerpt(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text,
    }
}

/// The field that holds a prompt beside two answers.
pub(super) fn question_field(fields: &Fields<'_>) -> Option<&'static str> {
    ["prompt"].into_iter().chain(QUESTIONS).find(|name| fields.look_at(name).is_string())
}

/// Prompt and answer of a record, if a recipe does not say which fields they are.
///
/// # Errors
/// The fields that were found, as a sentence.
pub(super) fn asked(fields: &mut Fields<'_>, label_key: &str) -> Result<Asked, String> {
    let first = [("instruction", label_key), ("instruction", "output"), ("input", label_key)];
    let of_label = QUESTIONS.iter().map(|question| (*question, label_key));
    let others = QUESTIONS.iter().flat_map(|question| ANSWERS.iter().map(move |answer| (*question, *answer)));
    let found = first.into_iter().chain(PAIRS).chain(of_label).chain(others).find(|(question, answer)| {
        fields.look_at(question).is_string() && answer_of(answer, fields.look_at(answer)).is_some()
    });
    let Some((question, answer)) = found else { return Err(unknown(fields, label_key)) };
    let has_blank = question == "input" && (answer == label_key || answer == "output");
    let value = fields.take(answer);
    let has_tools = TOOLS.iter().any(|field| !is_nothing(fields.look_at(field)));
    let calls = || arguments::json(value).ok().filter(|calls| calls.is_array() && !is_nothing(calls));
    let answer = match (answer == "answers" && has_tools).then(calls).flatten() {
        Some(calls) => Answer::Calls(calls::listed("answers", &calls)?),
        None => Answer::Text(answer_of(answer, value).unwrap_or_default()),
    };
    let system = take_system(fields)?;
    let prompt = prompt_of(fields, question)?;
    Ok(Asked { system, prompt, answer, has_blank })
}

/// The text of an answer: text; the only one of a list; of several right answers, as question
/// answering has them, the first.
fn answer_of(name: &str, value: &Value) -> Option<String> {
    let first = |items: &Vec<Value>| items.first()?.as_str().map(str::to_owned);
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) if items.len() == 1 || name == "answers" => first(items),
        Value::Object(fields) if name == "answers" => fields.get("text")?.as_array().and_then(first),
        _ => None,
    }
}

/// Message for fields that do not form an example.
fn unknown(fields: &Fields<'_>, label_key: &str) -> String {
    if is_preference(fields) {
        return "expected an answer, found a preference (`chosen`, `rejected`): a recipe with [dpo] trains on these"
            .to_owned();
    }
    let hint = match () {
        () if fields.look_at("text").is_string() => {
            "; `text` alone is no example: dataset.kind = \"gpt\" trains on text"
        }
        () if fields.look_at("chat").is_string() => "; `chat` is a conversation as one text: divide it into messages",
        () => "",
    };
    format!(
        "expected text in `input` and `{label_key}`, `instruction` and `output`, or `prompt` and `completion`, or a list of `messages`; \
         found the fields {}{hint}",
        fields.names()
    )
}
