//! A faster way to the same ids and offsets for the usual kinds of BPE tokenizers: text is split
//! into words without the library's normalized strings, and each distinct word is merged once.
//! Other tokenizers use their library.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use ahash::AHashMap;
use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Value, json};
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{AddedToken, Model, SplitDelimiterBehavior, Tokenizer as Inner};
use unicode_normalization_alignments::is_nfc;

use super::byte_level::{CL100K, LONGEST_WORD, Pattern};
use super::{TokenizerError, byte_level};
use crate::untrusted_io;

/// Words longer than this are rare and are not cached.
const LONGEST_CACHED_WORD: usize = 64;
/// Number of words in a cache before it is cleared.
const CACHED_WORDS: usize = 1 << 18;
/// SentencePiece's character for a blank.
const BLANK: char = '\u{2581}';
const BLANK_BYTES: [u8; 3] = *b"\xe2\x96\x81";

/// Splits text at added tokens, which take precedence over everything else.
struct AddedTokens {
    matcher: AhoCorasick,
    tokens: Vec<(AddedToken, u32)>,
}

impl AddedTokens {
    fn new(tokens: Vec<(AddedToken, u32)>) -> Option<Self> {
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|(token, _)| &token.content))
            .ok()?;
        Some(Self { matcher, tokens })
    }

    /// Calls `on` with the non-empty texts between tokens and with the tokens, in order.
    fn split<E>(&self, text: &str, mut on: impl FnMut(Piece, Range<usize>) -> Result<(), E>) -> Result<(), E> {
        let mut done = 0;
        if !self.tokens.is_empty() {
            for found in self.matcher.find_iter(text) {
                let (token, id) = &self.tokens[found.pattern().as_usize()];
                let (mut start, mut end) = (found.start(), found.end());
                if token.lstrip {
                    start = text[..start].trim_end().len().max(done);
                }
                if token.rstrip {
                    end = text.len() - text[end..].trim_start().len();
                }
                if done < start {
                    on(Piece::Text, done..start)?;
                }
                on(Piece::Token(*id), start..end)?;
                done = end;
            }
        }
        if done < text.len() { on(Piece::Text, done..text.len()) } else { Ok(()) }
    }
}

enum Piece {
    Text,
    Token(u32),
}

/// Condition for a blank before the first word of a text between added tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefix {
    Never,
    Always,
    /// If the text does not begin with a blank.
    Missing,
    /// If the text does not begin with a blank, and no added token is before it.
    MissingAtStart,
}

/// Division of a text without added tokens into words.
enum Splitter {
    /// Words of bytes, by a pattern that needs no regular expression.
    Pattern(Pattern),
    /// Words of bytes, by the library's regular expression.
    Regex(Box<Split>),
    /// Words of characters, between which no token reaches; a blank begins one if `every` is true.
    Blanks { prefix: Prefix, every: bool, joins: Joins, merges: Option<Merges> },
}

/// Pairs of bytes of a text that a token may have side by side: a merge across any other pair would
/// make a token with that pair, so words on both of its sides are merged alone.
struct Joins(Box<[[bool; 256]; 256]>);

impl Joins {
    /// The pairs of a vocabulary. A blank begins a word, except after a blank if `every` is false.
    fn new(model: &BPE, vocab: &HashMap<String, u32>, every: bool) -> Self {
        let [first, .., last] = BLANK_BYTES.map(usize::from);
        let mut joins = Box::new([[false; 256]; 256]);
        for token in vocab.keys() {
            for pair in token.replace(BLANK, " ").as_bytes().windows(2) {
                joins[usize::from(pair[0])][usize::from(pair[1])] = true;
            }
        }
        // Text may have [`BLANK`] for a blank; other characters share its bytes.
        let behind_blank = joins[usize::from(b' ')];
        joins[last].iter_mut().zip(behind_blank).for_each(|(joins, behind)| *joins |= behind);
        joins.iter_mut().for_each(|row| row[first] |= row[usize::from(b' ')]);
        // Neighbouring unknown characters are fused. A name of a byte or of unknown characters in
        // another token may stem from a merge of such characters, whose text is another one.
        let unknown = model.get_unk_token().as_deref();
        let is_odd = |token: &String| {
            token.len() > "<0x00>".len() && token.contains("<0x")
                || unknown.is_some_and(|unknown| token != unknown && token.contains(unknown))
        };
        let is_plain = !model.ignore_merges && !vocab.keys().any(is_odd);
        let has_bytes = falls_back_to_bytes(model);
        let is_known = |byte: u8| {
            has_bytes
                || byte == b' '
                || byte < 0x80 && vocab.contains_key(char::from(byte).encode_utf8(&mut [0; 4]) as &str)
        };
        for byte in (0..=255).filter(|byte| !is_plain || !is_known(*byte)).map(usize::from) {
            joins[byte] = [true; 256];
            joins.iter_mut().for_each(|row| row[byte] = true);
        }
        for (before, row) in joins.iter_mut().enumerate() {
            row[usize::from(b' ')] &= !every && (before == usize::from(b' ') || before == last);
        }
        Self(joins)
    }

    /// Words of a text; each [`BLANK`] begins one if `every` is true.
    fn words<'a>(&self, text: &'a str, every: bool) -> impl Iterator<Item = &'a str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let bytes = rest.as_bytes();
            let begins = |at: &usize| {
                let joined = self.0[usize::from(bytes[at - 1])][usize::from(bytes[*at])];
                (!joined || every && bytes[*at..].starts_with(&BLANK_BYTES)) && rest.is_char_boundary(*at)
            };
            let length = (1..rest.len()).find(begins).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(length);
            rest = behind;
            (!word.is_empty()).then_some(word)
        })
    }
}

/// Merges of a model of characters. The library merges with a heap, and copies the text of each
/// token: on short words a list takes a fraction of the time.
struct Merges {
    /// Ids of ASCII characters.
    ascii: Vec<Option<u32>>,
    /// Rank and result of each pair of ids.
    pairs: AHashMap<(u32, u32), (u32, u32)>,
}

impl Merges {
    fn new(model: &BPE) -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct Written {
            merges: Vec<(String, String)>,
        }
        let Written { merges } = serde_json::from_str(&serde_json::to_string(model).ok()?).ok()?;
        let pair = |(rank, (left, right)): (usize, (String, String))| {
            let ids = (model.token_to_id(&left)?, model.token_to_id(&right)?);
            Some((ids, (rank as u32, model.token_to_id(&(left + &right))?)))
        };
        let pairs = merges.into_iter().enumerate().map(pair).collect::<Option<_>>()?;
        let read = |byte: u8| if byte == b' ' { BLANK } else { char::from(byte) };
        let ascii = (0..128).map(|byte| model.token_to_id(read(byte).encode_utf8(&mut [0; 4]))).collect();
        Some(Self { ascii, pairs })
    }

    /// The tokens of a word, unless the model lacks one of its characters.
    fn merge(&self, model: &BPE, word: &str, out: &mut Vec<WordToken>) -> Option<()> {
        for (at, c) in word.char_indices() {
            let end = at + c.len_utf8();
            let id = match self.ascii.get(c as usize) {
                Some(id) => *id,
                None => model.token_to_id(&word[at..end]),
            };
            out.push(WordToken { id: id?, start: at as u32, end: end as u32 });
        }
        let merged = |pair: &[WordToken]| self.pairs.get(&(pair[0].id, pair[1].id)).copied().unwrap_or((u32::MAX, 0));
        let mut ranks: Vec<(u32, u32)> = out.windows(2).map(merged).collect();
        // The first of the pairs with the lowest rank is merged.
        while let Some((at, &(rank, id))) = ranks.iter().enumerate().min_by_key(|(_, (rank, _))| *rank)
            && rank < u32::MAX
        {
            (out[at].id, out[at].end) = (id, out[at + 1].end);
            out.remove(at + 1);
            ranks.remove(at);
            for near in at.saturating_sub(1)..=at {
                if let (Some(rank), Some(pair)) = (ranks.get_mut(near), out.get(near..near + 2)) {
                    *rank = merged(pair);
                }
            }
        }
        Some(())
    }
}

/// A token of a word, with the bytes of the word that it stands for, in whole characters.
#[derive(Clone, Copy)]
struct WordToken {
    id: u32,
    start: u32,
    end: u32,
}

/// A cache of the tokens of words.
#[derive(Default)]
struct WordCache {
    places: AHashMap<Box<str>, (u32, u32)>,
    tokens: Vec<WordToken>,
}

/// The fast path of one tokenizer.
pub(crate) struct FastBpe {
    /// Added tokens that are matched in the raw text, then those that are matched in the rest, as
    /// in the library.
    added: [AddedTokens; 2],
    splitter: Splitter,
    /// True if the library normalizes text to NFC.
    is_nfc: bool,
    /// True if the library's offsets are those of this path.
    knows_offsets: bool,
    /// One cache per concurrently encoding thread.
    caches: Mutex<Vec<WordCache>>,
}

impl FastBpe {
    /// `None` for tokenizers that are not plain BPE with one of the splitters: those with another
    /// normalizer, dropout, truncation or padding, or added tokens that match beyond their own text
    /// in other ways than the library's `lstrip` and `rstrip`.
    pub(crate) fn for_tokenizer(tokenizer: &Inner) -> Option<Self> {
        let model = bpe_of(tokenizer)?;
        let has_dropout = model.dropout.is_some_and(|dropout| dropout > 0.0);
        if has_dropout || tokenizer.get_truncation().is_some() || tokenizer.get_padding().is_some() {
            return None;
        }
        let normalizer = serde_json::to_value(tokenizer.get_normalizer()).ok()?;
        let is_nfc = is_nfc_normalizer(&normalizer);
        let splitter = splitter_of(tokenizer, model, if is_nfc { &Value::Null } else { &normalizer })?;
        // The library, which encodes sections that are not NFC, would take each for the text's
        // start.
        if is_nfc && matches!(splitter, Splitter::Blanks { prefix: Prefix::MissingAtStart, .. }) {
            return None;
        }
        let mut groups = [Vec::new(), Vec::new()];
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            let has_space = token.content.contains(char::is_whitespace);
            // Tokens that consume spaces overlap with those that begin with one.
            let strips = token.lstrip || token.rstrip;
            if token.content.is_empty() || token.single_word || (token.normalized && !normalizer.is_null()) {
                return None;
            }
            groups[usize::from(token.normalized)].push((token.clone(), id, strips, has_space));
        }
        let all = || groups.iter().flatten();
        let any_strips = all().any(|(.., strips, _)| *strips);
        let any_has_space = all().any(|(.., has_space)| *has_space);
        let is_gpt2 = matches!(splitter, Splitter::Pattern(Pattern::Gpt2));
        if any_has_space && any_strips || is_gpt2 && (any_has_space || any_strips) {
            return None;
        }
        let [raw, normalized] = groups
            .map(|group| AddedTokens::new(group.into_iter().map(|(token, id, ..)| (token, id)).collect::<Vec<_>>()));
        let never_trims = is_gpt2 && !is_nfc || keeps_offsets(tokenizer.get_post_processor());
        let knows_offsets = is_complete(model, &splitter) && never_trims;
        let fast = Self { added: [raw?, normalized?], splitter, is_nfc, knows_offsets, caches: Mutex::default() };
        (normalizer.is_null() || fast.matches_added_tokens(tokenizer)).then_some(fast)
    }

    /// True if added tokens are found where the library finds them. It may not: of a token that is
    /// registered twice it matches the first, and reports the last.
    fn matches_added_tokens(&self, tokenizer: &Inner) -> bool {
        tokenizer.get_added_tokens_decoder().values().all(|token| {
            let text = format!("x{}x", token.content);
            let mut ids = Vec::new();
            let encoded = self.encode(tokenizer, &text, &mut |id, _| ids.push(id));
            let library = untrusted_io::contained(|| tokenizer.encode_fast(text.as_str(), false));
            encoded.is_ok()
                && matches!(library, Ok(Ok(library)) if library.get_ids().iter().map(|id| i64::from(*id)).eq(ids))
        })
    }

    /// True if [`Self::encode`] gives the offsets of the library.
    pub(crate) fn knows_offsets(&self) -> bool {
        self.knows_offsets
    }

    /// Words that are merged alone, of a tokenizer of characters.
    #[cfg(test)]
    pub(crate) fn words<'a>(&self, text: &'a str) -> Vec<&'a str> {
        match &self.splitter {
            Splitter::Blanks { every, joins, .. } => joins.words(text, *every).collect(),
            Splitter::Pattern(_) | Splitter::Regex(_) => Vec::new(),
        }
    }

    /// True if words are those of GPT-2's pattern, and no added token has a space.
    pub(crate) fn is_gpt2(&self) -> bool {
        matches!(self.splitter, Splitter::Pattern(Pattern::Gpt2))
    }

    /// Calls `on_token` with the ids of `text`, each with the bytes that it stands for.
    pub(crate) fn encode(
        &self,
        tokenizer: &Inner,
        text: &str,
        on_token: &mut dyn FnMut(i64, Range<usize>),
    ) -> Result<(), TokenizerError> {
        let model =
            bpe_of(tokenizer).ok_or_else(|| TokenizerError::Encode("the tokenizer's model is not BPE".to_owned()))?;
        let cache = self.lock_caches().pop().unwrap_or_default();
        let mut encoder = Encoder { fast: self, tokenizer, model, cache, word: Vec::new(), on_token };
        let [raw, normalized] = &self.added;
        let encoded = raw.split(text, |piece, outer| match piece {
            Piece::Token(id) => {
                (encoder.on_token)(i64::from(id), outer);
                Ok(())
            }
            Piece::Text => normalized.split(&text[outer.clone()], |piece, inner| {
                let place = outer.start + inner.start..outer.start + inner.end;
                match piece {
                    Piece::Token(id) => {
                        (encoder.on_token)(i64::from(id), place);
                        Ok(())
                    }
                    Piece::Text => encoder.section(&text[place.clone()], place.start),
                }
            }),
        });
        self.lock_caches().push(encoder.cache);
        encoded
    }

    fn lock_caches(&self) -> std::sync::MutexGuard<'_, Vec<WordCache>> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Encoding of one text.
struct Encoder<'a> {
    fast: &'a FastBpe,
    tokenizer: &'a Inner,
    model: &'a BPE,
    cache: WordCache,
    /// Tokens of the current word.
    word: Vec<WordToken>,
    on_token: &'a mut dyn FnMut(i64, Range<usize>),
}

impl Encoder<'_> {
    /// Encodes text between added tokens, which begins at byte `start` of the whole text.
    fn section(&mut self, text: &str, start: usize) -> Result<(), TokenizerError> {
        let is_normal = |text: &str| !self.fast.is_nfc || is_below_combining(text) || is_nfc(text);
        if is_normal(text) {
            return self.words(text, start);
        }
        if !matches!(self.fast.splitter, Splitter::Pattern(Pattern::Cl100k { .. })) {
            return self.by_library(text, start);
        }
        let mut at = 0;
        for piece in composed_alone(text) {
            match is_below_combining(piece) || is_nfc(piece) {
                true => self.words(piece, start + at)?,
                false => self.by_library(piece, start + at)?,
            }
            at += piece.len();
        }
        Ok(())
    }

    /// Encodes text that is normal already.
    fn words(&mut self, text: &str, start: usize) -> Result<(), TokenizerError> {
        let mut at = start;
        let fast = self.fast;
        match &fast.splitter {
            Splitter::Pattern(pattern) => byte_level::words(text, *pattern).try_for_each(|word| {
                at += word.len();
                self.word(word, at - word.len(), None)
            }),
            Splitter::Regex(split) => {
                let mut done = 0;
                let mut parts = |from: usize, to: usize| {
                    bounded_word(&text[from..to]).try_for_each(|word| {
                        at += word.len();
                        self.word(word, at - word.len(), None)
                    })
                };
                for (from, to) in split.regex.find_iter(text) {
                    parts(done, from)?;
                    parts(from, to)?;
                    done = to;
                }
                parts(done, text.len())
            }
            Splitter::Blanks { prefix, every, joins, .. } => {
                let is_prefixed = match prefix {
                    Prefix::Never => false,
                    Prefix::Always => true,
                    Prefix::Missing => !text.starts_with([' ', BLANK]),
                    Prefix::MissingAtStart => start == 0 && !text.starts_with([' ', BLANK]),
                };
                joins.words(text, *every).flat_map(bounded_word).try_for_each(|word| {
                    at += word.len();
                    let from = at - word.len();
                    self.word(word, from, Some(is_prefixed && from == start))
                })
            }
        }
    }

    /// Encodes text that the library has to normalize.
    fn by_library(&mut self, text: &str, start: usize) -> Result<(), TokenizerError> {
        let mut at = start;
        for piece in byte_level::bounded(text) {
            let encode =
                || self.tokenizer.encode(piece, false).map_err(|error| TokenizerError::Encode(error.to_string()));
            let encoding = untrusted_io::contained(encode).map_err(TokenizerError::Panicked)??;
            for (id, (from, to)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
                (self.on_token)(i64::from(*id), at + from..at + to);
            }
            at += piece.len();
        }
        Ok(())
    }

    /// Encodes a word of bytes, or one of characters, with or without a blank put before it.
    fn word(&mut self, word: &str, start: usize, prefixed: Option<bool>) -> Result<(), TokenizerError> {
        let is_prefixed = prefixed == Some(true);
        let is_cached = !is_prefixed && word.len() <= LONGEST_CACHED_WORD;
        if let Some(&(first, end)) = self.cache.places.get(word).filter(|_| is_cached) {
            for token in &self.cache.tokens[first as usize..end as usize] {
                (self.on_token)(i64::from(token.id), start + token.start as usize..start + token.end as usize);
            }
            return Ok(());
        }
        self.word.clear();
        let merges = match &self.fast.splitter {
            Splitter::Blanks { merges, .. } if is_cached => merges.as_ref(),
            _ => None,
        };
        if merges.and_then(|merges| merges.merge(self.model, word, &mut self.word)).is_none() {
            self.word.clear();
            merge(self.model, word, prefixed, &mut self.word)?;
        }
        for token in &self.word {
            (self.on_token)(i64::from(token.id), start + token.start as usize..start + token.end as usize);
        }
        if is_cached {
            if self.cache.places.len() >= CACHED_WORDS {
                self.cache = WordCache::default();
            }
            let first = self.cache.tokens.len() as u32;
            self.cache.tokens.extend_from_slice(&self.word);
            self.cache.places.insert(word.into(), (first, self.cache.tokens.len() as u32));
        }
        Ok(())
    }
}

/// Adds the tokens of a word to `out`. The model reads it as bytes in printable characters, or as
/// characters with [`BLANK`] for blanks if `prefixed` says whether one is put before it.
fn merge(model: &BPE, word: &str, prefixed: Option<bool>, out: &mut Vec<WordToken>) -> Result<(), TokenizerError> {
    let mut read = String::with_capacity(2 * word.len());
    // The end of each character in `read`, and its bytes in the word.
    let mut chars: Vec<(usize, Range<usize>)> = Vec::with_capacity(word.len() + 1);
    if prefixed == Some(true) {
        read.push(BLANK);
        chars.push((read.len(), 0..word.chars().next().map_or(0, char::len_utf8)));
    }
    for (at, c) in word.char_indices() {
        let bytes = at..at + c.len_utf8();
        match (prefixed, c) {
            (None, _) => byte_level::to_chars(&word[bytes.clone()], &mut read),
            (Some(_), ' ') => read.push(BLANK),
            (Some(_), c) => read.push(c),
        }
        chars.push((read.len(), bytes));
    }
    let tokens = model.tokenize(&read).map_err(|error| TokenizerError::Encode(error.to_string()))?;
    let char_at = |at: usize| {
        let found = chars.get(chars.partition_point(|(end, _)| *end <= at)).or(chars.last());
        found.map_or(0..0, |(_, bytes)| bytes.clone())
    };
    out.extend(tokens.iter().map(|token| {
        let (start, end) = (char_at(token.offsets.0).start, char_at(token.offsets.1.saturating_sub(1)).end);
        WordToken { id: token.id, start: start as u32, end: end as u32 }
    }));
    Ok(())
}

/// Pieces of a text that begin with a blank behind a character that is no space: there a word of
/// [`CL100K`] begins, and a blank composes with no character.
fn composed_alone(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let begins = |(at, _): &(usize, &str)| rest[..*at].ends_with(|c: char| !c.is_whitespace());
        let length = rest.match_indices(' ').find(begins).map_or(rest.len(), |(at, _)| at);
        let (piece, behind) = rest.split_at(length);
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// A word in pieces of at most [`LONGEST_WORD`] bytes.
fn bounded_word(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let (piece, behind) = rest.split_at(rest.floor_char_boundary(LONGEST_WORD));
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// True if all characters are below the first combining one, and so NFC leaves them as they are.
fn is_below_combining(text: &str) -> bool {
    // U+0300 is CC 80 in UTF-8.
    text.bytes().all(|byte| byte < 0xcc)
}

fn is_nfc_normalizer(normalizer: &Value) -> bool {
    let nfc = json!({ "type": "NFC" });
    *normalizer == nfc || *normalizer == json!({ "type": "Sequence", "normalizers": [nfc] })
}

/// The splitter of a tokenizer, whose normalizer is Null if it leaves text as it is.
fn splitter_of(tokenizer: &Inner, model: &BPE, normalizer: &Value) -> Option<Splitter> {
    let blanks = |prefix: Prefix, every: bool| {
        let no_affixes = model.get_continuing_subword_prefix().is_none() && model.end_of_word_suffix.is_none();
        let vocab = model.get_vocab();
        let crosses = |token: &String| token.trim_start_matches(BLANK).contains(BLANK);
        // Words are merged alone only if no token reaches into the next one, and if the model does
        // not look for the whole text in its vocabulary.
        let is_split = no_affixes
            && vocab.contains_key(BLANK.encode_utf8(&mut [0; 4]) as &str)
            && (every || !model.ignore_merges && !vocab.keys().any(crosses));
        is_split.then(|| {
            let merges = Merges::new(model).filter(|_| !model.ignore_merges);
            Splitter::Blanks { prefix, every, joins: Joins::new(model, &vocab, every), merges }
        })
    };
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": BLANK.to_string() });
    let prepend = json!({ "type": "Prepend", "prepend": BLANK.to_string() });
    let sequence = |normalizers: &[&Value]| json!({ "type": "Sequence", "normalizers": normalizers });
    let replaces = *normalizer == replace || *normalizer == sequence(&[&replace]);
    let prepends = *normalizer == sequence(&[&prepend, &replace]);
    let of_normalizer = if prepends { Prefix::Always } else { Prefix::Never };
    match tokenizer.get_pre_tokenizer() {
        Some(PreTokenizerWrapper::ByteLevel(bytes))
            if normalizer.is_null() && bytes.use_regex && !bytes.add_prefix_space =>
        {
            Some(Splitter::Pattern(Pattern::Gpt2))
        }
        Some(PreTokenizerWrapper::Sequence(steps)) if normalizer.is_null() => {
            let [PreTokenizerWrapper::Split(split), PreTokenizerWrapper::ByteLevel(bytes)] = steps.as_ref() else {
                return None;
            };
            let SplitPattern::Regex(expression) = &split.pattern else { return None };
            if split.behavior != SplitDelimiterBehavior::Isolated
                || split.invert
                || bytes.use_regex
                || bytes.add_prefix_space
            {
                return None;
            }
            Some(match CL100K.iter().find(|(known, _)| known == expression) {
                Some((_, pattern)) => Splitter::Pattern(*pattern),
                None => Splitter::Regex(Box::new(split.clone())),
            })
        }
        None if replaces || prepends => blanks(of_normalizer, false),
        // There are no blanks behind the normalizer, and nothing is split.
        Some(PreTokenizerWrapper::Split(split))
            if (replaces || prepends) && split.pattern == SplitPattern::String(" ".to_owned()) && !split.invert =>
        {
            blanks(of_normalizer, false)
        }
        Some(PreTokenizerWrapper::Metaspace(metaspace)) if metaspace.get_replacement() == BLANK => {
            let prefix = match metaspace.get_prepend_scheme() {
                PrependScheme::Never if normalizer.is_null() || replaces || prepends => of_normalizer,
                PrependScheme::Always if normalizer.is_null() => Prefix::Missing,
                PrependScheme::First if normalizer.is_null() => Prefix::MissingAtStart,
                _ => return None,
            };
            let every = metaspace.get_split();
            // A blank that is put before another one would be a word of its own.
            if every && prefix == Prefix::Always {
                return None;
            }
            blanks(prefix, every)
        }
        _ => None,
    }
}

/// True if the model has tokens for any word: without, the library's offsets are shifted.
fn is_complete(model: &BPE, splitter: &Splitter) -> bool {
    match splitter {
        Splitter::Blanks { .. } => {
            model.get_unk_token().as_ref().is_some_and(|token| model.token_to_id(token).is_some())
                || falls_back_to_bytes(model)
        }
        Splitter::Pattern(_) | Splitter::Regex(_) => {
            (0..=255).all(|byte| model.token_to_id(&byte_level::bytes_to_chars(&[byte])).is_some())
        }
    }
}

/// True if the model has a token for each byte of a character that it does not know.
fn falls_back_to_bytes(model: &BPE) -> bool {
    model.byte_fallback && (0..=255u8).all(|byte| model.token_to_id(&format!("<{byte:#04X}>")).is_some())
}

/// True if a post-processor does not trim offsets.
fn keeps_offsets(processor: Option<&PostProcessorWrapper>) -> bool {
    match processor {
        None | Some(PostProcessorWrapper::Bert(_) | PostProcessorWrapper::Template(_)) => true,
        Some(PostProcessorWrapper::ByteLevel(bytes)) => !bytes.trim_offsets,
        Some(PostProcessorWrapper::Roberta(_)) => false,
        Some(PostProcessorWrapper::Sequence(steps)) => steps.as_ref().iter().all(|step| keeps_offsets(Some(step))),
    }
}

fn bpe_of(tokenizer: &Inner) -> Option<&BPE> {
    match tokenizer.get_model() {
        ModelWrapper::BPE(model) => Some(model),
        _ => None,
    }
}
