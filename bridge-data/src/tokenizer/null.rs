//! The Null tokenizer: text that already consists of token ids. Real vocabularies are in
//! `huggingface`.

use std::path::Path;

use super::{Tokenizer, TokenizerError};

/// Text is integers separated by spaces; the id `vocab_size` ends documents, so there are
/// `vocab_size + 1` ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NullTokenizer {
    vocab_size: usize,
}

impl NullTokenizer {
    /// Ids are 0..=`vocab_size`.
    pub fn new(vocab_size: usize) -> Self {
        Self { vocab_size }
    }

    fn check(&self, id: i64) -> Result<i64, TokenizerError> {
        let known = usize::try_from(id).is_ok_and(|id| id <= self.vocab_size);
        known.then_some(id).ok_or(TokenizerError::UnknownId { id, vocab_size: self.vocab_size() })
    }
}

impl Tokenizer for NullTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<i64>, TokenizerError> {
        let id = |word: &str| {
            let id = word.parse().map_err(|_| {
                TokenizerError::Encode(format!("the Null tokenizer reads integers separated by spaces, found {word:?}"))
            })?;
            self.check(id)
        };
        text.split_whitespace().map(id).collect()
    }

    fn decode(&self, ids: &[i64]) -> Result<String, TokenizerError> {
        let words: Result<Vec<String>, _> = ids.iter().map(|&id| self.check(id).map(|id| id.to_string())).collect();
        Ok(words?.join(" "))
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size + 1
    }

    fn eod(&self) -> Option<i64> {
        Some(self.vocab_size as i64)
    }

    fn bos(&self) -> Option<i64> {
        None
    }

    fn pad(&self) -> Option<i64> {
        None
    }

    fn token_to_id(&self, token: &str) -> Option<i64> {
        token.parse().ok().filter(|&id| self.check(id).is_ok())
    }

    /// Always `None`: the ids do not represent text.
    fn id_to_bytes(&self, _id: i64) -> Option<Vec<u8>> {
        None
    }

    fn unique_identifier(&self) -> serde_json::Value {
        serde_json::json!({ "class": "NullTokenizer", "vocab_size": self.vocab_size })
    }

    /// Writes nothing: the vocabulary size in the configuration suffices.
    fn save_assets(&self, _folder: &Path) -> Result<(), TokenizerError> {
        Ok(())
    }
}
