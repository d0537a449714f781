//! A record as token ids, with the weight of each in the loss.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::ids::of_ids;
use super::messages::{Words, has_calls, is_blank_answer, refuse_media, weight_of_record};
use super::params::{ExampleOptions, RecordKind, TruncationMethod};
use super::preferences::{self, Pair, pair};
use super::prompt::{Excess, Part, fields_to_shorten, parts, shorten};
use super::spellings::{Answer, Asked, Spoken, asked, conversation, has_messages, is_conversation, refuse_judged};
use crate::DataError;
use crate::chat::{ChatTemplate, Conversation};
use crate::tokenizer::{Tokenizer, require_eod};

/// Version of the rules that turn a record into tokens: stored examples of another version are
/// built anew.
const RULES: u32 = 6;

/// Token ids and their weights in the loss; both have the same length.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Example {
    pub(super) ids: Vec<i64>,
    /// The weight of each id as one that is predicted.
    pub(super) weights: Vec<f32>,
    /// True if a part was cut off.
    pub(super) is_truncated: bool,
    /// True if an answer in it is empty or blank.
    pub(super) is_blank: bool,
    /// True if it has tool calls that the chat template does not write.
    pub(super) loses_calls: bool,
    /// True if it ends with an answer that counts, after which the chat template writes nothing
    /// that ends a turn.
    pub(super) is_unended: bool,
}

impl Example {
    /// True if an id in it counts for the loss. The first id is not predicted, so it does not
    /// count.
    pub(super) fn counts(&self) -> bool {
        self.weights.iter().skip(1).any(|weight| *weight > 0.0)
    }
}

/// Examples of a record, and the fields of the record that they do not use.
#[derive(Debug)]
pub(super) struct ParsedRecord {
    /// One, or the preferred answer's and the other one's.
    pub(super) examples: Vec<Example>,
    /// Fields that nothing used.
    pub(super) unused: Vec<String>,
    /// True if the two answers of a preference have different messages of the user.
    pub(super) differs: bool,
}

/// Makes examples of records.
pub(super) struct ExampleBuilder {
    tokenizer: Arc<dyn Tokenizer>,
    template: Option<ChatTemplate>,
    words: Words,
    options: ExampleOptions,
    eod: i64,
    /// Ids that prompts begin with.
    prefix: Vec<i64>,
    /// True if the tokenizer itself prepends a blank to each text.
    adds_prefix_space: bool,
}

impl ExampleBuilder {
    pub(super) fn new(
        tokenizer: Arc<dyn Tokenizer>,
        template: Option<ChatTemplate>,
        options: ExampleOptions,
    ) -> Result<Self, DataError> {
        let eod = require_eod(tokenizer.as_ref())?;
        let prefix = match (options.add_bos, tokenizer.bos()) {
            (None, _) => tokenizer.prefix().to_vec(),
            (Some(false), _) => Vec::new(),
            (Some(true), Some(bos)) => vec![bos],
            (Some(true), None) => {
                let message =
                    "dataset.dataset_kwargs.add_bos: the tokenizer names no beginning-of-sequence token".to_owned();
                return Err(DataError::NoTokenizer(message));
            }
        };
        let words = Words::from_template(template.as_ref());
        let ids = |text: &str| tokenizer.encode(text).unwrap_or_default();
        let adds_prefix_space = ids("x y") == [ids("x"), ids("y")].concat();
        Ok(Self { tokenizer, template, words, options, eod, prefix, adds_prefix_space })
    }

    /// Identity of all inputs that determine the tokens.
    pub(super) fn identity(&self) -> Value {
        json!({
            "rules": RULES,
            "tokenizer": self.tokenizer.unique_identifier(),
            "prefix": self.prefix,
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

    /// The examples of a record.
    ///
    /// # Errors
    /// The reason, as a sentence, if the record is not an example.
    pub(super) fn read(&self, record: &Value) -> Result<ParsedRecord, String> {
        let mut fields = Fields::survey(record)?;
        refuse_media(fields.all())?;
        let (examples, differs) = match self.options.kind {
            RecordKind::Preference => self.preference(&mut fields, false)?,
            RecordKind::ChatPreference => self.preference(&mut fields, true)?,
            RecordKind::AsWritten | RecordKind::Chat | RecordKind::Prompt => (vec![self.example(&mut fields)?], false),
        };
        Ok(ParsedRecord { examples, unused: fields.unused(), differs })
    }

    /// The prompt of a preference with each of its answers, and true if these have different
    /// messages of the user.
    fn preference(&self, fields: &mut Fields<'_>, is_chat: bool) -> Result<(Vec<Example>, bool), String> {
        let mut differs = false;
        let examples = match pair(fields, &self.words, is_chat)? {
            Pair::Text { prompt, answers } => {
                let example = |answer: &String| self.of_texts(&prompt, answer, false);
                answers.iter().map(example).collect::<Result<Vec<_>, _>>()?
            }
            Pair::Chat(pair) => {
                pair.iter().for_each(|spoken| self.name_unwritten(fields, &spoken.conversation));
                let asked = |at: usize| {
                    let messages = pair[at].conversation.messages.iter();
                    messages.filter(|message| message["role"] == "user" || message["role"] == "system")
                };
                differs = !asked(0).eq(asked(1));
                (*pair).map(|spoken| self.of_chat(spoken)).into_iter().collect::<Result<Vec<_>, _>>()?
            }
        };
        for (example, answer) in examples.iter().zip(preferences::ANSWERS) {
            if example.is_truncated {
                let longest = self.options.seq_length;
                return Err(format!(
                    "the prompt with `{answer}` has more than {longest} tokens, and a part of an answer cannot be judged"
                ));
            }
            if example.weights.iter().any(|weight| *weight != 0.0 && *weight != 1.0) {
                return Err("tokens of a preference count alike: expected no weights".to_owned());
            }
        }
        Ok((examples, differs))
    }

    /// The example of a record with one answer.
    fn example(&self, fields: &mut Fields<'_>) -> Result<Example, String> {
        let factor = weight_of_record(fields)?;
        let has_template = self.options.prompt_template.is_some();
        let mut example = match self.options.kind {
            _ if fields.look_at("input_ids").is_array() => {
                let (ids, weights) = of_ids(fields, self.tokenizer.vocab_size())?;
                self.cut(ids, weights)
            }
            RecordKind::Prompt => self.of_prompt(fields)?,
            RecordKind::AsWritten if has_template && !has_messages(fields) => self.of_prompt(fields)?,
            RecordKind::AsWritten if !is_conversation(fields) => self.of_prompt(fields)?,
            _ => {
                self.template()?;
                let spoken = conversation(fields, &self.words, &self.options.label_key)?;
                self.name_unwritten(fields, &spoken.conversation);
                self.of_chat(spoken)?
            }
        };
        example.weights.iter_mut().for_each(|weight| *weight *= factor);
        Ok(example)
    }

    /// Notes fields of messages that the chat template does not read, and roles whose text it does
    /// not write, such as one that it does not know. The text of users and assistants is written,
    /// and that of tools may be written as JSON.
    fn name_unwritten(&self, fields: &mut Fields<'_>, conversation: &Conversation) {
        const WRITTEN: [&str; 3] = ["user", "assistant", "tool"];
        let mut others: Vec<(&str, &str)> = Vec::new();
        for message in &conversation.messages {
            let (role, text) = (message["role"].as_str(), message["content"].as_str());
            let (role, text) = (role.unwrap_or_default(), text.unwrap_or_default().trim());
            if !WRITTEN.contains(&role) && !text.is_empty() {
                others.push((role, text));
            }
        }
        let mut names = conversation.messages.iter().filter_map(Value::as_object).flat_map(Map::keys);
        if others.is_empty() && names.all(|name| name == "role" || name == "content") {
            return;
        }
        let Some(template) = &self.template else { return };
        // A refusal is an error where the conversation is encoded.
        let Ok((written, unread)) = template.render_with_unread(conversation) else { return };
        unread.into_iter().for_each(|field| fields.leave(field));
        for (role, text) in others {
            if !written.contains(text) {
                fields.leave(format!("messages[].content of role {role}"));
            }
        }
    }

    /// A prompt with its answer, as text.
    fn of_prompt(&self, fields: &mut Fields<'_>) -> Result<Example, String> {
        let label_key = &self.options.label_key;
        refuse_judged(fields, label_key)?;
        if let Some(template) = &self.options.prompt_template {
            let is_blank = fields.look_at(label_key).as_str().is_some_and(|label| label.trim().is_empty());
            let (pieces, shortened) = self.pieces_of(fields, template)?;
            return Ok(self.joined(pieces, &shortened, is_blank));
        }
        if is_conversation(fields) && !has_messages(fields) {
            return Err(
                "`history` and `tools` are written by a chat template: dataset.dataset_kwargs.chat = true".to_owned()
            );
        }
        let Asked { system, prompt, answer, has_blank } = asked(fields, label_key)?;
        let Answer::Text(answer) = answer else {
            return Err("calls are written by a chat template: dataset.dataset_kwargs.chat = true".to_owned());
        };
        let prompt = system.map_or_else(|| prompt.clone(), |system| format!("{system}\n\n{prompt}"));
        self.of_texts(&prompt, &answer, has_blank)
    }

    /// A prompt and its answer, one directly after the other, or with one blank between them.
    fn of_texts(&self, prompt: &str, answer: &str, has_blank: bool) -> Result<Example, String> {
        let pieces = match has_blank {
            true => {
                let (prompt, answer) = (prompt.trim_matches(' '), answer.trim_matches(' '));
                vec![self.encode(prompt)?, self.encode(&self.with_blanks(" ", answer))?]
            }
            false => {
                let asked = self.encode(prompt)?;
                // After a prompt some tokenizers encode a text with other ids than at the
                // beginning. Prompt and answer of digits must not be joined for this: "4" and "2"
                // would become 42.
                let both = self.encode(&format!("{prompt}{answer}")).unwrap_or_default();
                let answered = match both.strip_prefix(asked.as_slice()) {
                    Some(answered) => answered.to_vec(),
                    None => self.encode(answer)?,
                };
                vec![asked, answered]
            }
        };
        let shortened: Vec<usize> = fields_to_shorten(&self.options).next().map(|_| 0).into_iter().collect();
        Ok(self.joined(pieces, &shortened, answer.trim().is_empty()))
    }

    /// The example of pieces, of which the last is the answer.
    fn joined(&self, mut pieces: Vec<Vec<i64>>, shortened: &[usize], is_blank: bool) -> Example {
        let options = &self.options;
        let end = options.add_eos.then_some(self.eod);
        // An answer that has its end already gets no second one.
        if let Some(answer) = pieces.last_mut().filter(|answer| end.is_some() && answer.last() == end.as_ref()) {
            answer.pop();
        }
        let around = self.prefix.len() + usize::from(options.add_sep) + usize::from(end.is_some());
        let (answer, before) =
            pieces.split_last().map_or((0, 0), |(answer, before)| (answer.len(), before.iter().map(Vec::len).sum()));
        let kept_free = options.tokens_to_generate;
        let total: usize = before + answer.max(kept_free) + around;
        let excess = total.saturating_sub(options.seq_length);
        shorten(&mut pieces, shortened, Excess { tokens: excess, kept_free, method: options.truncation_method });
        let mut answer = pieces.pop().unwrap_or_default();
        let mut ids: Vec<i64> = Vec::with_capacity(total);
        ids.extend(&self.prefix);
        ids.extend(pieces.into_iter().flatten());
        ids.extend(options.add_sep.then_some(self.eod));
        let begin = if options.answer_only_loss { ids.len() } else { 0 };
        ids.append(&mut answer);
        ids.extend(end);
        let weights = (0..ids.len()).map(|at| if at >= begin { 1.0 } else { 0.0 }).collect();
        // A sequence that is too short for the tokens around.
        let is_cut = ids.len() > options.seq_length;
        let mut example = Example {
            ids,
            weights,
            is_truncated: is_cut || excess > 0,
            is_blank,
            loses_calls: false,
            is_unended: false,
        };
        example.ids.truncate(options.seq_length);
        example.weights.truncate(options.seq_length);
        example
    }

    fn template(&self) -> Result<&ChatTemplate, String> {
        self.template.as_ref().ok_or_else(|| {
            "the tokenizer has no chat template: its folder lacks chat_template.jinja, and tokenizer.chat_template is not given"
                .to_owned()
        })
    }

    /// The ids of a template's parts, of which the last is the answer, and which of them may be
    /// shortened.
    fn pieces_of(&self, fields: &mut Fields<'_>, template: &str) -> Result<(Vec<Vec<i64>>, Vec<usize>), String> {
        let (mut pieces, mut shortened) = (Vec::new(), Vec::new());
        for (at, part) in parts(template).into_iter().enumerate() {
            pieces.push(match part {
                Part::Text(text) => self.encode(&self.with_blanks("", text))?,
                Part::Field { blanks, name } => {
                    let value = fields.take_text(name);
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
        match joined.strip_prefix(' ').filter(|_| self.adds_prefix_space) {
            Some(rest) => rest.to_owned(),
            None => joined,
        }
    }

    fn of_chat(&self, spoken: Spoken) -> Result<Example, String> {
        let Spoken { mut conversation, weights } = spoken;
        let template = self.template()?;
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
        let ends_with_answer = conversation.messages.last().is_some_and(|message| message["role"] == "assistant")
            && weights.last().is_some_and(|weight| *weight > 0.0);
        let is_unended = ends_with_answer && !template.ends_turns();
        let (tokenizer, ExampleOptions { seq_length, truncation_method, .. }) = (&*self.tokenizer, &self.options);
        let (mut ids, mut counted) = (Vec::new(), Vec::new());
        let encoded = match self.options.answer_only_loss {
            true => template.encode_weighted(&conversation, &weights, tokenizer, &mut |id, weight| {
                // Drops early the tokens that `cut` takes off, except one: it marks the example
                // as truncated.
                if *truncation_method == TruncationMethod::Right && ids.len() > *seq_length {
                    return;
                }
                if ids.len() > seq_length.saturating_mul(2) {
                    self.shorten_to_sequence(&mut ids);
                    self.shorten_to_sequence(&mut counted);
                }
                ids.push(id);
                counted.push(weight);
            }),
            false => template.ids(&conversation, tokenizer).map(|all| ids = all),
        };
        encoded.map_err(|error| error.to_string())?;
        let mut example = self.cut(ids, counted);
        example.weights.resize(example.ids.len(), 1.0);
        Ok(Example { is_blank, loses_calls, is_unended, ..example })
    }

    /// Truncates ids and weights to the length of a sequence.
    fn cut(&self, mut ids: Vec<i64>, mut weights: Vec<f32>) -> Example {
        let is_truncated = ids.len() > self.options.seq_length;
        self.shorten_to_sequence(&mut ids);
        self.shorten_to_sequence(&mut weights);
        Example { ids, weights, is_truncated, is_blank: false, loses_calls: false, is_unended: false }
    }

    fn shorten_to_sequence<T>(&self, of_tokens: &mut Vec<T>) {
        match self.options.truncation_method {
            TruncationMethod::Right => of_tokens.truncate(self.options.seq_length),
            TruncationMethod::Left => drop(of_tokens.drain(..of_tokens.len().saturating_sub(self.options.seq_length))),
        }
    }

    fn encode(&self, text: &str) -> Result<Vec<i64>, String> {
        self.tokenizer.encode(text).map_err(|error| error.to_string())
    }
}
