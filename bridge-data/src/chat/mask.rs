//! Which tokens of a conversation the assistant says. A template says it with `{% generation %}`; of one that does not, prefixes of the
//! conversation are rendered: the assistant's words are what a message adds to the messages before it and the generation prompt.

use std::ops::Range;

use minijinja::Environment;

use super::{ChatError, ChatTemplate, Conversation, Ending, Reading, python};
use crate::tokenizer::Tokenizer;

/// Stand around what the assistant says in rendered text. Noncharacters of Unicode: no text has them.
const OPEN: char = '\u{fdd0}';
const CLOSE: char = '\u{fdd1}';
/// The filter that puts them there.
const FILTER: &str = "said_by_the_assistant";

/// A conversation as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedChat {
    /// The ids.
    pub ids: Vec<i64>,
    /// For each id whether the assistant says it. A sentence if that cannot be known: the template has no marks, and what it makes of a
    /// conversation does not begin with what it makes of its first messages.
    pub assistant_mask: Result<Vec<bool>, String>,
}

/// The template with marks as filter blocks, which keep its whitespace control, and whether it has any.
pub(super) fn with_marks(source: &str) -> (String, bool) {
    let (mut text, mut rest, mut found) = (String::with_capacity(source.len()), source, false);
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start + 2..].find("%}") else { break };
        let (inside, end) = (&rest[start + 2..start + 2 + length], start + length + 4);
        text.push_str(&rest[..start + 2]);
        let word = inside.trim_matches(|c: char| c.is_whitespace() || "-+".contains(c));
        match word {
            "generation" => {
                found = true;
                text.push_str(&inside.replacen(word, &format!(" filter {FILTER} "), 1));
            }
            "endgeneration" => text.push_str(&inside.replacen(word, " endfilter ", 1)),
            _ => text.push_str(inside),
        }
        text.push_str("%}");
        rest = &rest[end..];
    }
    text.push_str(rest);
    (text, found)
}

/// Makes the filter of [`with_marks`] known.
pub(super) fn add_filter(environment: &mut Environment<'static>) {
    environment.add_filter(FILTER, |text: String| format!("{OPEN}{text}{CLOSE}"));
}

/// Rendered text without marks, and the bytes of it that stood between them.
pub(super) fn without_marks(marked: String) -> (String, Vec<Range<usize>>) {
    if !marked.contains(OPEN) && !marked.contains(CLOSE) {
        return (marked, Vec::new());
    }
    let (mut text, mut spans, mut open) = (String::with_capacity(marked.len()), Vec::new(), None);
    for character in marked.chars() {
        match character {
            OPEN => open = Some(text.len()),
            CLOSE => spans.extend(open.take().map(|start| start..text.len())),
            other => text.push(other),
        }
    }
    (text, spans)
}

/// Refuses text that would be taken for marks.
pub(super) fn refuse_marks(conversation: &Conversation) -> Result<(), ChatError> {
    let has_marks = |value: &serde_json::Value| python::has_any(value, &[OPEN, CLOSE]);
    let others = conversation.tools.iter().chain(conversation.arguments.values());
    if conversation.messages.iter().chain(others).any(has_marks) {
        let (open, close) = (u32::from(OPEN), u32::from(CLOSE));
        return Err(ChatError::Refused(format!("it has the noncharacter U+{open:X} or U+{close:X}")));
    }
    Ok(())
}

pub(super) fn encode(
    template: &ChatTemplate,
    conversation: &Conversation,
    tokenizer: &dyn Tokenizer,
) -> Result<EncodedChat, ChatError> {
    let Spoken { text, spans } = spoken(template, conversation)?;
    let tokens = tokenizer.encode_with_offsets(&text)?;
    let ids = tokens.iter().map(|(id, _)| *id).collect();
    let says = |token: &Range<usize>, spans: &[Range<usize>]| spans.iter().any(|span| template.is_in(token, span));
    let assistant_mask = spans.map(|spans| tokens.iter().map(|(_, token)| says(token, &spans)).collect());
    Ok(EncodedChat { ids, assistant_mask })
}

pub(super) fn encode_weighted(
    template: &ChatTemplate,
    conversation: &Conversation,
    weights: &[f32],
    tokenizer: &dyn Tokenizer,
) -> Result<(Vec<i64>, Vec<f32>), ChatError> {
    let Spoken { text, spans } = spoken(template, conversation)?;
    let spans = spans.map_err(ChatError::NoMask)?;
    let said = conversation.messages.iter().zip(weights).filter(|(message, _)| message["role"] == "assistant");
    let said: Vec<f32> = said.map(|(_, weight)| *weight).collect();
    let is_uniform = said.windows(2).all(|pair| pair[0] == pair[1]);
    if !is_uniform && said.len() != spans.len() {
        return Err(ChatError::NoMask(format!(
            "its messages have different weights, and the template marks {} parts of {} messages",
            spans.len(),
            said.len()
        )));
    }
    let tokens = tokenizer.encode_with_offsets(&text)?;
    let weight_of = |token: &Range<usize>| {
        // Spans follow one another: only the first that ends behind the token's start can hold it.
        let at = spans.partition_point(|span| span.end <= token.start);
        spans.get(at).filter(|span| template.is_in(token, span))?;
        said.get(at).or(said.last()).copied()
    };
    Ok(tokens.into_iter().map(|(id, token)| (id, weight_of(&token).unwrap_or(0.0))).unzip())
}

/// A rendered conversation.
struct Spoken {
    text: String,
    /// Bytes of what the assistant says, or why they are not known.
    spans: Result<Vec<Range<usize>>, String>,
}

fn spoken(template: &ChatTemplate, conversation: &Conversation) -> Result<Spoken, ChatError> {
    let reading = template.read(conversation)?;
    let (text, marked) = without_marks(reading.render(conversation.messages.len(), Ending::Complete)?);
    let spans = if template.is_marked { Ok(marked) } else { prefix_spans(&reading, conversation, &text)? };
    Ok(Spoken { text, spans })
}

impl ChatTemplate {
    /// Whether the assistant says a token: of a marked span a part of it suffices, as in transformers.
    fn is_in(&self, token: &Range<usize>, span: &Range<usize>) -> bool {
        match self.is_marked {
            true => token.start < span.end && token.end > span.start,
            false => token.start >= span.start && token.end <= span.end,
        }
    }
}

/// The assistant's words by comparing prefixes; a sentence if these do not agree with the whole.
fn prefix_spans(
    reading: &Reading<'_>,
    conversation: &Conversation,
    text: &str,
) -> Result<Result<Vec<Range<usize>>, String>, ChatError> {
    let mut spans = Vec::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        if message["role"] != "assistant" {
            continue;
        }
        let before = without_marks(reading.render(at, Ending::GenerationPrompt)?).0;
        let after = match at + 1 == conversation.messages.len() {
            true => text.to_owned(),
            false => without_marks(reading.render(at + 1, Ending::Complete)?).0,
        };
        if !after.starts_with(&before) || !text.starts_with(&after) {
            return Ok(Err(format!(
                "the chat template has no {{% generation %}} marks, and what it makes of all messages does not begin with what it makes of the \
                 first {}. Mark what the assistant says in the template, or count all tokens with dataset.dataset_kwargs.answer_only_loss = false",
                at + 1
            )));
        }
        spans.push(before.len()..after.len());
    }
    Ok(Ok(spans))
}
