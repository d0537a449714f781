//! `[tokenizer]`: names, defaults, ranges.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::choice::{TiktokenPattern, TokenizerType};
use super::super::field::{AnyValue, ByteSize};
use super::super::limits::Limits;
use super::super::refusal::{no_counterpart, not_built};
use super::super::section::section;

section! {
    /// Tokenizer choice.
    pub struct TokenizerConfig {
        /// The kind of tokenizer.
        tokenizer_type: Option<TokenizerType> = None;
        /// `tokenizer.json`, or the folder that holds it.
        tokenizer_model: Option<PathBuf> = None;
        /// Tokenizer metadata.
        metadata_path: Option<AnyValue> = None
            => no_counterpart("a file that describes tokenizer_model; tokenizer_type does that");
        /// Size of the null tokenizer, which reports one more for its end-of-document token.
        vocab_size: Option<usize> = None, Limits::SIZE;
        /// BPE or WordPiece vocabulary.
        vocab_file: Option<PathBuf> = None
            => not_built("a vocabulary without its merges; tokenizer_model takes a tokenizer.json, which has both");
        /// BPE merges.
        merge_file: Option<PathBuf> = None
            => not_built("merges without their vocabulary; tokenizer_model takes a tokenizer.json, which has both");
        /// Additional ids.
        vocab_extra_ids: usize = 0, Limits::SIZE_OR_ZERO
            => not_built("unnamed ids after the vocabulary; special_tokens adds ids with names");
        /// Special tokens added to those of the vocabulary (HuggingFaceTokenizer and ByteLevelBPE).
        special_tokens: Option<Vec<String>> = None;
        /// Chat formatting template.
        chat_template: Option<String> = None => not_built("chat templates, for fine-tuning");
        /// TikToken pre-tokenizer.
        tiktoken_pattern: Option<TiktokenPattern> = None => not_built("how TikTokenizer splits text");
        /// TikToken's reserved ids.
        tiktoken_num_special_tokens: usize = 1000, Limits::SIZE_OR_ZERO => not_built("ids that TikTokenizer reserves");
        /// Names of those ids.
        tiktoken_special_tokens: Option<Vec<String>> = None => not_built("names of ids that TikTokenizer reserves");
        /// Multimodal prompt format.
        tokenizer_prompt_format: Option<String> = None => not_built("prompts of MultimodalTokenizer and SFTTokenizer");
        /// Multimodal image tag.
        image_tag_type: Option<String> = None => not_built("image tags of MultimodalTokenizer");
        /// Always insert a system message.
        force_system_message: bool = false => not_built("a system message in every chat of MultimodalTokenizer");
        /// Passed to the Hugging Face tokenizer.
        hf_tokenizer_kwargs: BTreeMap<String, AnyValue> = BTreeMap::new()
            => not_built("arguments of Python's tokenizer classes; tokenizer.json is used as it is").inert(&["{use_fast = true}"]);
        /// Passed to SentencePiece.
        sp_tokenizer_kwargs: BTreeMap<String, AnyValue> = BTreeMap::new()
            => not_built("arguments of SentencePiece's tokenizers");
        /// Vocabulary size to which `ByteLevelBPE` is trained (ours); null means `model.vocab_size`.
        bpe_vocab_size: Option<usize> = None, Limits::between(257.0, 2_147_483_647.0);
        /// How much of the dataset's source `ByteLevelBPE` is trained on (ours).
        bpe_train_max_bytes: ByteSize = ByteSize(16_000_000), Limits::POSITIVE;
    }
}
