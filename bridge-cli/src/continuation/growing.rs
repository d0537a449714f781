//! The text of a continuation that grows token by token: which of it can be shown, and where it
//! ends.

use std::ops::ControlFlow;

use bridge_data::tokenizer::Tokenizer;

use super::{Continued, End, Prompt, Request};

/// A continuation that is being generated.
pub(super) struct Growing<'a> {
    request: &'a Request<'a>,
    tokenizer: &'a dyn Tokenizer,
    /// Context of the text.
    context: &'a [i64],
    ids: Vec<i64>,
    /// The text of the first [`Self::text_ids`] ids.
    text: String,
    text_ids: usize,
    /// The text of the first [`Self::settled_ids`] ids, which those after them change no more.
    settled: String,
    settled_ids: usize,
    /// Bytes of the text that were handed on.
    shown: usize,
    /// True if a text that ends the continuation was found.
    is_cut: bool,
    end: End,
}

impl<'a> Growing<'a> {
    pub fn new(request: &'a Request<'a>, tokenizer: &'a dyn Tokenizer) -> Self {
        let Prompt { ids, has_text } = request.prompt;
        // The answer to an encoder's input does not continue the input.
        let is_continued = *has_text && request.options.decoder_start.is_none();
        let context: &[i64] = if is_continued { ids } else { &[] };
        let (text, settled) = (String::new(), String::new());
        let (ids, end) = (Vec::new(), End::Length);
        Self {
            request,
            tokenizer,
            context,
            ids,
            text,
            text_ids: 0,
            settled,
            settled_ids: 0,
            shown: 0,
            is_cut: false,
            end,
        }
    }

    /// Adds a token.
    pub fn take(&mut self, token: i64, on_text: &mut dyn FnMut(&str)) -> ControlFlow<()> {
        if self.request.options.stop_tokens.contains(&token) {
            self.end = End::Stop;
            return ControlFlow::Break(());
        }
        self.ids.push(token);
        // A token may end in the middle of a character: wait for the rest of it.
        match self.latest().filter(|text| !text.ends_with('\u{fffd}')) {
            Some(text) => self.grow(text, on_text),
            None => ControlFlow::Continue(()),
        }
    }

    /// The text of all ids.
    fn latest(&self) -> Option<String> {
        let (settled, behind) = self.ids.split_at(self.settled_ids);
        let text = continuation(self.tokenizer, &[self.context, settled].concat(), behind)?;
        Some(format!("{}{text}", self.settled))
    }

    /// Sets the text of all ids, and passes on its new part.
    fn grow(&mut self, mut text: String, on_text: &mut dyn FnMut(&str)) -> ControlFlow<()> {
        if !text.starts_with(&self.text[..self.shown]) {
            // Some tokenizers decode earlier characters differently if incomplete ones follow. The
            // text shown so far is kept, and decoding continues with the ids after it.
            self.settled.clone_from(&self.text);
            self.settled_ids = self.text_ids;
            text = self.latest().unwrap_or_else(|| self.text.clone());
        }
        self.text = text;
        self.text_ids = self.ids.len();
        let stop = self.request.stop;
        let found = stop.iter().filter_map(|stop| self.text.find(stop.as_str())).min();
        if let Some(at) = found {
            self.text.truncate(at.max(self.shown));
            (self.is_cut, self.end) = (true, End::Stop);
        }
        let held = if found.is_some() { 0 } else { held_back(&self.text, stop) };
        let visible = self.text.len() - held;
        if visible > self.shown {
            on_text(&self.text[self.shown..visible]);
            self.shown = visible;
        }
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The continuation, after its withheld end was passed to `on_text`: the tokenizer's text of
    /// all ids together.
    pub fn finish(mut self, on_text: &mut dyn FnMut(&str)) -> Continued {
        if !self.is_cut
            && self.text_ids < self.ids.len()
            && let Some(text) = self.latest()
        {
            let _: ControlFlow<()> = self.grow(text, on_text);
        }
        if self.shown < self.text.len() {
            on_text(&self.text[self.shown..]);
        }
        let whole = if self.is_cut { None } else { continuation(self.tokenizer, self.context, &self.ids) };
        Continued { text: whole.unwrap_or(self.text), end: self.end }
    }
}

/// Bytes at the end of `text` that may be the beginning of a text that ends it.
fn held_back(text: &str, stop: &[String]) -> usize {
    let longest = |stop: &String| {
        let mut lengths = (1..stop.len()).rev().filter(|length| stop.is_char_boundary(*length));
        lengths.find(|length| text.ends_with(&stop[..*length])).unwrap_or(0)
    };
    stop.iter().map(longest).max().unwrap_or(0)
}

/// The text that `ids` add to that of `context`, including a separator such as the spaces between
/// the Null tokenizer's numbers. `None` if some ids do not represent text.
fn continuation(tokenizer: &dyn Tokenizer, context: &[i64], ids: &[i64]) -> Option<String> {
    let (before, all) = (tokenizer.decode(context), tokenizer.decode(&[context, ids].concat()));
    match (before, all) {
        (Ok(before), Ok(all)) if all.starts_with(&before) => Some(all[before.len()..].to_owned()),
        // Tokenizers that clean up decoded text can change the end of the context.
        _ => tokenizer.decode(ids).ok(),
    }
}

#[cfg(test)]
mod tests {
    use bridge_data::tokenizer::{HuggingFaceTokenizer, NullTokenizer};
    use bridge_models::generate::{GenerateOptions, Sampling, StateCache, TokenRules};
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_set_apart_from_the_prompt() {
        let tokenizer = NullTokenizer::new(100);
        assert_eq!(continuation(&tokenizer, &[1, 2], &[81, 7]).as_deref(), Some(" 81 7"));
        assert_eq!(continuation(&tokenizer, &[], &[81]).as_deref(), Some("81"));
        assert_eq!(continuation(&tokenizer, &[1], &[101]), None);
    }

    #[test]
    fn what_may_begin_a_stop_text_is_held_back() {
        let stop = ["\n\n".to_owned(), "<end>".to_owned(), "é!".to_owned()];
        assert_eq!([held_back("a\n", &stop), held_back("a<en", &stop), held_back("aé", &stop)], [1, 3, 2]);
        assert_eq!([held_back("a", &stop), held_back("", &stop), held_back("<end", &[])], [0, 0, 0]);
    }

    /// A tokenizer that has bytes where it lacks a character, and a word with a blank before it.
    fn byte_fallback() -> HuggingFaceTokenizer {
        let bytes = (0..256).map(|byte| (format!("<0x{byte:02X}>"), json!(byte + 1)));
        let words =
            ["\u{2581}", "a", "b", "\u{2581}a"].into_iter().zip(257..).map(|(word, id)| (word.to_owned(), json!(id)));
        let vocab: serde_json::Map<_, _> =
            [("<unk>".to_owned(), json!(0))].into_iter().chain(bytes).chain(words).collect();
        let replaced = |pattern: &str, content: &str| json!({ "type": "Replace", "pattern": { "String": pattern }, "content": content });
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "pre_tokenizer": null, "post_processor": null,
            "normalizer": replaced(" ", "\u{2581}"),
            "decoder": { "type": "Sequence", "decoders": [replaced("\u{2581}", " "), { "type": "ByteFallback" }, { "type": "Fuse" }] },
            "model": {
                "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": vocab, "merges": ["\u{2581} a"],
            },
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        HuggingFaceTokenizer::load(folder.path()).unwrap()
    }

    /// Shown pieces of a continuation of these ids, and its text.
    fn grown(ids: &[i64], stop: &[&str]) -> (Vec<String>, Continued) {
        let tokenizer = byte_fallback();
        let options = GenerateOptions {
            max_new_tokens: ids.len(),
            sampling: Sampling::Greedy,
            rules: TokenRules::default(),
            stop_tokens: vec![0],
            vocab_size: tokenizer.vocab_size(),
            max_positions: 99,
            decoder_start: None,
            cache: StateCache::On,
        };
        let prompt = Prompt::new(&tokenizer, "b").unwrap();
        let stop: Vec<String> = stop.iter().map(|&text| text.to_owned()).collect();
        let request = Request { prompt: &prompt, options, stop: &stop };
        let mut growing = Growing::new(&request, &tokenizer);
        let mut pieces = Vec::new();
        for id in ids {
            if growing.take(*id, &mut |piece| pieces.push(piece.to_owned())).is_break() {
                break;
            }
        }
        let continued = growing.finish(&mut |piece| pieces.push(piece.to_owned()));
        (pieces, continued)
    }

    #[test]
    fn text_goes_on_behind_broken_characters() {
        let byte = |byte: u8| i64::from(byte) + 1;
        let (a, blank_a) = (258, 260);
        let smile: Vec<i64> = "🙂".bytes().map(byte).collect();
        let (pieces, continued) = grown(&[&smile[..], &[a, blank_a]].concat(), &[]);
        assert_eq!((pieces.concat().as_str(), continued.text.as_str()), ("🙂a a", "🙂a a"));
        // A character after a whole one that is never completed: the tokenizer then decodes no
        // whole character.
        let (pieces, continued) = grown(&[&smile[..], &[byte(0xf0), a, blank_a]].concat(), &[]);
        assert_eq!(pieces, ["🙂", "\u{fffd}a", " a"]);
        assert_eq!(continued.text, "\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}a a");
        // A character that will be completed is awaited.
        assert_eq!(grown(&[&smile[..], &smile, &[a]].concat(), &[]).0, ["🙂", "🙂", "a"]);
        let (pieces, continued) = grown(&[&smile[..], &[byte(0xf0), a, blank_a, a]].concat(), &[" a"]);
        assert_eq!((pieces.concat().as_str(), continued.end), ("🙂\u{fffd}a", End::Stop));
        // The end comes in the middle of a character.
        for end in [&[][..], &[0]] {
            let (pieces, continued) = grown(&[&[a, byte(0xf0), byte(0x9f)], end].concat(), &[]);
            assert_eq!((pieces.concat().as_str(), continued.text.as_str()), ("a\u{fffd}\u{fffd}", "a\u{fffd}\u{fffd}"));
        }
        let (pieces, continued) = grown(&[a, byte(b'!')], &["!!"]);
        assert_eq!(
            (pieces, continued.text.as_str(), continued.end),
            (vec!["a".to_owned(), "!".to_owned()], "a!", End::Length)
        );
    }
}
