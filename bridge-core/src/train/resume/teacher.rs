//! The teacher of a distillation: found before the run writes, compared with the model, and built
//! after the model.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use bridge_data::tokenizer::{Comparison, HuggingFaceTokenizer, Tokenizer, compare};
use bridge_dist::mesh::ProcessGroups;
use burn::tensor::DType;

use crate::checkpoint::{Checkpoint, RUN_CONFIG_FILE, TOKENIZER_FILE};
use crate::config::{ConfigError, DistillationConfig, ErrorKind, FinalModel, Format, Places, RawConfig, RunConfig};
use crate::model::{BuildContext, ModelConfig, Parallel};
use crate::train::data::model_tokenizer::loaded_again;
use crate::train::data::registry::Registry;
use crate::train::data::run_data::RunData;
use crate::train::engine::pipeline;
use crate::train::error::CommonError;
use crate::train::objectives::distillation::Distillation;
use crate::train::ranks::agreement;
use crate::train::resume::checkpointing::{AdapterBase, find_teacher, load_parameters};
use crate::train::resume::error::ResumeError;
use crate::train::resume::lineage::tokenizer_of;
use crate::train::resume::vocabulary;
use crate::train::settings;
use crate::train::step::training_run::TrainingRun;

const KEY: &str = "distillation.teacher";

/// A teacher that was found.
pub(in crate::train) struct Teacher {
    settings: DistillationConfig,
    checkpoint: Checkpoint,
    model: FinalModel,
    model_config: Box<dyn ModelConfig>,
    /// Rows of the teacher's embedding.
    rows: usize,
    /// Rows that the run's model has too; set when the two models are compared.
    shared_rows: usize,
}

/// Finds the teacher that a recipe names. All ranks call this together. Fails if there is no
/// teacher, or it cannot run on these ranks.
pub(in crate::train) fn find(
    config: &RunConfig,
    registry: &Registry,
    groups: &ProcessGroups,
) -> Result<Option<Teacher>, ResumeError> {
    let Some(settings) = &config.distillation else { return Ok(None) };
    let path = settings.teacher.as_ref().ok_or_else(|| CommonError::Internal(format!("{KEY} is not there")))?;
    agreement::agree(groups, "checking the teacher", check_recipe(config, registry))?;
    let checkpoint = find_teacher(config, path, &registry.weights, groups)?;
    let opened = open(config, registry, settings, checkpoint);
    agreement::agree(groups, "opening the teacher", opened).map(Some)
}

/// Checks the recipe of the teacher, and writes nothing. Fails if the recipe names no teacher that
/// can run on the ranks of this run.
pub(in crate::train) fn check_recipe(config: &RunConfig, registry: &Registry) -> Result<(), ResumeError> {
    let pretrained = config.distillation.as_ref().and_then(|settings| settings.teacher.clone());
    let (Some(path), Some(finder)) = (pretrained, registry.kinds().saved) else { return Ok(()) };
    let places = Places { load: None, step: None, pretrained: Some(path) };
    match finder.at(&places).map_err(|(_, message)| refused(config, message))? {
        Some(found) => models_of(config, registry, &found.text, &found.path).map(drop),
        None => Ok(()),
    }
}

/// The model of a recipe that lies at `path`.
fn models_of(
    config: &RunConfig,
    registry: &Registry,
    recipe: &str,
    path: &Path,
) -> Result<(FinalModel, Box<dyn ModelConfig>), ResumeError> {
    let recipe = RawConfig::from_text(recipe, Format::Toml, &[], &registry.kinds())
        .map_err(|errors| refused(config, format!("{}: {errors}", path.display())))?;
    let model = config.teacher_model(&recipe)?;
    let model_config = registry.models.config(&model).map_err(|error| refused(config, error))?;
    Ok((model, model_config))
}

fn open(
    config: &RunConfig,
    registry: &Registry,
    settings: &DistillationConfig,
    checkpoint: Checkpoint,
) -> Result<Teacher, ResumeError> {
    let (model, model_config) = models_of(config, registry, &checkpoint.run_config()?, checkpoint.path())?;
    let rows = vocabulary::rows_of_saved(&checkpoint, &model)?;
    Ok(Teacher { settings: settings.clone(), checkpoint, model, model_config, rows, shared_rows: 0 })
}

fn refused(config: &RunConfig, message: impl Display) -> ResumeError {
    let error = ConfigError::new(ErrorKind::Conflict, KEY, message.to_string());
    error.with_location(config.location(KEY)).into()
}

impl Teacher {
    /// Compares the teacher with the run's data, and with its model, whose embedding has `rows`
    /// rows. Fails if it knows other ids, or hidden states of another width, where these are
    /// compared.
    pub fn check(mut self, config: &RunConfig, data: &RunData, rows: usize) -> Result<Self, ResumeError> {
        let own = data.tokenizer().map(|own| loaded_again(own.as_ref())).transpose()?.flatten();
        let of_teacher = tokenizer_of(&self.checkpoint)?;
        match of_teacher.as_ref().zip(own.as_ref()) {
            Some((of_teacher, own)) => self.check_tokenizer(config, of_teacher, own)?,
            None if self.rows != rows => {
                let message = "has another vocabulary than the model, and no tokenizers say which ids both have";
                return Err(self.differs(config, message, "rows", self.rows, rows));
            }
            None => {}
        }
        let ids = config.model.vocab_size.unwrap_or_else(|| data.vocab_size()).min(rows);
        let used = data.tokenizer().map_or(ids, |tokenizer| tokenizer.vocab_size());
        if self.rows < used {
            return Err(self.differs(config, "has a smaller vocabulary than the model", "rows", self.rows, used));
        }
        let (width, own_width) = (self.model.hidden_size, config.model.hidden_size);
        if self.settings.hidden_weight > 0.0 && width != own_width {
            let message = "has hidden states of another width, which distillation.hidden_weight cannot compare";
            return Err(self.differs(config, message, "width", width, own_width));
        }
        self.shared_rows = rows.min(self.rows);
        if let Some(k) = self.settings.top_k.filter(|k| *k >= self.shared_rows) {
            let error = ConfigError::new(ErrorKind::OutOfRange, "distillation.top_k", "leaves no token for the rest")
                .with_found(k.to_string())
                .with_expected(format!("less than the {} tokens of the vocabulary", self.shared_rows))
                .with_location(config.location("distillation.top_k"));
            return Err(error.into());
        }
        Ok(self)
    }

    fn check_tokenizer(
        &self,
        config: &RunConfig,
        of_teacher: &HuggingFaceTokenizer,
        own: &HuggingFaceTokenizer,
    ) -> Result<(), ResumeError> {
        let difference = match compare(of_teacher, own) {
            Comparison::Same => return Ok(()),
            Comparison::Extends(more) => format!("the run's has {more} tokens more"),
            Comparison::Differs(difference) => difference.to_string(),
        };
        let name =
            |path: Option<&std::path::PathBuf>| path.map_or_else(String::new, |path| format!(" ({})", path.display()));
        let error =
            ConfigError::new(ErrorKind::Conflict, KEY, "has another tokenizer than the run: its ids mean other text")
                .with_found(format!("{} tokens ({})", of_teacher.vocab_size(), self.checkpoint.path().display()))
                .with_expected(format!(
                    "the {} tokens of the run's tokenizer{}; {difference}",
                    own.vocab_size(),
                    name(config.tokenizer.tokenizer_model.as_ref())
                ))
                .with_location(config.location(KEY));
        Err(error.into())
    }

    fn differs(&self, config: &RunConfig, message: &str, what: &str, found: usize, expected: usize) -> ResumeError {
        let error = ConfigError::new(ErrorKind::Conflict, KEY, message)
            .with_found(format!("{what} {found}, in {}", self.checkpoint.path().display()))
            .with_expected(format!("{what} {expected}, as the model of the run"))
            .with_location(config.location(KEY));
        error.into()
    }

    /// Identity of the teacher.
    pub fn identity(&self) -> AdapterBase {
        AdapterBase::from_checkpoint(&self.checkpoint)
    }

    /// Bytes of its parameters on one rank, where all have as many.
    pub fn bytes(&self, config: &RunConfig) -> u64 {
        let tensors = self.checkpoint.metadata().tensors.values();
        let elements: u64 = tensors
            .filter(|tensor| tensor.group == "model")
            .map(|tensor| tensor.shape.iter().map(|size| *size as u64).product::<u64>())
            .sum();
        let ranks = config.model.tensor_model_parallel_size * config.model.pipeline_model_parallel_size;
        elements.div_ceil(ranks as u64) * DType::from(settings::params_dtype(config)).size() as u64
    }

    /// Builds and loads it. All ranks call this together. Fails if the checkpoint does not have its
    /// parameters.
    pub fn build(self, run: &TrainingRun) -> Result<Distillation, ResumeError> {
        let (config, groups) = (&run.state.config, &run.groups);
        let device = run.training.device.clone();
        let parallel = Parallel { groups: groups.clone(), sequence_parallel: config.model.sequence_parallel };
        let context = BuildContext {
            device: device.clone(),
            seed: config.rng.seed,
            params_dtype: settings::params_dtype(config),
            padded_vocab_size: self.rows,
            parallel,
            deferred: None,
            adapter: None,
        };
        let built = pipeline::build_chunks(&self.model, self.model_config.as_ref(), &context);
        let built = built.map_err(ResumeError::from).and_then(|mut chunks| {
            chunks.iter_mut().try_for_each(|chunk| load_parameters(chunk.as_mut(), &self.checkpoint))?;
            Ok(chunks.iter().map(|chunk| chunk.inference()).collect::<Vec<_>>())
        });
        let chunks = agreement::agree(groups, "building the teacher", built)?;
        let pipeline = pipeline::forward_pipeline(config, &context.parallel, &chunks, &device);
        let (rows, fingerprint) = (self.shared_rows, self.fingerprint(config));
        Ok(Distillation::new(chunks, pipeline, self.settings, rows, &fingerprint))
    }

    /// Fingerprint of the inputs that determine its outputs: its weights, settings and tokenizer,
    /// the precision, and the stored part.
    fn fingerprint(&self, config: &RunConfig) -> String {
        let metadata = self.checkpoint.metadata();
        let files: BTreeMap<&str, String> = [RUN_CONFIG_FILE, TOKENIZER_FILE]
            .into_iter()
            .filter_map(|name| Some((name, metadata.files.get(name)?.checksum.to_string())))
            .collect();
        let DistillationConfig { temperature, top_k, .. } = &self.settings;
        format!(
            "{}\n{files:?}\n{:?}\ntemperature {temperature:?}, best {top_k:?} of {}, length {}",
            AdapterBase::from_checkpoint(&self.checkpoint).checksum,
            settings::params_dtype(config),
            self.shared_rows,
            config.model.seq_length
        )
    }
}
