//! The largest allowed size and the error about a key, shared by configuration and checks.

use bridge_core::model::ModelBuildError;

/// The largest dimension of a tensor, as in a recipe.
pub(crate) const LARGEST_SIZE: usize = (1 << 31) - 1;

/// The error about a key.
pub(crate) fn invalid(key: &str, message: String) -> ModelBuildError {
    ModelBuildError::Invalid { key: key.to_owned(), message }
}
