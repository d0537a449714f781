//! Tokens that the assistant generates. A template marks them with `{% generation %}`. Of one that
//! does not, the evaluation tells which bytes were written for which message; the generation prompt
//! before a message, which the model is given, is taken off its beginning.

use std::ops::Range;

use super::jinja::{Owned, Rendered};
use super::{ChatError, ChatTemplate, Conversation, Ending, Reading};
use crate::tokenizer::Tokenizer;

/// A conversation as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedChat {
    /// The ids.
    pub ids: Vec<i64>,
    /// For each id, true if the assistant generates it. A sentence if that cannot be known.
    pub assistant_mask: Result<Vec<bool>, String>,
}

pub(super) fn encode(
    template: &ChatTemplate,
    conversation: &Conversation,
    tokenizer: &dyn Tokenizer,
) -> Result<EncodedChat, ChatError> {
    let is_assistant = |at: usize| conversation.messages[at]["role"] == "assistant";
    let RenderedChat { text, spans, is_marked } = render_with_spans(template, conversation, is_assistant)?;
    let (mut ids, mut mask) = (Vec::new(), Vec::new());
    tokenizer.encode_with_offsets(&text, &mut |id, token| {
        ids.push(id);
        mask.extend(spans.as_ref().ok().map(|spans| span_of(spans, &token, is_marked).is_some()));
    })?;
    Ok(EncodedChat { ids, assistant_mask: spans.map(|_| mask) })
}

pub(super) fn encode_weighted(
    template: &ChatTemplate,
    conversation: &Conversation,
    weights: &[f32],
    tokenizer: &dyn Tokenizer,
    on_token: &mut dyn FnMut(i64, f32),
) -> Result<(), ChatError> {
    let is_assistant = |at: usize| conversation.messages[at]["role"] == "assistant";
    let weight = |at: usize| weights.get(at).copied().unwrap_or(0.0);
    let RenderedChat { text, spans, is_marked } =
        render_with_spans(template, conversation, |at| is_assistant(at) && weight(at) > 0.0)?;
    let spans = spans.map_err(ChatError::NoMask)?;
    // Marked spans are those of the assistant's messages in their order, if there are as many.
    let said: Vec<usize> = (0..conversation.messages.len()).filter(|at| is_assistant(*at)).collect();
    let is_uniform = said.windows(2).all(|pair| weight(pair[0]) == weight(pair[1]));
    if is_marked && !is_uniform && said.len() != spans.len() {
        return Err(ChatError::NoMask(format!(
            "its messages have different weights, and the template marks {} parts of {} messages",
            spans.len(),
            said.len()
        )));
    }
    let weight_of = |token: &Range<usize>| {
        let span = span_of(&spans, token, is_marked)?;
        let message = spans[span].message.or_else(|| said.get(span).or(said.last()).copied())?;
        Some(weight(message))
    };
    tokenizer.encode_with_offsets(&text, &mut |id, token| on_token(id, weight_of(&token).unwrap_or(0.0)))?;
    Ok(())
}

/// Bytes that the assistant generates.
struct Span {
    bytes: Range<usize>,
    /// Place of the message, unless only its order is known.
    message: Option<usize>,
}

/// The span that a token is in: of a marked span a part of it suffices, as in transformers.
fn span_of(spans: &[Span], token: &Range<usize>, is_marked: bool) -> Option<usize> {
    // Spans follow one another: only the first that ends after the token's start can hold it.
    let at = spans.partition_point(|span| span.bytes.end <= token.start);
    let bytes = &spans.get(at)?.bytes;
    let is_in = match is_marked {
        true => token.start < bytes.end && token.end > bytes.start,
        false => token.start >= bytes.start && token.end <= bytes.end,
    };
    is_in.then_some(at)
}

/// A rendered conversation, with what the assistant generates.
struct RenderedChat {
    text: String,
    /// Spans that the assistant generates, in order, or the reason that they are unknown.
    spans: Result<Vec<Span>, String>,
    is_marked: bool,
}

/// Renders a conversation and finds the spans of the messages that count.
fn render_with_spans(
    template: &ChatTemplate,
    conversation: &Conversation,
    counts: impl Fn(usize) -> bool,
) -> Result<RenderedChat, ChatError> {
    let reading = template.read(conversation);
    let all = 0..conversation.messages.len();
    let Rendered { text, mut generated, owned } = reading.render(&reading.all(), Ending::Complete)?;
    if reading.variant.has_generation() {
        generated.sort_by_key(|bytes| bytes.start);
        let spans = generated.into_iter().map(|bytes| Span { bytes, message: None }).collect();
        return Ok(RenderedChat { text, spans: Ok(spans), is_marked: true });
    }
    let message_text = MessageText::new(template, &reading, &text, &owned);
    let mut spans = Vec::new();
    for at in all.filter(|at| counts(*at)) {
        match message_text.spans(at) {
            Ok(found) => spans.extend(found),
            Err(problem) => return Ok(RenderedChat { text, spans: Err(problem), is_marked: false }),
        }
    }
    spans.sort_by_key(|span| span.bytes.start);
    Ok(RenderedChat { text, spans: Ok(spans), is_marked: false })
}

/// Text of a conversation, with the bytes that were written for each message.
struct MessageText<'a> {
    template: &'a ChatTemplate,
    reading: &'a Reading<'a>,
    text: &'a str,
    owned: &'a [Owned],
    /// Places in `owned` of each message.
    places: Vec<Vec<usize>>,
}

impl<'a> MessageText<'a> {
    fn new(template: &'a ChatTemplate, reading: &'a Reading<'a>, text: &'a str, owned: &'a [Owned]) -> Self {
        let mut places = vec![Vec::new(); reading.count()];
        owned.iter().enumerate().for_each(|(at, owned)| places[owned.message].push(at));
        Self { template, reading, text, owned, places }
    }

    /// Spans that the model generates for a message: its bytes after the generation prompt, with
    /// the end of its turn.
    ///
    /// # Errors
    /// The reason why they are unknown, as a sentence.
    fn spans(&self, message: usize) -> Result<Vec<Span>, String> {
        let Some(first) = self.places[message].first() else {
            // A loop wrote other messages, and nothing for this one.
            return if self.owned.is_empty() { self.by_prefixes(message) } else { Ok(Vec::new()) };
        };
        let mut bytes: Vec<Range<usize>> = Vec::new();
        for at in &self.places[message] {
            let piece = &self.owned[*at].bytes;
            match bytes.last_mut() {
                Some(last) if last.end == piece.start => last.end = piece.end,
                _ => bytes.push(piece.clone()),
            }
        }
        let before = first.checked_sub(1).map(|before| &self.owned[before]);
        let Some(start) = self.start(message, before, bytes[0].clone()) else { return self.by_prefixes(message) };
        let is_last = message + 1 == self.reading.count();
        if let (Some(last), Some(at)) = (bytes.last_mut(), self.places[message].last()) {
            last.end = if is_last { self.text.len() } else { self.end(*at) };
        }
        bytes[0].start = start;
        let spans = bytes.into_iter().filter(|bytes| bytes.start < bytes.end);
        Ok(spans.map(|bytes| Span { bytes, message: Some(message) }).collect())
    }

    /// Position at which the model begins to generate a message whose first bytes are `first`,
    /// after bytes of another message (`before`). `None` if it cannot be determined.
    fn start(&self, message: usize, before: Option<&Owned>, first: Range<usize>) -> Option<usize> {
        let own = self.reading.prompt(message, self.text, before);
        let end_before = before.map_or(0, |before| before.bytes.end);
        let usual = self.template.prompt(self.reading.has_tools());
        let prompts = || own.iter().map(|prompt| &**prompt).chain([usual]);
        let bos = self.reading.bos();
        let begin = first.start + if self.text[first.clone()].starts_with(bos) { bos.len() } else { 0 };
        let from = [end_before, first.start, begin];
        let find = |matching: fn(&str, &str) -> Option<usize>| {
            let ends = prompts().flat_map(|prompt| {
                let ends = from.map(|from| Some(from + matching(prompt, &self.text[from..first.end])?));
                ends.into_iter().flatten()
            });
            ends.into_iter().find(|end| *end >= first.start)
        };
        let exact = |prompt: &str, text: &str| text.starts_with(prompt).then_some(prompt.len());
        // Blanks around a prompt often differ from those around a header.
        let behind_blanks = |prompt: &str, text: &str| {
            let rest = text.trim_start().strip_prefix(prompt.trim_start()).filter(|_| !prompt.trim().is_empty())?;
            Some(text.len() - rest.len())
        };
        let without_blanks = |prompt: &str, text: &str| {
            let rest = text.trim_start().strip_prefix(prompt.trim()).filter(|_| !prompt.trim().is_empty())?;
            Some(text.len() - rest.len())
        };
        if let Some(end) = find(exact).or_else(|| find(behind_blanks)).or_else(|| find(without_blanks)) {
            return Some(end);
        }
        // The beginning of a conversation may precede the prompt of the first message.
        if message == 0
            && !usual.is_empty()
            && let Some(at) = self.text[first.clone()].find(usual)
        {
            return Some(first.start + at + usual.len());
        }
        // History may be written without the thinking that a prompt begins.
        if let Some(end) = find(common_header) {
            return Some(end);
        }
        // An answer may go on with the turn of another one, without a header of its own.
        let tag = usual.split_inclusive('>').next().unwrap_or(usual).trim();
        let goes_on = message > 0 && self.reading.role(message - 1) != "user" && !tag.is_empty();
        if goes_on && !self.text[first.clone()].contains(tag) {
            return Some(first.start);
        }
        // A prompt of blanks may differ from those before an answer, which stand between tags.
        let is_blank = own.is_some_and(|prompt| prompt.trim().is_empty());
        is_blank.then(|| first.end - self.text[first].trim_start().len())
    }

    /// The end of a turn whose last bytes are those at a place of `owned`: where a conversation
    /// would end with it. Where the template writes nothing that ends a turn, the role that comes
    /// next tells that it is over, and belongs to it.
    fn end(&self, place: usize) -> usize {
        let owned = &self.owned[place];
        let Range { start, end } = owned.bytes;
        let ending = self.template.end_of_turn();
        if !ending.trim().is_empty() && self.text[start..end].ends_with(ending) {
            return end;
        }
        let alone = self.reading.ending_with(owned.message).unwrap_or_default();
        let end = if !alone.is_empty() && self.text[start..].starts_with(&*alone) { start + alone.len() } else { end };
        if self.template.ends_turns() {
            return end;
        }
        let rest = self.text[end..].trim_start();
        let close = match rest.chars().next() {
            Some('<') => rest.find('>'),
            Some('[') => rest.find(']'),
            _ => None,
        };
        let mark = close.map(|at| self.text.len() - rest.len() + at + 1);
        mark.filter(|mark| self.is_role(place + 1, *mark)).unwrap_or(end)
    }

    /// True if the bytes up to `mark` tell the role of the message at a place of `owned`: all of
    /// its content comes after them.
    fn is_role(&self, place: usize, mark: usize) -> bool {
        let Some(next) = self.owned.get(place).map(|owned| owned.message) else { return false };
        let end = self.places[next].last().map_or(0, |last| self.owned[*last].bytes.end);
        let content = self.reading.content(next).filter(|content| !content.is_empty());
        content.zip(self.text.get(mark..end)).is_some_and(|(content, text)| text.contains(content))
    }

    /// The bytes of a message by comparing the text with that of the messages before; a sentence if
    /// these do not agree.
    fn by_prefixes(&self, message: usize) -> Result<Vec<Span>, String> {
        let problem = |problem: &str| {
            format!(
                "the chat template has no {{% generation %}} marks, and {problem}. \
                 Mark in the template what the assistant generates, or count all tokens with dataset.dataset_kwargs.answer_only_loss = false"
            )
        };
        let number = message + 1;
        let render = |count: usize, ending: Ending| {
            let rendered = self.reading.render(&self.reading.all()[..count], ending);
            let refused = |error| problem(&format!("without message {number} and those after it, {error}"));
            rendered.map(|rendered| rendered.text).map_err(refused)
        };
        let before = render(message, Ending::GenerationPrompt)?;
        let after = match number == self.reading.count() {
            true => self.text.to_owned(),
            false => render(number, Ending::Complete)?,
        };
        if !after.starts_with(&before) || !self.text.starts_with(&after) {
            return Err(problem(&format!("its text for message {number} does not begin with its generation prompt")));
        }
        Ok(vec![Span { bytes: before.len()..after.len(), message: Some(message) }])
    }
}

/// Length of the common prefix of a text and a generation prompt, if the rest of the prompt has
/// only thinking tags.
fn common_header(prompt: &str, text: &str) -> Option<usize> {
    let pairs = prompt.char_indices().zip(text.chars());
    let common = pairs.take_while(|((_, a), b)| a == b).last().map_or(0, |((at, c), _)| at + c.len_utf8());
    // A tag that is cut in two belongs to the rest.
    let common = match prompt[..common].rfind('<') {
        Some(open) if !prompt[open..common].contains('>') => open,
        _ => common,
    };
    let rest = prompt[common..].trim_start();
    (common > 0 && (rest.is_empty() || rest.starts_with(['<', '[']))).then_some(common)
}
