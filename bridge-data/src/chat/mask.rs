//! Which tokens of a conversation the assistant says. A template says it with `{% generation %}`; of one that does not, prefixes of the
//! conversation are rendered: the assistant's words are what a message adds to the messages before it and the generation prompt.

use std::ops::Range;

use minijinja::Environment;

use super::{ChatError, ChatTemplate, Conversation, Ending};
use crate::tokenizer::HuggingFaceTokenizer;

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
    /// For each id whether the assistant says it. `None` if that cannot be known: the template has no marks, and what it makes of a
    /// conversation does not begin with what it makes of its first messages.
    pub assistant_mask: Option<Vec<bool>>,
}

/// The template with marks as filter blocks, which keep its whitespace control, and whether it has any.
pub(super) fn with_marks(source: &str) -> (String, bool) {
    let (mut text, mut rest, mut found) = (String::with_capacity(source.len()), source, false);
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (inside, end) = (&rest[start + 2..start + length], start + length + 2);
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
pub(super) fn without_marks(marked: &str) -> (String, Vec<Range<usize>>) {
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
    let has_marks = |value: &serde_json::Value| value.to_string().contains([OPEN, CLOSE]);
    if conversation.messages.iter().chain(&conversation.tools).any(has_marks) {
        let (open, close) = (u32::from(OPEN), u32::from(CLOSE));
        return Err(ChatError::Refused(format!("it has the noncharacter U+{open:X} or U+{close:X}")));
    }
    Ok(())
}

pub(super) fn encode(
    template: &ChatTemplate,
    conversation: &Conversation,
    tokenizer: &HuggingFaceTokenizer,
) -> Result<EncodedChat, ChatError> {
    let (text, spans) = without_marks(&template.render_marked(conversation, Ending::Complete)?);
    let tokens = tokenizer.encode_with_offsets(&text)?;
    let ids = tokens.iter().map(|(id, _)| *id).collect();
    let in_any = |spans: &[Range<usize>], is_in: fn(&Range<usize>, &Range<usize>) -> bool| {
        tokens.iter().map(|(_, token)| spans.iter().any(|span| is_in(token, span))).collect::<Vec<bool>>()
    };
    let assistant_mask = if template.is_marked {
        // A token that is partly marked counts.
        Some(in_any(&spans, |token, span| token.start < span.end && token.end > span.start))
    } else {
        let spans = prefix_spans(template, conversation, &text)?;
        spans.map(|spans| in_any(&spans, |token, span| token.start >= span.start && token.end <= span.end))
    };
    Ok(EncodedChat { ids, assistant_mask })
}

/// The assistant's words by comparing prefixes; `None` if these do not agree with the whole.
fn prefix_spans(
    template: &ChatTemplate,
    conversation: &Conversation,
    text: &str,
) -> Result<Option<Vec<Range<usize>>>, ChatError> {
    let mut spans = Vec::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        if message["role"] != "assistant" {
            continue;
        }
        let before = template.render(&conversation.prefix(at), Ending::GenerationPrompt)?;
        let after = template.render(&conversation.prefix(at + 1), Ending::Complete)?;
        if !after.starts_with(&before) || !text.starts_with(&after) {
            return Ok(None);
        }
        spans.push(before.len()..after.len());
    }
    Ok(Some(spans))
}
