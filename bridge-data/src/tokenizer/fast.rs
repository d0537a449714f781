//! A faster way to the same ids for GPT-2-style byte-level BPE tokenizers: words are split without
//! a regular expression, and each distinct word is merged once. Other tokenizers use their library.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use ahash::AHashMap;
use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{Model, Tokenizer as Inner};

use super::{TokenizerError, byte_level};

/// Words longer than this are rare and are not cached.
const LONGEST_CACHED_WORD: usize = 64;
/// Number of words in a cache before it is cleared.
const CACHED_WORDS: usize = 1 << 18;

/// Splits text at added tokens, which take precedence over everything else.
struct AddedTokens {
    matcher: AhoCorasick,
    ids: Vec<i64>,
}

impl AddedTokens {
    fn new(tokens: Vec<(String, i64)>) -> Option<Self> {
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|(content, _)| content))
            .ok()?;
        Some(Self { matcher, ids: tokens.into_iter().map(|(_, id)| id).collect() })
    }

    /// Calls `on` with the text between tokens and with the tokens' ids, in order.
    fn split<'t, E>(&self, text: &'t str, mut on: impl FnMut(Piece<'t>) -> Result<(), E>) -> Result<(), E> {
        let mut done = 0;
        if !self.ids.is_empty() {
            for found in self.matcher.find_iter(text) {
                on(Piece::Text(&text[done..found.start()]))?;
                on(Piece::Token(self.ids[found.pattern().as_usize()]))?;
                done = found.end();
            }
        }
        on(Piece::Text(&text[done..]))
    }
}

enum Piece<'t> {
    Text(&'t str),
    Token(i64),
}

/// A cache of the ids of words.
#[derive(Default)]
struct WordCache {
    places: AHashMap<Box<str>, (u32, u32)>,
    ids: Vec<i64>,
}

/// The fast path of one tokenizer.
pub(crate) struct FastByteLevel {
    /// Added tokens that are matched in the raw text, then those that are matched in the rest, as
    /// in the library.
    added: [AddedTokens; 2],
    /// One cache per concurrently encoding thread.
    caches: Mutex<Vec<WordCache>>,
    /// Bytes of text of each id.
    lengths: Vec<u32>,
}

impl FastByteLevel {
    /// `None` for tokenizers that are not plain byte-level BPE: those with a normalizer, another
    /// pattern, dropout, truncation or padding, or added tokens that match beyond their own text.
    pub(crate) fn for_tokenizer(tokenizer: &Inner) -> Option<Self> {
        let Some(PreTokenizerWrapper::ByteLevel(byte_level)) = tokenizer.get_pre_tokenizer() else {
            return None;
        };
        let plain = byte_level.use_regex
            && !byte_level.add_prefix_space
            && tokenizer.get_normalizer().is_none()
            && tokenizer.get_truncation().is_none()
            && tokenizer.get_padding().is_none();
        let model = bpe_of(tokenizer)?;
        if !plain || model.dropout.is_some_and(|dropout| dropout > 0.0) {
            return None;
        }
        let mut groups = [Vec::new(), Vec::new()];
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            let reaches = token.single_word || token.lstrip || token.rstrip;
            if reaches || token.content.is_empty() || token.content.contains(char::is_whitespace) {
                return None;
            }
            groups[usize::from(token.normalized)].push((token.content, i64::from(id)));
        }
        let [raw, normalized] = groups;
        let added = [AddedTokens::new(raw)?, AddedTokens::new(normalized)?];
        Some(Self { added, caches: Mutex::default(), lengths: lengths_of(tokenizer) })
    }

    /// The byte range of `text` that each of its ids covers, in whole characters. `None` if the ids
    /// do not decode to the text.
    pub(crate) fn offsets(&self, text: &str, ids: &[i64]) -> Option<Vec<Range<usize>>> {
        let mut end = 0;
        let ends = ids.iter().map(|id| {
            let start = end;
            end += *self.lengths.get(usize::try_from(*id).ok()?)? as usize;
            Some(start..end)
        });
        let exact: Vec<Range<usize>> = ends.collect::<Option<_>>()?;
        let whole = |mut range: Range<usize>| {
            while !text.is_char_boundary(range.start) {
                range.start -= 1;
            }
            while !text.is_char_boundary(range.end) {
                range.end += 1;
            }
            range
        };
        (end == text.len()).then(|| exact.into_iter().map(whole).collect())
    }

    /// The ids of `text`.
    pub(crate) fn encode(&self, tokenizer: &Inner, text: &str) -> Result<Vec<i64>, TokenizerError> {
        let model =
            bpe_of(tokenizer).ok_or_else(|| TokenizerError::Encode("the tokenizer's model is not BPE".to_owned()))?;
        let mut cache = self.lock_caches().pop().unwrap_or_default();
        let mut ids = Vec::with_capacity(text.len() / 4);
        let [raw, normalized] = &self.added;
        let encoded = raw.split(text, |piece| match piece {
            Piece::Token(id) => {
                ids.push(id);
                Ok(())
            }
            Piece::Text(text) => normalized.split(text, |piece| match piece {
                Piece::Token(id) => {
                    ids.push(id);
                    Ok(())
                }
                Piece::Text(text) => {
                    byte_level::words(text).try_for_each(|word| encode_word(model, &mut cache, word, &mut ids))
                }
            }),
        });
        self.lock_caches().push(cache);
        encoded.map(|()| ids)
    }

    fn lock_caches(&self) -> std::sync::MutexGuard<'_, Vec<WordCache>> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of text of each id of a byte-level tokenizer.
fn lengths_of(tokenizer: &Inner) -> Vec<u32> {
    let vocab = tokenizer.get_vocab(true);
    let added = tokenizer.get_added_tokens_decoder();
    let mut lengths = vec![0; vocab.values().max().map_or(0, |id| *id as usize + 1)];
    for (token, id) in vocab {
        // In the vocabulary a character represents a byte; an added token is its own text.
        let length = if added.contains_key(&id) { token.len() } else { token.chars().count() };
        lengths[id as usize] = length as u32;
    }
    lengths
}

fn bpe_of(tokenizer: &Inner) -> Option<&BPE> {
    match tokenizer.get_model() {
        ModelWrapper::BPE(model) => Some(model),
        _ => None,
    }
}

fn encode_word(model: &BPE, cache: &mut WordCache, word: &str, out: &mut Vec<i64>) -> Result<(), TokenizerError> {
    if let Some(&(start, end)) = cache.places.get(word) {
        out.extend_from_slice(&cache.ids[start as usize..end as usize]);
        return Ok(());
    }
    let mut chars = String::with_capacity(2 * word.len());
    byte_level::to_chars(word, &mut chars);
    let tokens = model.tokenize(&chars).map_err(|error| TokenizerError::Encode(error.to_string()))?;
    let first = out.len();
    out.extend(tokens.iter().map(|token| i64::from(token.id)));
    if word.len() <= LONGEST_CACHED_WORD {
        if cache.places.len() >= CACHED_WORDS {
            *cache = WordCache::default();
        }
        let start = cache.ids.len() as u32;
        cache.ids.extend_from_slice(&out[first..]);
        cache.places.insert(word.into(), (start, cache.ids.len() as u32));
    }
    Ok(())
}
