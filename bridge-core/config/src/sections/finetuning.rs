//! `[dataset.dataset_kwargs]` and `[dataset.packed_sequence_specs]`: how files of examples become
//! samples.

use std::path::PathBuf;

use super::super::choice::{BadLine, PackingAlgorithm, TruncationMethod};
use super::super::limits::Limits;
use super::super::refusal::{no_counterpart, not_built};
use super::super::rule::{excludes, idle_unless};
use super::super::section::section;

/// Conversations are not written by the settings of prompts.
const TEMPLATED: &str = "dataset.dataset_kwargs.chat != true: the chat template writes all of a conversation";

section! {
    /// Conversion of lines to examples (kind finetuning).
    pub struct FinetuningKwargs {
        /// Begin prompts with the beginning-of-sequence token; null begins them as `bridge
        /// generate` does: with what the tokenizer puts before a text.
        add_bos: Option<bool> = None, idle_unless(TEMPLATED);
        /// End answers to prompts with the end-of-document token.
        add_eos: bool = true, idle_unless(TEMPLATED);
        /// Put the end-of-document token between prompt and answer.
        add_sep: bool = false, idle_unless(TEMPLATED);
        /// The field that holds the answer to a prompt.
        label_key: String = "output".into();
        /// Count only answers, and what the assistant says, for the loss.
        answer_only_loss: bool = true, excludes("dpo: answers alone are judged");
        /// The fields of a prompt that are shortened where an example is too long, separated by
        /// commas.
        truncation_field: String = "input".into(), idle_unless(TEMPLATED);
        /// End of a text that is cut off.
        truncation_method: TruncationMethod = TruncationMethod::Right;
        /// Fields in braces, the answer last; null is "{input} {output}", or the fields of another
        /// spelling, one directly behind the other: `prompt` and `completion`, `instruction` and
        /// `response`.
        prompt_template: Option<String> = None, idle_unless(TEMPLATED),
            idle_unless("dpo = null: its lines are `prompt`, `chosen` and `rejected`");
        /// Make every sequence `seq_length` long.
        pad_to_max_length: bool = false;
        /// Make the length of the sequences of a micro-batch a multiple of this.
        pad_seq_length_to_mult: usize = 16, Limits::POSITIVE;
        /// Tokens that are kept free for an answer.
        tokens_to_generate: usize = 0, Limits::SIZE_OR_ZERO, idle_unless(TEMPLATED);
        /// Lines are conversations; null looks at each line.
        chat: Option<bool> = None;
        refused use_hf_tokenizer_chat_template = true, "Conversations are written by the chat template of the tokenizer."
            => no_counterpart("NeMo's own way to write conversations; the tokenizer's template writes them, or tokenizer.chat_template");
        /// Reaction to a line that is not an example (ours).
        on_bad_line: BadLine = BadLine::Error;
        /// Put as many examples into a sequence as follow one another in each epoch (ours).
        pack_on_the_fly: bool = false, excludes("dpo: the two answers of a pair are sequences of their own");
    }
}

section! {
    /// Grouping of examples into sequences before the run (kind finetuning).
    pub struct PackedSequenceSpecs {
        /// Most tokens of examples in a sequence; at most `seq_length`.
        packed_sequence_size: i64 = -1;
        refused tokenizer_model_name = None::<String>, "Name of the tokenizer in the names of packed files."
            => no_counterpart("a name for folders of packed data; what is cached knows its tokenizer");
        /// Threads that tokenize; -1 is all cores.
        @execution num_tokenizer_workers: i64 = -1;
        refused packed_train_data_path = None::<PathBuf>, "Packed training data."
            => not_built("data that another program packed; it is packed from dataset.dataset_root");
        refused packed_val_data_path = None::<PathBuf>, "Packed validation data."
            => not_built("validation data that another program packed; it is packed from dataset.dataset_root");
        refused packed_metadata_path = None::<PathBuf>, "Sizes of packed data."
            => not_built("sizes of data that another program packed");
        refused pad_cu_seqlens = false, "Pad the lists of documents."
            => no_counterpart("lists of documents of one length, for captured GPU graphs; attention knows the document of each token");
        /// Fill each example up to a multiple of this.
        pad_seq_to_mult: usize = 1, Limits::POSITIVE;
        /// In which order examples are put into the first sequence that has room (ours).
        packing_algorithm: PackingAlgorithm = PackingAlgorithm::FirstFitDecreasing;
    }
}
