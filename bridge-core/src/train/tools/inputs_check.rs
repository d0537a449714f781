//! Checks before the first step of everything that lies on this machine: text, token files,
//! tokenizer, model section, checkpoint to start from, and the folders that the run writes to.
//! Nothing is written, and each problem is the one that the run itself would report.

use std::path::Path;
use std::sync::Arc;

use bridge_data::indexed::{BinAccess, IndexedDataset};
use bridge_dist::mesh::ProcessGroups;

use crate::config::{ConfigError, ConfigErrors, ErrorKind, RunConfig};
use crate::model::{ModelBuildError, Stage, Workload};
use crate::optim::OverrideProvider as _;
use crate::plan;
use crate::plan::settings::ANY_VOCABULARY;
use crate::train::data::data_errors::name_setting;
use crate::train::data::gpt_data::dataset_prefix;
use crate::train::data::registry::Registry;
use crate::train::data::text::{check_source, tokenizer_rows};
use crate::train::error::{Classified, ErrorClass};
use crate::train::resume::checkpointing::{check_foreign, find_start};
use crate::train::resume::teacher;
use crate::train::run::error::TrainError;
use crate::train::run::outputs_check::check_outputs;

/// A line for each rule of single parameters, with the parameters that it matches.
///
/// # Errors
/// If a rule matches none, or there is no such model.
pub fn parameter_rules(config: &RunConfig, registry: &Registry) -> Result<Vec<String>, TrainError> {
    Ok(plan::settings::overrides_of_outline::<TrainError>(config, &registry.models)?.lines())
}

/// All problems that there are.
///
/// # Errors
/// One for each thing that is missing or cannot be used, under the setting that names it.
pub fn check_inputs(config: &RunConfig, registry: &Registry) -> Result<(), ConfigErrors> {
    let mut errors = ConfigErrors::default();
    let mut found = |checked: Result<(), TrainError>, key: &str| {
        let Err(error) = checked else { return };
        match error.class() {
            ErrorClass::Config(problems) => errors.extend(problems.clone()),
            _ => errors.push(
                ConfigError::new(ErrorKind::Unreadable, key, error.to_string()).with_location(config.location(key)),
            ),
        }
    };
    let paths = config.check_paths();
    let has_tokenizer = paths.as_ref().err().is_none_or(|errors| !errors.names("tokenizer.tokenizer_model"));
    let has_pretrained = paths.as_ref().err().is_none_or(|errors| !errors.names("checkpoint.pretrained_checkpoint"));
    let has_teacher = paths.as_ref().err().is_none_or(|errors| !errors.names("distillation.teacher"));
    found(paths.map_err(TrainError::from), "");
    found(check_outputs(config).map_err(TrainError::from), "");
    found(registry.models.config(&config.model).map(drop).map_err(TrainError::from), "model");
    found(check_adapter(config, registry).map_err(|error| of_setting(config, error)), "peft");
    found(parameter_rules(config, registry).map(drop), "optimizer_config_override_provider.rules");
    found(check_source(config).map_err(|error| name_setting(config, error).into()), "dataset.source");
    for prefix in token_files(config) {
        let opened = IndexedDataset::open(dataset_prefix(Path::new(&prefix)), BinAccess::Mmap);
        let opened = opened.map(drop).map_err(|error| name_setting(config, error.into()).into());
        found(opened, "dataset.data_path");
    }
    if has_tokenizer {
        found(tokenizer_rows(config).map(drop).map_err(TrainError::from), "tokenizer.tokenizer_model");
    }
    if has_pretrained {
        let key = if config.checkpoint.load.is_some() { "checkpoint.load" } else { "checkpoint.pretrained_checkpoint" };
        // A checkpoint of another format is only checked; the run that starts from it imports it.
        let checked = check_foreign(config, &registry.weights).and_then(|is_foreign| match is_foreign {
            true => Ok(()),
            false => find_start(config, &registry.weights, &ProcessGroups::single(), None).map(drop),
        });
        found(checked.map_err(TrainError::from), key);
    }
    if has_teacher {
        found(teacher::check_recipe(config, registry).map_err(TrainError::from), "distillation.teacher");
    }
    errors.into_result(())
}

/// Checks that everything that `[peft]` or `model.freeze_parameters` names is in the model. A model
/// that cannot be built is another problem.
fn check_adapter(config: &RunConfig, registry: &Registry) -> Result<(), ModelBuildError> {
    let Ok(model) = registry.models.config(&config.model) else { return Ok(()) };
    let Some(adapter) = registry.models.adapter(config.peft.as_ref(), &config.model)? else { return Ok(()) };
    // Names of layers are the same with any vocabulary.
    let work = Workload::sequence(config.model.seq_length, config.model.vocab_size.unwrap_or(ANY_VOCABULARY));
    model.builder().outline(&work, &Stage::whole(model.stacks()), Some(Arc::clone(&adapter)))?;
    adapter.check_met()
}

/// A problem of a model under its setting.
fn of_setting(config: &RunConfig, error: ModelBuildError) -> TrainError {
    match error {
        ModelBuildError::Invalid { key, message } => {
            let location = config.location(&key);
            ConfigError::new(ErrorKind::Conflict, key, message).with_location(location).into()
        }
        error => TrainError::from(error),
    }
}

/// The token files of the built-in kinds.
fn token_files(config: &RunConfig) -> Vec<String> {
    let dataset = &config.dataset;
    let blends = dataset.blend.iter().chain(dataset.blend_per_split.iter().flatten().flatten());
    let is_read = matches!(dataset.kind.as_str(), "gpt" | "fim" | "t5");
    let paths: Vec<String> = blends.flat_map(|blend| blend.paths.iter().cloned()).collect();
    if is_read { paths } else { Vec::new() }
}
