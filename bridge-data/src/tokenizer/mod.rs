//! Tokenizers: the trait, Hugging Face's `tokenizer.json` and other formats that are converted to
//! it, the Null tokenizer, training of byte-level BPE. Token files and datasets do not belong here.

mod added;
mod byte_level;
mod difference;
mod error;
mod fast;
mod huggingface;
mod null;
mod sentencepiece;
mod special;
mod tiktoken;
mod train;
mod wordpiece;

use std::ops::Range;
use std::path::Path;

pub(crate) use byte_level::split_point as safe_cut;
pub use difference::{Comparison, Difference, compare};
pub use error::TokenizerError;
pub use huggingface::HuggingFaceTokenizer;
pub use null::NullTokenizer;
#[cfg(feature = "finetuning")]
pub(crate) use special::TOOL_USE_FILE;
pub use tiktoken::{TiktokenParams, TiktokenPattern};
pub use train::{BpeTrainParams, END_OF_TEXT, train_byte_level_bpe, train_byte_level_bpe_until};
pub use wordpiece::Case;

/// Text to token ids and back. Models and datasets use these ids: non-negative, below
/// [`Tokenizer::vocab_size`].
pub trait Tokenizer: Send + Sync {
    /// The ids of `text`, without ids that a template would add. Special tokens written out in the
    /// text are recognized.
    ///
    /// # Errors
    /// If the tokenizer cannot encode the text.
    fn encode(&self, text: &str) -> Result<Vec<i64>, TokenizerError>;

    /// The text of `ids`, including special tokens.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    fn decode(&self, ids: &[i64]) -> Result<String, TokenizerError>;

    /// Number of ids: one more than the largest.
    fn vocab_size(&self) -> usize;

    /// The end-of-document id.
    fn eod(&self) -> Option<i64>;

    /// The beginning-of-sequence id.
    fn bos(&self) -> Option<i64>;

    /// The padding id.
    fn pad(&self) -> Option<i64>;

    /// The ids that the tokenizer puts before a text that stands alone, such as the
    /// beginning-of-sequence id; [`Self::encode`] leaves them out.
    fn prefix(&self) -> &[i64] {
        &[]
    }

    /// The id of a token by its name.
    fn token_to_id(&self, token: &str) -> Option<i64>;

    /// The number of bytes of a token, 0 for a special token; summed over a text they give its
    /// length, for bits per byte. `None` outside the vocabulary, and if ids do not represent text.
    fn id_to_bytes(&self, id: i64) -> Option<Vec<u8>>;

    /// Identifies this tokenizer; part of cache names.
    fn unique_identifier(&self) -> serde_json::Value;

    /// Writes the files from which [`HuggingFaceTokenizer::load`] or other programs load it.
    ///
    /// # Errors
    /// The folder cannot be made or written.
    fn save_assets(&self, folder: &Path) -> Result<(), TokenizerError>;

    /// Calls `on_token` with the ids of `text` in order, each with the bytes of the text that it
    /// stands for. A character of several ids belongs to each of them.
    ///
    /// # Errors
    /// If the tokenizer has no ids for the text, or does not know where they come from.
    fn encode_with_offsets(
        &self,
        _text: &str,
        _on_token: &mut dyn FnMut(i64, Range<usize>),
    ) -> Result<(), TokenizerError> {
        Err(TokenizerError::Encode("this tokenizer does not tell which text its ids stand for".to_owned()))
    }

    /// The text of a file that belongs to the tokenizer, such as `chat_template.jinja`.
    fn companion(&self, _name: &str) -> Option<&str> {
        None
    }

    /// A byte position at or after `from` where the text can be split without changing its ids, if
    /// the tokenizer knows one before the end.
    fn split_point(&self, _text: &str, _from: usize) -> Option<usize> {
        None
    }
}

/// The end-of-document id, or the error that says how to get one.
///
/// # Errors
/// The tokenizer has none.
pub fn require_eod(tokenizer: &dyn Tokenizer) -> Result<i64, TokenizerError> {
    tokenizer
        .eod()
        .ok_or_else(|| TokenizerError::NoEndOfDocument { tokenizer: tokenizer.unique_identifier().to_string() })
}

#[cfg(test)]
mod fast_tests;
#[cfg(test)]
mod tests;
