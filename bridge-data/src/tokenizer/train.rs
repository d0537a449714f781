//! Training of byte-level BPE vocabularies. The source of the text, and the reuse of earlier
//! results, belong to the caller.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Trainer};

use super::huggingface::{HuggingFaceTokenizer, byte_level_tokenizer};
use super::{TokenizerError, byte_level};

/// The special token that ends documents.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// Every byte is a token, and documents need an end.
const SMALLEST_VOCAB: usize = 257;

/// Parameters of the training of a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BpeTrainParams {
    /// Requested number of tokens, including the 256 bytes and special tokens. A short text may
    /// give fewer.
    pub vocab_size: usize,
    /// Pairs seen less often than this are not merged.
    pub min_frequency: u64,
    /// Special tokens besides `<|endoftext|>`, which gets id 0.
    pub special_tokens: Vec<String>,
}

impl Default for BpeTrainParams {
    fn default() -> Self {
        Self { vocab_size: 32_000, min_frequency: 2, special_tokens: Vec::new() }
    }
}

/// Trains a byte-level BPE tokenizer. The same text and parameters give the same vocabulary. Pieces
/// of text should have a few hundred kilobytes, and end between documents or before white space.
///
/// # Errors
/// If the vocabulary is smaller than its bytes and special tokens.
pub fn train_byte_level_bpe(
    params: &BpeTrainParams,
    text: impl Iterator<Item = String> + Send,
) -> Result<HuggingFaceTokenizer, TokenizerError> {
    train_byte_level_bpe_until(params, text, &|| false)
}

/// As [`train_byte_level_bpe`], but stops soon after `cancelled` is true.
///
/// # Errors
/// As there, and [`TokenizerError::Interrupted`].
pub fn train_byte_level_bpe_until(
    params: &BpeTrainParams,
    text: impl Iterator<Item = String> + Send,
    cancelled: &dyn Fn() -> bool,
) -> Result<HuggingFaceTokenizer, TokenizerError> {
    let smallest = SMALLEST_VOCAB + params.special_tokens.len();
    if params.vocab_size < smallest {
        return Err(TokenizerError::Train(format!(
            "vocab_size = {}: the 256 bytes and {} special tokens need at least {smallest}",
            params.vocab_size,
            params.special_tokens.len() + 1
        )));
    }
    let failed = |error: tokenizers::Error| TokenizerError::Train(error.to_string());
    let mut special = vec![AddedToken::from(END_OF_TEXT, true)];
    special.extend(
        params
            .special_tokens
            .iter()
            .filter(|token| *token != END_OF_TEXT)
            .map(|token| AddedToken::from(token.as_str(), true)),
    );
    let mut trainer = BpeTrainer::builder()
        .vocab_size(params.vocab_size)
        .min_frequency(params.min_frequency)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(special)
        .show_progress(false)
        .build();
    let words_of = |text: &str| {
        let word = |word: &str| {
            let mut chars = String::with_capacity(2 * word.len());
            byte_level::to_chars(word, &mut chars);
            chars
        };
        Ok(byte_level::words(text, byte_level::Pattern::Gpt2).map(word).collect())
    };
    trainer.feed(text, words_of).map_err(failed)?;
    let (model, special) = merge(trainer, cancelled)?;
    let mut inner = byte_level_tokenizer(model);
    inner.add_special_tokens(&special);
    let config = serde_json::json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": false,
    });
    HuggingFaceTokenizer::from_parts(inner, vec![("tokenizer_config.json", format!("{config:#}\n"))])
}

/// Interval at which the search for merges checks for cancellation.
const INTERVAL: Duration = Duration::from_millis(50);

/// Finds the merges. The library cannot be cancelled, so it runs on threads of its own. A caller
/// that is cancelled abandons these threads, which write nothing.
fn merge(trainer: BpeTrainer, cancelled: &dyn Fn() -> bool) -> Result<(BPE, Vec<AddedToken>), TokenizerError> {
    let failed = |error: &dyn std::fmt::Display| TokenizerError::Train(error.to_string());
    let threads = rayon::current_num_threads();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(|error| failed(&error))?;
    let (sender, result) = channel();
    pool.spawn(move || {
        let mut model = BPE::default();
        let special = trainer.train(&mut model);
        // The receiver is gone if training was cancelled.
        let _ = sender.send(special.map(|special| (model, special)));
    });
    loop {
        if cancelled() {
            return Err(TokenizerError::Interrupted);
        }
        match result.recv_timeout(INTERVAL) {
            Ok(result) => return result.map_err(|error| failed(&error)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(failed(&"its thread panicked")),
        }
    }
}
