//! What can be wrong with an adapter.

use std::path::PathBuf;

use crate::huggingface::HfError;

/// Why an adapter could not be read or used.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// A file, or the base, cannot be read.
    #[error(transparent)]
    HuggingFace(#[from] HfError),
    /// A setting of `adapter_config.json` that cannot be used.
    #[error("{path}: {key}: expected {expected}, found {found}")]
    Setting {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What would do.
        expected: String,
        /// What is there.
        found: String,
    },
}
