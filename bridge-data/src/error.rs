//! The error type of everything under `data`; no other code lives here.

use std::path::{Path, PathBuf};

use crate::tokenizer::TokenizerError;

/// Why data could not be opened, indexed, sampled or packed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system reported an error of a file operation.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    Io {
        /// Attempted action as a verb phrase ("open", "write the index").
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file exists but its content is malformed.
    #[error("{path}: {problem}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Expected and found content, with the place in the file.
        problem: String,
    },
    /// A file is shorter than its header or index promises.
    #[error(
        "{path}: truncated {part}: expected at least {expected} bytes, found {found}",
        path = path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The truncated part.
        part: &'static str,
        /// Bytes needed.
        expected: u64,
        /// Bytes present.
        found: u64,
    },
    /// A value that does not fit the token type of an indexed dataset.
    #[error("token {value} does not fit the token type {dtype} of {path}", path = path.display())]
    TokenOutOfRange {
        /// The dataset being written.
        path: PathBuf,
        /// The invalid value.
        value: String,
        /// Name of the token type.
        dtype: &'static str,
    },
    /// An index out of range.
    #[error("{what}: index {index} is out of range, there are {len}")]
    OutOfRange {
        /// Name of the indexed thing.
        what: String,
        /// The requested index.
        index: usize,
        /// The number of items.
        len: usize,
    },
    /// A split holds too few tokens to make one sample.
    #[error(
        "{path}: the {split} split holds {found} tokens in {sequences} sequences, one sample needs \
         {needed}: give the split a larger share (dataset.split), use more text or cut it into smaller pieces (dataset.source_piece_bytes), or shorten the sequence (model.seq_length)"
    )]
    SplitTooSmall {
        /// Dataset prefix (or a name for generated data).
        path: String,
        /// `train`, `valid` or `test`.
        split: &'static str,
        /// Sequences in the split.
        sequences: usize,
        /// Tokens in the split.
        found: u64,
        /// Tokens of one sample.
        needed: u64,
    },
    /// An invalid parameter; the text has its name, its value and the allowed values.
    #[error("{0}")]
    Parameter(String),
    /// A blend needs more samples of a member than it has.
    #[error(
        "the {split} blend asks {path} for {needed} samples, it has {found}: raise \
         mid_level_dataset_surplus"
    )]
    BlendOversamples {
        /// Dataset prefix.
        path: String,
        /// `train`, `valid` or `test`.
        split: &'static str,
        /// Samples that the blend needs.
        needed: u64,
        /// Samples that the dataset has.
        found: u64,
    },
    /// A missing tokenizer (or special token) is needed.
    #[error("{0}")]
    NoTokenizer(String),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A loader thread panicked; the text is its message.
    #[error("a data loader thread failed: {0}")]
    WorkerPanicked(String),
    /// No input matched, or an input pattern is wrong.
    #[error("{0}")]
    Source(String),
    /// A pattern of files to leave out is wrong.
    #[error("{0}")]
    Exclude(String),
    /// An output would replace a file that the same command has not written.
    #[error("{path} was not made by this: name another place, or allow it to be replaced (--force)", path = path.display())]
    NotMade {
        /// The file.
        path: PathBuf,
    },
    /// Another process holds the output.
    #[error("{path}: another process is writing this dataset, or opening it (its lock file is held)", path = path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The caller asked to stop.
    #[error("interrupted before the dataset was complete; nothing was left behind")]
    Interrupted,
}

impl DataError {
    /// An [`DataError::Io`] builder for `map_err`.
    pub fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Self + 'a {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// A [`DataError::Malformed`] with its text.
    pub(crate) fn malformed(path: &Path, problem: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), problem: problem.into() }
    }
}
