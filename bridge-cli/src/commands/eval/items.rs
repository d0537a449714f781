//! Items of tasks: JSON lines, each a question with choices or with one right continuation, in the
//! spellings that people have.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use bridge_core::logging::terminal::complain;
use bridge_data::sft::records;
use bridge_data::untrusted_io;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// Most bytes of a file of items.
const MOST_BYTES: u64 = 4 << 30;

/// Names of the text before the answer. Of several, `query` counts, which is finished text;
/// otherwise there is one.
const CONTEXT: [&str; 7] = ["query", "context", "prompt", "question", "ctx", "text", "sentence"];
/// Names of the list of choices.
const CHOICES: [&str; 3] = ["choices", "endings", "options"];
/// Names of the right choice.
const GOLD: [&str; 8] = ["gold", "label", "answer", "answerKey", "answer_index", "answer_idx", "correct", "target"];
/// Names of the right continuation of items without choices.
const TARGET: [&str; 6] = ["target", "completion", "continuation", "answer", "response", "ending"];

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The task that it belongs to.
    pub task: String,
    /// File and line of the item.
    pub place: Place,
    /// The text before the answer.
    pub context: String,
    /// Answers of the item.
    pub answer: Answer,
}

/// Place of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// File of the item.
    pub file: String,
    /// Line of the item, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// Answers that may follow the context of an item.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A choice among several texts.
    Choice {
        /// The texts, two or more.
        texts: Vec<String>,
        /// The number of the right one.
        gold: usize,
    },
    /// One text.
    Exact(String),
}

impl Answer {
    /// The texts that are scored.
    pub fn texts(&self) -> &[String] {
        match self {
            Self::Choice { texts, .. } => texts,
            Self::Exact(text) => std::slice::from_ref(text),
        }
    }
}

/// The items of a file, at least one. Fields that no item uses are named on standard error. Fails
/// with the line, the expected and the found value.
pub fn load(path: &Path) -> Result<Vec<Item>, Failure> {
    let file = path.display().to_string();
    let (_, size) = untrusted_io::open(path).map_err(|error| Failure::input(format!("{file}: {error}")))?;
    if size > MOST_BYTES {
        return Err(Failure::input(format!("{file}: expected at most {MOST_BYTES} bytes, found {size}")));
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (mut items, mut unused) = (Vec::new(), BTreeMap::<String, u64>::new());
    for record in records(path.to_owned()) {
        let (line, value) = record.map_err(Failure::input)?;
        let place = Place { file: file.clone(), line: usize::try_from(line).unwrap_or(usize::MAX) };
        let read = value.map_err(|error| format!("expected a JSON object, {error}"));
        let read = read.and_then(|value| item(value, &stem, place.clone()));
        let (item, fields) = read.map_err(|message| Failure::input(format!("{place}: {message}")))?;
        items.push(item);
        fields.into_iter().for_each(|field| *unused.entry(field).or_default() += 1);
    }
    if items.is_empty() {
        return Err(Failure::input(format!("{file}: expected items, one JSON object a line, found none")));
    }
    if !unused.is_empty() {
        let fields: Vec<String> = unused.iter().map(|(field, count)| format!("`{field}` (in {count})")).collect();
        complain(&format!("warning: {file}: fields that nothing used: {}", fields.join(", ")));
    }
    Ok(items)
}

/// An item, and the names of its fields that nothing used.
fn item(value: Value, stem: &str, place: Place) -> Result<(Item, Vec<String>), String> {
    let Value::Object(fields) = value else { return Err(format!("expected a JSON object, found {}", kind(&value))) };
    let task = match fields.get("task") {
        None => stem.to_owned(),
        Some(Value::String(task)) if !task.is_empty() => task.clone(),
        Some(other) => return Err(format!("task: expected a name, found {}", kind(other))),
    };
    let name = match fields.contains_key("query") {
        true => "query",
        false => only(&fields, &CONTEXT, "the text before the answer")?,
    };
    let context = text(&fields, name)?.to_owned();
    let mut used = vec!["task", name];
    let answer = if has_list(&fields) || is_lettered(&fields) {
        used.extend(CHOICES.iter().chain(&GOLD));
        choice(&fields)?
    } else {
        let name = only(&fields, &TARGET, "the right continuation (or `choices`)")?;
        used.push(name);
        Answer::Exact(filled(text(&fields, name)?, name)?)
    };
    let is_letter = |name: &str| !has_list(&fields) && matches!(name.as_bytes(), [b'A'..=b'Z']);
    let is_unused = |name: &&String| !used.contains(&name.as_str()) && !is_letter(name) && !fields[*name].is_null();
    let unused = fields.keys().filter(is_unused).cloned().collect();
    Ok((Item { task, place, context, answer }, unused))
}

/// The one of `names` that the item has.
fn only<'a>(fields: &Map<String, Value>, names: &[&'a str], what: &str) -> Result<&'a str, String> {
    let there: Vec<&str> = names.iter().copied().filter(|name| fields.contains_key(*name)).collect();
    match there[..] {
        [name] => Ok(name),
        [] => {
            let found: Vec<&str> = fields.keys().take(12).map(String::as_str).collect();
            Err(format!("expected {what} as one of {}, found the keys {}", names.join(", "), found.join(", ")))
        }
        _ => Err(format!(
            "expected {what} once, found {}: leave one, or write the finished text as `query`",
            there.join(" and ")
        )),
    }
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<&'a str, String> {
    let value = &fields[name];
    value.as_str().ok_or_else(|| format!("{name}: expected a text, found {}", kind(value)))
}

fn filled(text: &str, name: &str) -> Result<String, String> {
    if text.is_empty() { Err(format!("{name}: expected a text, found an empty one")) } else { Ok(text.to_owned()) }
}

/// The texts under the letters from A on: choices as MMLU's files have them. A letter without a
/// value does not count. Fails if a letter is left out, or one has no text.
fn by_letter(table: &Map<String, Value>) -> Result<Vec<String>, String> {
    let letters: Vec<String> = ('A'..='Z').map(String::from).filter(|letter| has_letter(table, letter)).collect();
    if letters.iter().zip('A'..).any(|(letter, expected)| *letter != expected.to_string()) {
        return Err(format!(
            "expected choices under the letters from A on, without a gap, found {}",
            letters.join(", ")
        ));
    }
    letters.iter().map(|letter| text(table, letter).map(str::to_owned)).collect()
}

/// True if an item has a list of choices.
fn has_list(fields: &Map<String, Value>) -> bool {
    CHOICES.iter().any(|name| fields.contains_key(*name))
}

fn has_letter(table: &Map<String, Value>, letter: &str) -> bool {
    table.get(letter).is_some_and(|value| !value.is_null())
}

/// True if an item without a list of choices has them under single letters: it names no text as the
/// right continuation.
fn is_lettered(fields: &Map<String, Value>) -> bool {
    let is_text_of = |letter: char, text: &str| fields.get(&letter.to_string()).and_then(Value::as_str) == Some(text);
    let is_choice = |text: &str| text.len() == 1 || ('A'..='Z').any(|letter| is_text_of(letter, text));
    let means_one = |value: &Value| value.as_str().is_none_or(is_choice);
    let is_target = |name: &&str| fields.get(*name).is_some_and(|value| !GOLD.contains(name) || !means_one(value));
    ["A", "B"].iter().all(|letter| has_letter(fields, letter)) && !TARGET.iter().any(is_target)
}

/// The choices of an item: a list of texts, lists `text` and `label` as ARC has them, or a text by
/// each letter, in a table or in the item itself.
fn choice(fields: &Map<String, Value>) -> Result<Answer, String> {
    let has_list = has_list(fields);
    let name = if has_list { only(fields, &CHOICES, "the choices")? } else { "A" };
    let list = |value: &Value, name: &str| -> Result<Vec<String>, String> {
        let values =
            value.as_array().ok_or_else(|| format!("{name}: expected a list of texts, found {}", kind(value)))?;
        let texts = values.iter().map(|value| {
            value.as_str().map(str::to_owned).ok_or_else(|| format!("{name}: expected texts, found {}", kind(value)))
        });
        texts.collect()
    };
    let (texts, labels) = match &fields[name] {
        _ if !has_list => (by_letter(fields)?, None),
        Value::Object(table) if table.keys().all(|key| matches!(key.as_bytes(), [b'A'..=b'Z'])) => {
            (by_letter(table)?, None)
        }
        Value::Object(table) => {
            let part = |key: &str| {
                let part = table
                    .get(key)
                    .ok_or_else(|| format!("{name}: expected lists `text` and `label`, found no `{key}`"))?;
                list(part, &format!("{name}.{key}"))
            };
            (part("text")?, Some(part("label")?))
        }
        other => (list(other, name)?, None),
    };
    if texts.len() < 2 {
        return Err(format!("{name}: expected at least two choices, found {}", texts.len()));
    }
    if labels.as_ref().is_some_and(|labels| labels.len() != texts.len()) {
        return Err(format!("{name}: expected as many labels as texts ({})", texts.len()));
    }
    for text in &texts {
        filled(text, name)?;
    }
    let key = only(fields, &GOLD, "the right choice")?;
    let gold = gold(&fields[key], &texts, labels.as_deref()).ok_or_else(|| {
        let found = &fields[key];
        format!(
            "{key}: expected one of {} choices, by its number from 0, its label, its letter or its text, found {found}",
            texts.len()
        )
    })?;
    Ok(Answer::Choice { texts, gold })
}

/// Index of the right choice: by label if there are labels; else by number from 0, by text, by
/// letter.
fn gold(value: &Value, texts: &[String], labels: Option<&[String]>) -> Option<usize> {
    if let Some(number) = value.as_u64() {
        let label = number.to_string();
        return match labels {
            Some(labels) => labels.iter().position(|other| *other == label),
            None => usize::try_from(number).ok().filter(|number| *number < texts.len()),
        };
    }
    let name = value.as_str()?;
    if let Some(labels) = labels {
        return labels.iter().position(|label| label == name);
    }
    let number = || name.parse::<usize>().ok().filter(|number| *number < texts.len());
    let letter = || match name.as_bytes() {
        [letter] if letter.is_ascii_alphabetic() => {
            Some(usize::from(letter.to_ascii_uppercase() - b'A')).filter(|number| *number < texts.len())
        }
        _ => None,
    };
    texts.iter().position(|text| text == name).or_else(number).or_else(letter)
}

/// Name of a JSON value's type.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Item, String> {
        let value = serde_json::from_str(line).map_err(|error| format!("expected a JSON object, {error}"))?;
        item(value, "stem", Place { file: "f".into(), line: 7 }).map(|(item, _)| item)
    }

    #[test]
    fn items_are_read_in_the_spellings_that_people_have() {
        let choices = [
            r#"{"query": "q", "choices": ["a", "b"], "gold": 1}"#,
            r#"{"question": "q", "choices": {"text": ["a", "b"], "label": ["1", "2"]}, "answerKey": "2"}"#,
            r#"{"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"}"#,
            r#"{"ctx": "q", "endings": ["a", "b"], "label": "1"}"#,
            r#"{"prompt": "q", "options": ["a", "b"], "answer": "B"}"#,
            r#"{"query": "q", "question": "raw", "choices": ["a", "b"], "answer": "b"}"#,
            r#"{"question": "q", "A": "a", "B": "b", "answer": "B"}"#,
            r#"{"question": "q", "A": "a", "B": "b", "C": null, "answer": 1}"#,
            r#"{"question": "q", "options": {"A": "a", "B": "b"}, "answer_idx": "B"}"#,
            // With a list, letters are other fields.
            r#"{"query": "q", "A": "x", "B": "y", "choices": ["a", "b"], "gold": 1}"#,
        ];
        for line in choices {
            let item = parsed(line).unwrap();
            assert_eq!((item.task.as_str(), item.context.as_str()), ("stem", "q"), "{line}");
            assert_eq!(item.answer, Answer::Choice { texts: vec!["a".into(), "b".into()], gold: 1 }, "{line}");
        }
        let by_text = parsed(r#"{"question": "q", "A": "one", "B": "two", "target": "two"}"#).unwrap();
        assert_eq!(by_text.answer, Answer::Choice { texts: vec!["one".into(), "two".into()], gold: 1 });
        let exact = parsed(r#"{"question": "q", "A": "one", "B": "two", "target": "three"}"#).unwrap();
        assert_eq!(exact.answer, Answer::Exact("three".into()));
        // A choice that reads as a number is meant before the number.
        let item = parsed(r#"{"query": "1+1?", "choices": ["2", "1", "0"], "answer": "1"}"#).unwrap();
        assert_eq!(item.answer, Answer::Choice { texts: ["2", "1", "0"].map(Into::into).to_vec(), gold: 1 });
        for name in TARGET {
            let item = parsed(&format!(r#"{{"task": "t", "context": "c", "{name}": "x"}}"#)).unwrap();
            assert_eq!((item.task.as_str(), item.answer), ("t", Answer::Exact("x".into())));
        }
    }

    #[test]
    fn fields_that_nothing_used_are_named() {
        let unused = |line: &str| {
            let place = Place { file: "f".into(), line: 7 };
            item(serde_json::from_str(line).unwrap(), "stem", place).unwrap().1
        };
        assert_eq!(unused(r#"{"query": "q", "target": "t", "hint": "h", "id": null, "A": "a"}"#), ["hint"]);
        assert_eq!(
            unused(r#"{"task": "t", "question": "q", "A": "a", "B": "b", "answer": "B", "system": "s"}"#),
            ["system"]
        );
    }

    #[test]
    fn items_that_cannot_be_judged_are_errors() {
        let cases = [
            ("{", "expected a JSON object"),
            ("[1]", "expected a JSON object, found a list"),
            (r#"{"choices": ["a", "b"], "gold": 0}"#, "the text before the answer"),
            (r#"{"question": "a", "context": "b", "target": "c"}"#, "found context and question"),
            (r#"{"query": 3, "target": "c"}"#, "query: expected a text, found a number"),
            (r#"{"query": "a"}"#, "the right continuation"),
            (r#"{"query": "a", "target": ""}"#, "found an empty one"),
            (r#"{"query": "a", "choices": ["a", "b"]}"#, "the right choice"),
            (r#"{"query": "a", "choices": ["a"], "gold": 0}"#, "at least two choices"),
            (r#"{"query": "a", "choices": ["a", 2], "gold": 0}"#, "found a number"),
            (r#"{"query": "a", "choices": ["a", ""], "gold": 0}"#, "found an empty one"),
            (r#"{"query": "a", "choices": ["a", "b"], "gold": 2}"#, "gold: expected one of 2 choices"),
            (r#"{"query": "a", "choices": ["a", "b"], "gold": "C"}"#, "gold: expected one of 2 choices"),
            (r#"{"query": "a", "choices": ["a", "b"], "gold": 0, "answer": "b"}"#, "found gold and answer"),
            (r#"{"query": "a", "A": "a", "B": "b", "answer": "C"}"#, "answer: expected one of 2 choices"),
            (r#"{"query": "a", "A": "a", "B": 2, "answer": "B"}"#, "B: expected a text, found a number"),
            (r#"{"query": "a", "A": "a", "B": "b", "D": "d", "answer": "A"}"#, "without a gap, found A, B, D"),
            (r#"{"query": "a", "options": {"A": "a", "C": "c"}, "answer": "A"}"#, "without a gap, found A, C"),
            (r#"{"query": "a", "choices": {"text": ["a", "b"]}, "gold": 0}"#, "found no `label`"),
            (r#"{"query": "a", "choices": {"text": ["a", "b"], "label": ["A"]}, "gold": "A"}"#, "as many labels"),
            (r#"{"query": "a", "task": "", "target": "b"}"#, "task: expected a name"),
        ];
        for (line, expected) in cases {
            let message = parsed(line).unwrap_err();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
}
