//! The error type of tokenizers; no other code belongs here.

use std::path::{Path, PathBuf};

/// Why a tokenizer could not be loaded, trained or used.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A file or folder without a tokenizer.
    #[error(
        "{path}: no tokenizer here: expected a tokenizer.json, a folder with one, or a folder with vocab.json and \
         merges.txt, or with tokenizer.model (SentencePiece)",
        path = .0.display()
    )]
    NotFound(PathBuf),
    /// The operating system reported an error of a file operation.
    #[error("{path}: cannot {action}: {source}", path = path.display())]
    Io {
        /// Attempted action, as a verb phrase.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file that does not parse.
    #[error("{path}: {problem}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Description of the problem, with the place.
        problem: String,
    },
    /// A library panicked.
    #[error("the tokenizer's library failed: {0}")]
    Panicked(String),
    /// The caller asked to stop.
    #[error("interrupted before the tokenizer was trained")]
    Interrupted,
    /// Documents cannot be separated.
    #[error(
        "the tokenizer {tokenizer} has no end-of-document token: name one as eos_token in its tokenizer_config.json, or train a \
         tokenizer with <|endoftext|>"
    )]
    NoEndOfDocument {
        /// Identity of the tokenizer.
        tokenizer: String,
    },
    /// A token name that is not in the vocabulary.
    #[error("{place}the tokenizer has no token {token:?}{hint}")]
    UnknownToken {
        /// The files that name it, as the beginning of the sentence; empty if it was named in
        /// memory.
        place: String,
        /// The name.
        token: String,
        /// The nearest name, as the end of the sentence.
        hint: String,
    },
    /// An id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    UnknownId {
        /// The id.
        id: i64,
        /// Number of ids.
        vocab_size: usize,
    },
    /// Text that cannot be converted to ids.
    #[error("cannot tokenize: {0}")]
    Encode(String),
    /// Ids that cannot be converted to text.
    #[error("cannot turn ids into text: {0}")]
    Decode(String),
    /// A vocabulary that cannot be trained.
    #[error("cannot train a tokenizer: {0}")]
    Train(String),
}

impl TokenizerError {
    /// A [`TokenizerError::Io`] builder for `map_err`.
    pub(crate) fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Self + 'a {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    /// A [`TokenizerError::Malformed`] with its text.
    pub(crate) fn malformed(path: &Path, problem: impl std::fmt::Display) -> Self {
        Self::Malformed { path: path.to_owned(), problem: problem.to_string() }
    }
}
