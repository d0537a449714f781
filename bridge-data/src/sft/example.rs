//! A record as token ids, with the weight of each in the loss.

use std::sync::Arc;

use serde_json::{Value, json};

use super::ids::of_ids;
use super::params::{ExampleOptions, RecordKind, TruncationMethod};
use super::prompt::{Excess, Part, fields_to_shorten, parts, shorten};
use super::spellings::{Spoken, conversation, has_calls, is_blank_answer, is_chat, pair, weight};
use crate::DataError;
use crate::chat::{ChatTemplate, Conversation};
use crate::tokenizer::{Tokenizer, require_eod};

/// The fields of a preference.
const PROMPT: &str = "prompt";
const CHOSEN: &str = "chosen";
const REJECTED: &str = "rejected";

/// Number of the rules by which a record becomes tokens: another one makes what was stored of the same files anew.
const RULES: u32 = 2;

/// Token ids and their weights in the loss; both have the same length.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Example {
    pub(super) ids: Vec<i64>,
    /// The weight of each id as one that is predicted.
    pub(super) weights: Vec<f32>,
    /// Whether something was cut off.
    pub(super) is_truncated: bool,
    /// Whether an answer in it is empty or blank.
    pub(super) is_blank: bool,
    /// Whether it has tool calls that the chat template does not write.
    pub(super) loses_calls: bool,
}

impl Example {
    /// Whether anything in it counts for the loss: the first id is predicted by nothing.
    pub(super) fn counts(&self) -> bool {
        self.weights.iter().skip(1).any(|weight| *weight > 0.0)
    }
}

/// Makes examples of records.
pub(super) struct ExampleBuilder {
    tokenizer: Arc<dyn Tokenizer>,
    template: Option<ChatTemplate>,
    options: ExampleOptions,
    eod: i64,
    bos: Option<i64>,
    /// Whether the tokenizer puts a blank before each text by itself.
    makes_blanks: bool,
}

impl ExampleBuilder {
    pub(super) fn new(
        tokenizer: Arc<dyn Tokenizer>,
        template: Option<ChatTemplate>,
        options: ExampleOptions,
    ) -> Result<Self, DataError> {
        let eod = require_eod(tokenizer.as_ref())?;
        let bos = tokenizer.bos();
        if options.add_bos && bos.is_none() {
            let message =
                "dataset.dataset_kwargs.add_bos: the tokenizer names no beginning-of-sequence token".to_owned();
            return Err(DataError::NoTokenizer(message));
        }
        let ids = |text: &str| tokenizer.encode(text).unwrap_or_default();
        let makes_blanks = ids("x y") == [ids("x"), ids("y")].concat();
        Ok(Self { tokenizer, template, options, eod, bos, makes_blanks })
    }

    /// What everything that decides on the tokens is.
    pub(super) fn identity(&self) -> Value {
        json!({
            "rules": RULES,
            "tokenizer": self.tokenizer.unique_identifier(),
            "chat_template": self.template.as_ref().map(ChatTemplate::identity),
            "options": format!("{:?}", self.options),
        })
    }

    /// Number of ids of the tokenizer.
    pub(super) fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// The token that sequences are filled up with: it never counts.
    pub(super) fn filler(&self) -> i64 {
        self.tokenizer.pad().unwrap_or(self.eod)
    }

    /// The examples of a record: one, or the preferred answer's and the other one's.
    ///
    /// # Errors
    /// Why it is none, as a sentence.
    pub(super) fn examples(&self, record: &Value) -> Result<Vec<Example>, String> {
        match self.options.kind {
            RecordKind::Preference => {
                [CHOSEN, REJECTED].map(|answer| self.of_answer(record, answer)).into_iter().collect()
            }
            RecordKind::AsWritten | RecordKind::Chat | RecordKind::Prompt => Ok(vec![self.example(record)?]),
        }
    }

    /// The prompt of a preference with one of its answers: all text, or all messages.
    fn of_answer(&self, record: &Value, answer: &str) -> Result<Example, String> {
        let example = match (&record[PROMPT], &record[answer]) {
            (Value::String(prompt), Value::String(text)) => {
                self.of_prompt(&json!({ "prompt": prompt, "completion": text }))?
            }
            (Value::Array(prompt), Value::Array(messages)) => {
                // Only answers count.
                let prompt = prompt.iter().cloned().map(|mut message| {
                    if let Some(fields) = message.as_object_mut() {
                        fields.insert("training".to_owned(), Value::Bool(false));
                    }
                    message
                });
                let messages: Vec<Value> = prompt.chain(messages.iter().cloned()).collect();
                self.of_chat(&json!({ "messages": messages }))?
            }
            _ => {
                let keys = record.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>().join(", "));
                return Err(format!(
                    "expected `{PROMPT}`, `{CHOSEN}` and `{REJECTED}`, all text or all lists of messages; found the fields {}",
                    keys.unwrap_or_default()
                ));
            }
        };
        if example.is_truncated {
            let longest = self.options.seq_length;
            return Err(format!(
                "the prompt with `{answer}` has more than {longest} tokens, and a part of an answer cannot be judged"
            ));
        }
        if example.weights.iter().any(|weight| *weight != 0.0 && *weight != 1.0) {
            return Err("tokens of a preference count alike: expected no weights".to_owned());
        }
        Ok(example)
    }

    /// The example of a record.
    ///
    /// # Errors
    /// Why it is none, as a sentence.
    pub(super) fn example(&self, record: &Value) -> Result<Example, String> {
        if !record.is_object() {
            return Err("expected an object".to_owned());
        }
        let factor = weight(record)?;
        let mut example = if record["input_ids"].is_array() {
            let (ids, weights) = of_ids(record, self.tokenizer.vocab_size())?;
            self.cut(ids, weights)
        } else {
            match self.options.kind {
                RecordKind::Prompt => self.of_prompt(record)?,
                RecordKind::AsWritten if !is_chat(record) => self.of_prompt(record)?,
                RecordKind::AsWritten | RecordKind::Chat | RecordKind::Preference => self.of_chat(record)?,
            }
        };
        example.weights.iter_mut().for_each(|weight| *weight *= factor);
        Ok(example)
    }

    fn of_prompt(&self, record: &Value) -> Result<Example, String> {
        let options = &self.options;
        let is_blank;
        let (mut pieces, shortened) = match &options.prompt_template {
            Some(template) => {
                is_blank = record[&options.label_key].as_str().is_some_and(|label| label.trim().is_empty());
                self.pieces_of(record, template)?
            }
            None => {
                let [input, label] = pair(record, &options.label_key)?;
                is_blank = label.trim().is_empty();
                let (input, label) = (input.trim_matches(' '), label.trim_matches(' '));
                let shortened = fields_to_shorten(options).next().map(|_| 0).into_iter().collect();
                (vec![self.encode(input)?, self.encode(&self.with_blanks(" ", label))?], shortened)
            }
        };
        let around = usize::from(options.add_bos) + usize::from(options.add_sep) + usize::from(options.add_eos);
        let (answer, before) =
            pieces.split_last().map_or((0, 0), |(answer, before)| (answer.len(), before.iter().map(Vec::len).sum()));
        let kept_free = options.tokens_to_generate;
        let total: usize = before + answer.max(kept_free) + around;
        let excess = total.saturating_sub(options.seq_length);
        shorten(&mut pieces, &shortened, Excess { tokens: excess, kept_free, method: options.truncation_method });
        let mut answer = pieces.pop().unwrap_or_default();
        let mut ids: Vec<i64> = Vec::with_capacity(total);
        ids.extend(self.bos.filter(|_| options.add_bos));
        ids.extend(pieces.into_iter().flatten());
        ids.extend(options.add_sep.then_some(self.eod));
        let begin = if options.answer_only_loss { ids.len() } else { 0 };
        ids.append(&mut answer);
        ids.extend(options.add_eos.then_some(self.eod));
        let weights = (0..ids.len()).map(|at| if at >= begin { 1.0 } else { 0.0 }).collect();
        // A sequence that is too short for the tokens around.
        let is_cut = ids.len() > options.seq_length;
        let mut example = Example { ids, weights, is_truncated: is_cut || excess > 0, is_blank, loses_calls: false };
        example.ids.truncate(options.seq_length);
        example.weights.truncate(options.seq_length);
        Ok(example)
    }

    /// The ids of a template's parts, of which the last is the answer, and which of them may be shortened.
    fn pieces_of(&self, record: &Value, template: &str) -> Result<(Vec<Vec<i64>>, Vec<usize>), String> {
        let (mut pieces, mut shortened) = (Vec::new(), Vec::new());
        for (at, part) in parts(template).into_iter().enumerate() {
            pieces.push(match part {
                Part::Text(text) => self.encode(&self.with_blanks("", text))?,
                Part::Field { blanks, name } => {
                    let value = record[name].as_str();
                    let value = value
                        .ok_or_else(|| format!("`{name}`, which the prompt template reads, is not text, or missing"))?;
                    if fields_to_shorten(&self.options).any(|field| field == name) {
                        shortened.push(at);
                    }
                    self.encode(&self.with_blanks(blanks, value.trim_matches(' ')))?
                }
            });
        }
        Ok((pieces, shortened))
    }

    /// Text of a part, without its first blank where the tokenizer makes one itself, as upstream.
    fn with_blanks(&self, blanks: &str, text: &str) -> String {
        let joined = format!("{blanks}{text}");
        match joined.strip_prefix(' ').filter(|_| self.makes_blanks) {
            Some(rest) => rest.to_owned(),
            None => joined,
        }
    }

    fn of_chat(&self, record: &Value) -> Result<Example, String> {
        let Spoken { mut conversation, weights } = if is_chat(record) {
            conversation(record)?
        } else {
            let [prompt, answer] = pair(record, &self.options.label_key)?;
            let messages =
                vec![json!({ "role": "user", "content": prompt }), json!({ "role": "assistant", "content": answer })];
            Spoken { conversation: Conversation { messages, tools: None }, weights: vec![1.0; 2] }
        };
        let template = self.template.as_ref().ok_or(
            "the tokenizer has no chat template: its folder lacks chat_template.jinja, and tokenizer.chat_template is not given",
        )?;
        let mut loses_calls = false;
        for message in conversation.messages.iter_mut().filter(|message| has_calls(message)) {
            if !template.writes_calls() {
                loses_calls = true;
                // Without its calls it says nothing, and nothing is not the word `None`.
                if message["content"].is_null() {
                    message["content"] = "".into();
                }
            }
        }
        let answers = conversation.messages.iter().zip(&weights).filter(|(_, weight)| **weight > 0.0);
        let is_blank = answers.map(|(message, _)| message).any(is_blank_answer);
        let (ids, counted) = match self.options.answer_only_loss {
            true => {
                let encoded = template.encode_weighted(&conversation, &weights, self.tokenizer.as_ref());
                encoded.map_err(|error| error.to_string())?
            }
            false => {
                let encoded =
                    template.ids(&conversation, self.tokenizer.as_ref()).map_err(|error| error.to_string())?;
                let weights = vec![1.0; encoded.len()];
                (encoded, weights)
            }
        };
        Ok(Example { is_blank, loses_calls, ..self.cut(ids, counted) })
    }

    /// What fits of a sequence.
    fn cut(&self, mut ids: Vec<i64>, mut weights: Vec<f32>) -> Example {
        let excess = ids.len().saturating_sub(self.options.seq_length);
        match self.options.truncation_method {
            TruncationMethod::Right => {
                ids.truncate(ids.len() - excess);
                weights.truncate(weights.len() - excess);
            }
            TruncationMethod::Left => {
                ids.drain(..excess);
                weights.drain(..excess);
            }
        }
        Example { ids, weights, is_truncated: excess > 0, is_blank: false, loses_calls: false }
    }

    fn encode(&self, text: &str) -> Result<Vec<i64>, String> {
        self.tokenizer.encode(text).map_err(|error| error.to_string())
    }
}
