//! Errors of the data of a run.

use bridge_data::DataError;
use bridge_data::tokenizer::TokenizerError;

use crate::schedule::BatchSizeError;
use crate::train::error::{CommonError, ErrorClass, room_error};

/// Why the data of a run cannot be read.
#[derive(thiserror::Error)]
pub enum InputError {
    /// An error that other rooms make too.
    #[error(transparent)]
    Common(CommonError),
    /// Data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The data holds a token that the model does not know.
    #[error(
        "the data holds token id {id}, and the model knows ids below {vocab_size} (model.vocab_size); was it packed with another tokenizer?"
    )]
    UnknownToken {
        /// The id.
        id: i64,
        /// Size of the model's vocabulary, padding included.
        vocab_size: usize,
    },
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Batch sizes.
    #[error(transparent)]
    BatchSize(#[from] BatchSizeError),
}

room_error! { InputError, wraps Common;
    _ => ErrorClass::BadInput,
}
