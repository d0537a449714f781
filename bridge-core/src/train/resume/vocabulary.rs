//! Number of rows of the model's embedding: those of the recipe, or of the checkpoint that a run
//! resumes from.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::checkpoint::Checkpoint;
use crate::config::{ConfigError, ConfigErrors, ErrorKind, FinalModel, RunConfig};
use crate::train::data::error::InputError;
use crate::train::data::run_data::RunData;
use crate::train::error::CommonError;
use crate::train::reporting::reporter::Reporter;
use crate::train::resume::checkpointing::Start;
use crate::train::resume::error::ResumeError;

/// The key of [`Vocabulary`] in a checkpoint.
const KEY: &str = "vocabulary";

/// A vocabulary that was padded, as checkpoints hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Vocabulary {
    /// Number of ids, without padding.
    size: usize,
    /// The number of rows was padded to a multiple of this.
    make_vocab_size_divisible_by: usize,
    /// Rows of the embedding.
    rows: usize,
}

/// Rows of the model's embedding. A prompt that has no tokens is found out now rather than after
/// hours of training.
///
/// A run that resumes from a checkpoint has its rows. Releases that padded to a multiple of the
/// tensor-parallel size saved more than a new run has; every row takes part in the loss, so none is
/// removed.
pub(in crate::train) fn rows(
    config: &RunConfig,
    data: &RunData,
    start: Option<&Start>,
    reporter: &Reporter,
) -> Result<usize, ResumeError> {
    let missing = |key: &str, message: &str| ConfigErrors::from(ConfigError::new(ErrorKind::Missing, key, message));
    if let Some(prompt) = &config.generate.prompt {
        let message = "must be given: generate.prompt is text, and the data has no tokenizer of its own";
        let tokenizer = data.tokenizer().ok_or_else(|| missing("tokenizer.tokenizer_type", message))?;
        tokenizer.encode(prompt).map_err(InputError::from)?;
    }
    if config.model.vocab_size.is_none() && data.tokenizer().is_none() {
        let message = "must be given without tokenizer.tokenizer_type, for the data has no tokenizer of its own";
        return Err(missing("model.vocab_size", message).into());
    }
    let rows = config.model.padded_vocab_size(data.vocab_size())?;
    let Some(start) = start.filter(|_| config.model.pads_vocabulary()) else { return Ok(rows) };
    let mine = Vocabulary::from_data(config, data, rows);
    let saved = saved_vocabulary(&start.checkpoint, mine.size)?;
    // Other differences mean another model, which loading reports.
    match saved.filter(|saved| *saved != mine && Vocabulary { rows, ..*saved } == mine) {
        None => Ok(rows),
        Some(Vocabulary { rows: kept, .. }) => {
            reporter
                .note(&format!("the vocabulary keeps the {kept} rows of the checkpoint; a new run would have {rows}"));
            Ok(kept)
        }
    }
}

/// Rows of the embedding of a saved model. Fails if the checkpoint does not say.
pub(in crate::train) fn rows_of_saved(checkpoint: &Checkpoint, model: &FinalModel) -> Result<usize, ResumeError> {
    let bad =
        |message: String| CommonError::BadState { path: checkpoint.path().to_owned(), field: KEY.to_owned(), message };
    match (checkpoint.train_state()?.extra.remove(KEY), model.vocab_size) {
        (Some(saved), _) => {
            let saved: Vocabulary = serde_json::from_value(saved).map_err(|error| bad(error.to_string()))?;
            Ok(saved.rows)
        }
        (None, Some(_)) => Ok(model.padded_vocab_size(0)?),
        (None, None) => Err(bad("expected the rows of the embedding, or model.vocab_size in its recipe".into()).into()),
    }
}

/// Puts the vocabulary of a run into the state that it saves, where it is padded.
pub(in crate::train) fn put(config: &RunConfig, data: &RunData, rows: usize, extra: &mut Map<String, Value>) {
    if config.model.pads_vocabulary() {
        let vocabulary = serde_json::to_value(Vocabulary::from_data(config, data, rows));
        extra.insert(KEY.into(), vocabulary.expect("numbers are JSON"));
    }
}

impl Vocabulary {
    fn from_data(config: &RunConfig, data: &RunData, rows: usize) -> Self {
        Self {
            size: config.model.vocab_size.unwrap_or_else(|| data.vocab_size()),
            make_vocab_size_divisible_by: config.model.make_vocab_size_divisible_by,
            rows,
        }
    }
}

/// The vocabulary of a checkpoint, if it was padded. `size` is that of the run: checkpoints of
/// earlier releases have only their recipe, by which vocabularies were padded to a multiple of the
/// tensor-parallel size.
fn saved_vocabulary(checkpoint: &Checkpoint, size: usize) -> Result<Option<Vocabulary>, ResumeError> {
    let bad = |field: &str, message: String| CommonError::BadState {
        path: checkpoint.path().to_owned(),
        field: field.to_owned(),
        message,
    };
    if let Some(saved) = checkpoint.train_state()?.extra.get(KEY) {
        let saved = serde_json::from_value(saved.clone()).map_err(|error| bad(KEY, error.to_string()))?;
        return Ok(Some(saved));
    }
    let recipe: toml::Table =
        checkpoint.run_config()?.parse().map_err(|error| bad("the recipe", format!("{error}")))?;
    let Some(model) = recipe.get("model").and_then(toml::Value::as_table) else { return Ok(None) };
    let is_padded = !model.contains_key("vocab_size")
        || model.get("should_pad_vocab").and_then(toml::Value::as_bool).unwrap_or(false);
    let count = |key, default| {
        let found = model.get(key).and_then(toml::Value::as_integer).and_then(|found| usize::try_from(found).ok());
        found.filter(|found| *found > 0).unwrap_or(default)
    };
    let make_vocab_size_divisible_by = count("make_vocab_size_divisible_by", 128);
    let unit = make_vocab_size_divisible_by * count("tensor_model_parallel_size", 1);
    let rows = size.next_multiple_of(unit);
    Ok(is_padded.then_some(Vocabulary { size, make_vocab_size_divisible_by, rows }))
}
