//! Errors of reading the data of a run.

use bridge_data::DataError;
use bridge_data::tokenizer::TokenizerError;

use crate::schedule::BatchSizeError;
use crate::train::error::{CommonError, ErrorClass, room_error};

/// Why the data of a run cannot be read.
#[derive(thiserror::Error)]
pub enum InputError {
    /// An error that several modules of the training loop share.
    #[error(transparent)]
    Common(CommonError),
    /// A dataset cannot be read or prepared.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The data holds a token that the model does not know.
    #[error(
        "the data holds token id {id}, and the model knows ids below {vocab_size} (model.vocab_size); was it packed with another tokenizer?"
    )]
    UnknownToken {
        /// Token id that was found.
        id: i64,
        /// Size of the model's vocabulary, padding included.
        vocab_size: usize,
    },
    /// A tokenizer cannot be read or trained.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Batch sizes do not fit each other or the ranks.
    #[error(transparent)]
    BatchSize(#[from] BatchSizeError),
}

room_error! { InputError, wraps Common;
    _ => ErrorClass::BadInput,
}
