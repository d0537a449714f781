//! Check that inputs have the ids of a model: tokenizers are compared with the model's by the
//! content of their files.

use bridge_data::tokenizer::{Comparison, HuggingFaceTokenizer, Tokenizer, compare};

use crate::config::{ConfigError, ErrorKind, RunConfig};
use crate::train::data::error::InputError;
use crate::train::error::CommonError;

/// Refuses data that is read with another tokenizer than a model's.
pub(in crate::train) fn check_tokenizer_of_model(
    config: &RunConfig,
    of_model: &HuggingFaceTokenizer,
    own: &dyn Tokenizer,
) -> Result<(), InputError> {
    let difference = match loaded_again(own)?.map(|own| compare(of_model, &own)) {
        Some(Comparison::Differs(difference)) => difference,
        // Ids without text may come from anywhere.
        Some(Comparison::Same | Comparison::Extends(_)) | None => return Ok(()),
    };
    let key = key_of_tokenizer(config);
    let sizes = format!("{} tokens of the model, {} here; {difference}", of_model.vocab_size(), own.vocab_size());
    let error =
        ConfigError::new(ErrorKind::Conflict, key, "is another tokenizer than the model's, which knows other ids")
            .with_expected(sizes)
            .with_location(config.location(key));
    Err(error.into())
}

/// The setting that chooses a run's tokenizer.
pub(in crate::train) fn key_of_tokenizer(config: &RunConfig) -> &'static str {
    match config.tokenizer.tokenizer_model {
        Some(_) => "tokenizer.tokenizer_model",
        None => "tokenizer.tokenizer_type",
    }
}

/// Reloads a tokenizer of any type from the files that it saves, if they include `tokenizer.json`.
pub(in crate::train) fn loaded_again(tokenizer: &dyn Tokenizer) -> Result<Option<HuggingFaceTokenizer>, InputError> {
    let folder = tempfile::tempdir().map_err(|error| CommonError::log("tokenizer files", error))?;
    tokenizer.save_assets(folder.path())?;
    let has_files = folder.path().join("tokenizer.json").is_file();
    Ok(has_files.then(|| HuggingFaceTokenizer::load(folder.path())).transpose()?)
}
