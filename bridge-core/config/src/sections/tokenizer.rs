//! `[tokenizer]`: names, defaults, ranges.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::choice::{TiktokenPattern, TokenizerType};
use super::super::field::{AnyValue, ByteSize};
use super::super::limits::Limits;
use super::super::refusal::{no_counterpart, not_built};
use super::super::rule::{given_with, needs};
use super::super::section::section;

/// Tokenizers of one file or folder.
const WITH_MODEL: &str = "tokenizer.tokenizer_type = HuggingFaceTokenizer | = SFTTokenizer | = SentencePieceTokenizer | \
                          = GPTSentencePieceTokenizer | = Llama2Tokenizer | = TikTokenizer";
/// Tokenizers of a vocabulary.
const WITH_VOCABULARY: &str =
    "tokenizer.tokenizer_type = GPT2BPETokenizer | = BertWordPieceLowerCase | = BertWordPieceCase";
/// Tokenizers that are read from files.
const FROM_FILES: &str = "tokenizer.tokenizer_type = HuggingFaceTokenizer | = SFTTokenizer | = GPT2BPETokenizer | = BertWordPieceLowerCase | \
                          = BertWordPieceCase | = SentencePieceTokenizer | = GPTSentencePieceTokenizer | = Llama2Tokenizer | = TikTokenizer";
/// Tokenizers of text; byte-level BPE is trained, and reads no file.
const OF_TEXT: &str = "tokenizer.tokenizer_type = HuggingFaceTokenizer | = SFTTokenizer | = GPT2BPETokenizer | = BertWordPieceLowerCase | \
                       = BertWordPieceCase | = SentencePieceTokenizer | = GPTSentencePieceTokenizer | = Llama2Tokenizer | = TikTokenizer | = ByteLevelBPE";

section! {
    /// Tokenizer choice.
    pub struct TokenizerConfig {
        /// The kind of tokenizer.
        tokenizer_type: Option<TokenizerType> = None;
        /// `tokenizer.json`, or the folder that holds it.
        tokenizer_model: Option<PathBuf> = None, needs(WITH_MODEL), given_with(WITH_MODEL);
        refused metadata_path = None::<AnyValue>, "Tokenizer metadata."
            => no_counterpart("a file that describes tokenizer_model; tokenizer_type does that");
        /// Size of the null tokenizer, which reports one more for its end-of-document token; for
        /// TikTokenizer the number of ids that are used.
        vocab_size: Option<usize> = None, Limits::SIZE,
            needs("tokenizer.tokenizer_type = NullTokenizer | = TikTokenizer"),
            given_with("tokenizer.tokenizer_type = NullTokenizer");
        /// BPE or WordPiece vocabulary.
        vocab_file: Option<PathBuf> = None, needs(WITH_VOCABULARY), given_with(WITH_VOCABULARY);
        /// BPE merges.
        merge_file: Option<PathBuf> = None, needs("tokenizer.tokenizer_type = GPT2BPETokenizer"),
            given_with("tokenizer.tokenizer_type = GPT2BPETokenizer");
        /// Ids after the vocabulary, for tokens `<extra_id_0>`, `<extra_id_1>` and so on.
        vocab_extra_ids: usize = 0, Limits::between(0.0, 1_000_000.0), needs(FROM_FILES);
        /// Special tokens added to those of the vocabulary.
        special_tokens: Option<Vec<String>> = None, needs(OF_TEXT);
        /// Chat template of conversations: a template, or the file of one; null is that of the
        /// tokenizer.
        chat_template: Option<String> = None, needs(OF_TEXT);
        /// TikToken pre-tokenizer.
        tiktoken_pattern: Option<TiktokenPattern> = None, needs("tokenizer.tokenizer_type = TikTokenizer"),
            given_with("tokenizer.tokenizer_type = TikTokenizer");
        /// TikToken's reserved ids.
        tiktoken_num_special_tokens: usize = 1000, Limits::between(0.0, 1_000_000.0),
            needs("tokenizer.tokenizer_type = TikTokenizer");
        /// Names of those ids.
        tiktoken_special_tokens: Option<Vec<String>> = None, needs("tokenizer.tokenizer_type = TikTokenizer");
        /// Format of SFTTokenizer's conversations: `default`, `identity`, `nemotron-h-aligned` or
        /// `nemotron-nano-v2`.
        tokenizer_prompt_format: Option<String> = None, needs("tokenizer.tokenizer_type = SFTTokenizer"),
            given_with("tokenizer.tokenizer_type = SFTTokenizer");
        refused image_tag_type = None::<String>, "Multimodal image tag."
            => not_built("image tags of MultimodalTokenizer, for images");
        /// Begin every conversation without a system message with an empty one.
        force_system_message: bool = false, needs(FROM_FILES);
        /// Names of special tokens: bos_token, eos_token, pad_token, additional_special_tokens
        /// (HuggingFaceTokenizer and SFTTokenizer).
        hf_tokenizer_kwargs: BTreeMap<String, AnyValue> = BTreeMap::new(),
            needs("tokenizer.tokenizer_type = HuggingFaceTokenizer | = SFTTokenizer");
        /// The same for SentencePiece's tokenizers.
        sp_tokenizer_kwargs: BTreeMap<String, AnyValue> = BTreeMap::new(),
            needs("tokenizer.tokenizer_type = SentencePieceTokenizer | = GPTSentencePieceTokenizer | = Llama2Tokenizer");
        /// Vocabulary size to which `ByteLevelBPE` is trained (ours); null means
        /// `model.vocab_size`.
        bpe_vocab_size: Option<usize> = None, Limits::between(257.0, 2_147_483_647.0),
            needs("tokenizer.tokenizer_type = ByteLevelBPE");
        /// Size of the sample of the dataset's source that `ByteLevelBPE` is trained on, from all
        /// files by their sizes (ours).
        bpe_train_max_bytes: ByteSize = ByteSize(16_000_000), Limits::POSITIVE,
            needs("tokenizer.tokenizer_type = ByteLevelBPE");
    }
}
