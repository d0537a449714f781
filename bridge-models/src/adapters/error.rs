//! Errors of adapters.

use std::path::PathBuf;

use bridge_core::checkpoint::CheckpointError;

use crate::huggingface::HfError;

/// Why an adapter could not be read or used.
#[derive(thiserror::Error)]
pub enum AdapterError {
    /// A file, or the base, cannot be read.
    #[error(transparent)]
    HuggingFace(#[from] HfError),
    /// Values of a checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A layer with a branch is nothing that has one in `peft`.
    #[error(
        "{layer}: expected a layer that is a module of its own in Hugging Face's model, found one whose weights are not: merge the adapter instead"
    )]
    NoModule {
        /// The layer.
        layer: String,
    },
    /// An adapter was trained on a quantised base, but other adapters of the set use the base
    /// unquantised.
    #[error(
        "`{parameter}`: the adapter was trained on a quantised base, which it cannot share with other adapters: load it alone"
    )]
    Quantised {
        /// A parameter that would be quantised.
        parameter: String,
    },
    /// Two adapters of one name.
    #[error("there is an adapter `{name}` already")]
    Taken {
        /// The name.
        name: String,
    },
    /// No adapter of this name.
    #[error("there is no adapter `{name}`: expected one of {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A setting of `adapter_config.json` that cannot be used.
    #[error("{path}: {key}: expected {expected}, found {found}")]
    Setting {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Accepted values.
        expected: String,
        /// Found value.
        found: String,
    },
}
