//! BERT's vocabularies (`vocab.txt`) as tokenizers of the `tokenizers` library.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::TokenizerError;
use crate::untrusted_io;

/// Treatment of capital letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// Text is made lower case, and loses its accents.
    Lower,
    /// The text is unchanged.
    Kept,
}

/// Tokens that text may hold as such.
const SPECIAL: [&str; 5] = ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"];
/// Tokens that upstream adds.
const ADDED: [&str; 2] = ["[BOS]", "[EOS]"];

/// Vocabulary, one token a line, as `tokenizer.json` and `tokenizer_config.json`. Fails on a file
/// that cannot be read, or lacks one of BERT's tokens.
pub(super) fn load(path: &Path, case: Case) -> Result<(Value, Value), TokenizerError> {
    let text = untrusted_io::read_text(path, untrusted_io::TABLE_BYTES).map_err(TokenizerError::io("read", path))?;
    let mut vocab: Map<String, Value> =
        text.lines().enumerate().map(|(id, line)| (line.to_owned(), id.into())).collect();
    if let Some(missing) = SPECIAL.iter().find(|token| !vocab.contains_key(**token)) {
        return Err(TokenizerError::malformed(path, format!("not a WordPiece vocabulary: it lacks {missing}")));
    }
    let mut next = text.lines().count();
    for token in ADDED {
        if !vocab.contains_key(token) {
            vocab.insert(token.to_owned(), next.into());
            next += 1;
        }
    }
    let added: Vec<Value> = SPECIAL
        .iter()
        .chain(&ADDED)
        .map(|token| {
            json!({ "id": vocab[*token], "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                    "special": true })
        })
        .collect();
    let is_lower = case == Case::Lower;
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": is_lower, "lowercase": is_lower,
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": null,
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab,
        },
    });
    let names = json!({ "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]", "unk_token": "[UNK]" });
    Ok((tokenizer, names))
}
