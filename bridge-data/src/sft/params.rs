//! Settings of fine-tuning data.

use std::path::PathBuf;

/// The field that is shortened if a recipe names none, as upstream.
pub const TRUNCATED_FIELD: &str = "input";

/// End of a text that is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TruncationMethod {
    /// The end of the text.
    Right,
    /// The beginning of the text.
    Left,
}

/// In which order examples are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackingAlgorithm {
    /// The longest first, which fills sequences best.
    FirstFitDecreasing,
    /// In an order drawn from the seed.
    FirstFitShuffle,
}

/// Content of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// A conversation, if it has one, else a prompt with its answer.
    AsWritten,
    /// A conversation; a prompt with its answer is a conversation of two messages.
    Chat,
    /// A prompt with its answer.
    Prompt,
    /// A prompt with two answers, of which the first is preferred.
    Preference,
    /// A conversation with two answers, of which the first is preferred; text becomes messages.
    ChatPreference,
}

impl RecordKind {
    /// True if a record has two answers.
    pub fn is_preference(self) -> bool {
        matches!(self, Self::Preference | Self::ChatPreference)
    }
}

/// Treatment of a line that is not an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadLine {
    /// The record ends the run.
    Error,
    /// The record is left out and counted.
    Skip,
}

/// Conversion of records to examples.
#[derive(Debug, Clone, PartialEq)]
pub struct ExampleOptions {
    /// Longest example, in tokens.
    pub seq_length: usize,
    /// Content of a record.
    pub kind: RecordKind,
    /// Text with the fields of a record in braces, of which the label is the last; `None` takes the
    /// fields that a record has.
    pub prompt_template: Option<String>,
    /// The field that holds the answer.
    pub label_key: String,
    /// The fields that are shortened, separated by commas.
    pub truncation_field: String,
    /// End that is cut off.
    pub truncation_method: TruncationMethod,
    /// Begin prompts with the beginning-of-sequence token; `None` begins them as the tokenizer
    /// begins a text that stands alone.
    pub add_bos: Option<bool>,
    /// End answers with the end-of-document token.
    pub add_eos: bool,
    /// Put the end-of-document token between prompt and answer.
    pub add_sep: bool,
    /// Only answers count for the loss.
    pub answer_only_loss: bool,
    /// Room that is kept for a generated answer, in tokens.
    pub tokens_to_generate: usize,
}

/// Grouping of examples into sequences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Packing {
    /// No packing: each example is a sequence, padded.
    Off,
    /// Chosen once for all epochs.
    Offline {
        /// Most tokens of a sequence.
        size: usize,
        /// Tokens of each example are filled up to a multiple of this.
        multiple: usize,
        /// Algorithm of the assignment.
        algorithm: PackingAlgorithm,
    },
    /// In the order of each epoch, as many as follow one another.
    OnTheFly,
}

/// The order of the samples of a training split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpochOrder {
    /// Drawn anew for each epoch; there are as many epochs as a run needs.
    Shuffled,
    /// Order of the files, once: the sampler draws an order.
    AsStored,
}

/// The parameters of fine-tuning data.
#[derive(Debug, Clone)]
pub struct SftParams {
    /// Folder with the files of the splits.
    pub root: PathBuf,
    /// Cache folder for the prepared files; `None` means a folder within `root`.
    pub cache: Option<PathBuf>,
    /// Conversion of records to examples.
    pub example: ExampleOptions,
    /// Treatment of a line that is not an example.
    pub bad_line: BadLine,
    /// Examples of the training split that are used, from the first on.
    pub max_train_samples: Option<usize>,
    /// Grouping of examples into sequences.
    pub packing: Packing,
    /// The length of a sequence is a multiple of this, unless it is the longest.
    pub pad_multiple: usize,
    /// Each sequence has the longest length.
    pub pad_to_max_length: bool,
    /// Seed of all that is drawn.
    pub seed: u64,
    /// The order of the training split.
    pub order: EpochOrder,
    /// True for each of training, validation and test data that is read.
    pub splits: [bool; 3],
    /// True if each validation file is evaluated as a set of its own too.
    pub validates_files: bool,
    /// Threads that tokenize; `None` for all cores.
    pub num_threads: Option<usize>,
}

impl SftParams {
    /// Cache folder for the prepared files.
    pub(super) fn cache_folder(&self) -> PathBuf {
        self.cache.clone().unwrap_or_else(|| self.root.join("bridge_cache"))
    }
}
