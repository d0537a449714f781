//! Checks of settings and their errors, shared by configuration and validation. A check names the
//! key of the `[model]` section.

use bridge_core::model::ModelBuildError;

/// The largest dimension of a tensor, as in a recipe.
pub(crate) const LARGEST_SIZE: usize = (1 << 31) - 1;

/// The error about a key.
pub(crate) fn invalid(key: &str, message: String) -> ModelBuildError {
    ModelBuildError::Invalid { key: key.to_owned(), message }
}

/// Fails if the setting of `key` is wrong.
pub(crate) fn refuse(is_wrong: bool, key: &str, message: impl Into<String>) -> Result<(), ModelBuildError> {
    if is_wrong { Err(invalid(key, message.into())) } else { Ok(()) }
}

/// Fails with the first of these settings that is not from 1 to [`LARGEST_SIZE`].
pub(crate) fn check_sizes(sizes: &[(&str, usize)]) -> Result<(), ModelBuildError> {
    sizes.iter().try_for_each(|(key, size)| {
        let message = format!("expected from 1 to {LARGEST_SIZE}, found {size}");
        refuse(!(1..=LARGEST_SIZE).contains(size), key, message)
    })
}

/// Fails with the first of these settings that is not finite and above 0.
pub(crate) fn check_above_zero(numbers: &[(&str, f64)]) -> Result<(), ModelBuildError> {
    numbers.iter().try_for_each(|(key, number)| {
        let message = format!("expected a number above 0, found {number}");
        refuse(!(*number > 0.0 && number.is_finite()), key, message)
    })
}
