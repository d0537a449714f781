//! Comparison of a run with the checkpoint that it resumes from: settings, tokenizer, data.
//! Differences that would ruin the run are errors or warnings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_data::tokenizer::{Comparison, Difference, HuggingFaceTokenizer, Tokenizer, compare};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::checkpoint::{Checkpoint, CheckpointError, TOKENIZER_FILE};
use crate::config::{
    Change, Concerns, ConfigError, ConfigErrors, ErrorKind, Format, Kinds, MODEL, PEFT, RawConfig, RunConfig,
    TOKENIZER, TokenizerType, changes,
};
use crate::train::data::data_identity::{TokenFile, packed_otherwise, token_files};
use crate::train::data::error::InputError;
use crate::train::data::input_fingerprints::{InputFingerprints, Resumed, own_teacher};
use crate::train::data::model_tokenizer::{key_of_tokenizer, loaded_again};
use crate::train::data::run_data::RunData;
use crate::train::error::CommonError;
use crate::train::resume::checkpointing::{AdapterBase, GRADIENTS, Start};
use crate::train::resume::error::ResumeError;
use crate::train::subsystems::contract::saved;

/// The key of a run's record in `train_state.json`.
pub const LINEAGE_KEY: &str = "lineage";
/// Key of [`InputFingerprints`] in the record.
const READS: &str = "reads";

/// Record of a run in its checkpoints, for comparison with the next run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    /// The run, in every line of its `metrics.jsonl`.
    run: String,
    /// Tokenizer of the run.
    tokenizer: Option<TokenizerRecord>,
    /// The token files that it read.
    data: Vec<TokenFile>,
    /// Ranks that read different samples.
    data_parallel_size: usize,
    /// Other inputs of the run; `None` in checkpoints of earlier releases.
    #[serde(default)]
    reads: Option<InputFingerprints>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct TokenizerRecord {
    identifier: Value,
    vocab_size: usize,
}

/// Run and the checkpoint that it resumes from.
pub(in crate::train) struct Lineage {
    /// Name of the run in its records: that of the run it resumes, else a new one.
    pub run: String,
    base: Option<ParentCheckpoint>,
}

/// Facts about the parent checkpoint.
struct ParentCheckpoint {
    path: PathBuf,
    iteration: u64,
    consumed: u64,
    weights_only: bool,
    /// True if it is `checkpoint.pretrained_checkpoint`.
    is_pretrained: bool,
    /// True if it is a checkpoint of an adapter.
    has_adapter: bool,
    /// Settings that differ.
    changes: Vec<Change>,
    tokenizer: Option<Arc<HuggingFaceTokenizer>>,
    record: Option<Record>,
}

impl Lineage {
    /// Compares the recipe of a run with that of the checkpoint `start`. A run that resumes nothing
    /// is called `run`, or gets a new name.
    ///
    /// # Errors
    /// All settings that change the model's computation and are not in
    /// `checkpoint.allow_model_changes`; a checkpoint that cannot be understood.
    pub fn from_run(
        config: &RunConfig,
        kinds: &Kinds,
        start: Option<&Start>,
        run: Option<String>,
    ) -> Result<Self, ResumeError> {
        let new_name = || run.unwrap_or_else(new_run_name);
        let Some(start) = start else {
            return Ok(Self { run: new_name(), base: None });
        };
        let base = ParentCheckpoint::from_start(config, kinds, start)?;
        let resumed = base.record.as_ref().filter(|_| !base.weights_only);
        let run = resumed.map_or_else(new_name, |record| record.run.clone());
        let lineage = Self { run, base: Some(base) };
        lineage.check_settings(config)?;
        Ok(lineage)
    }

    /// The tokenizer of the checkpoint, if it has one. A run that trained its own tokenizer reads
    /// text with it.
    pub fn tokenizer(&self) -> Option<&Arc<HuggingFaceTokenizer>> {
        self.base.as_ref()?.tokenizer.as_ref()
    }

    /// Settings that ask for another model, or for another tokenizer where the run trained its own:
    /// it goes on with the checkpoint's.
    fn check_settings(&self, config: &RunConfig) -> Result<(), ConfigErrors> {
        let Some(base) = &self.base else { return Ok(()) };
        let refused = base.changes_of(Concerns::Function).filter(|change| change.key.starts_with(MODEL));
        let refused = refused.filter(|change| !is_allowed(config, change));
        let refused = refused.map(|change| base.refusal(config, change));
        let refused = refused.chain(base.refused_of_adapter(config));
        refused.chain(base.refused_of_tokenizer(config)).collect::<ConfigErrors>().into_result(())
    }

    /// Compares the inputs of a run with those of the checkpoint's run. Fails if the tokenizer maps
    /// text to other ids than the checkpoint's; if token files cannot be read.
    pub fn check_data(
        &self,
        config: &RunConfig,
        data: &RunData,
        text: Option<&Path>,
    ) -> Result<ResumeReport, ResumeError> {
        let tokenizer = data.tokenizer();
        let record = Record {
            run: self.run.clone(),
            tokenizer: tokenizer.map(|tokenizer| TokenizerRecord {
                identifier: tokenizer.unique_identifier(),
                vocab_size: tokenizer.vocab_size(),
            }),
            data: token_files(config, text).map_err(InputError::from)?,
            data_parallel_size: config.parallel.data,
            reads: Some(InputFingerprints::from_examples(data.examples(), tokenizer.map(Arc::as_ref))),
        };
        let mut warnings = match tokenizer {
            Some(tokenizer) => packed_otherwise(config, tokenizer.as_ref()).map_err(InputError::from)?,
            None => Vec::new(),
        };
        if let Some(base) = &self.base {
            warnings.extend(base.check_tokenizer(config, tokenizer.map(Arc::as_ref), &record)?);
            warnings.extend(base.allowed(config));
            warnings.extend(base.changed_course(config, &record));
            warnings.extend(base.changed_data(&record));
            warnings.extend(base.changed_reads(&record, tokenizer.map(Arc::as_ref)));
        }
        warnings.extend(own_teacher(config));
        Ok(ResumeReport { record: saved(&record)?, warnings })
    }

    /// Adds the models that a run reads besides its own to `record`, which is empty on all ranks
    /// but the first. Returns warnings about models that changed since the checkpoint.
    ///
    /// # Errors
    /// No error in practice: the written record is read back.
    pub fn note_models(
        &self,
        models: [(&'static str, Option<AdapterBase>); 2],
        record: &mut Value,
    ) -> Result<Vec<String>, ResumeError> {
        let Some(noted) = record.get_mut(READS) else { return Ok(Vec::new()) };
        let reads: InputFingerprints = serde_json::from_value(noted.take()).unwrap_or_default();
        let reads = reads.with_models(models);
        *noted = saved(&reads)?;
        let before = self.base.as_ref().filter(|base| !base.weights_only);
        let before = before.and_then(|base| Some((base.record.as_ref()?.reads.as_ref()?, base.iteration)));
        Ok(before.map_or_else(Vec::new, |(before, iteration)| reads.changed_models(before, iteration)))
    }

    /// A shape that does not fit, with the settings that may be the reason.
    pub fn explain(&self, error: ResumeError) -> ResumeError {
        let source = match error {
            ResumeError::Checkpoint(source) => source,
            ResumeError::ForeignOptimizerState { path, name, count, .. } => {
                let of_optimizer = self.base.iter().flat_map(|base| &base.changes);
                let settings = of_optimizer.filter(|change| change.key.starts_with("optimizer.")).map(said).collect();
                return ResumeError::ForeignOptimizerState { path, name, count, settings };
            }
            other => return other,
        };
        let Some(base) = self.base.as_ref().filter(|_| {
            matches!(*source, CheckpointError::TensorMismatch { .. } | CheckpointError::UnknownTensor { .. })
        }) else {
            return ResumeError::Checkpoint(source);
        };
        let of_model = base.changes.iter().filter(|change| {
            change.concerns != Concerns::Execution
                && (change.key.starts_with(MODEL) || change.key.starts_with(TOKENIZER))
        });
        ResumeError::AnotherModel { source, settings: of_model.map(said).collect() }
    }
}

/// Result of [`Lineage::check_data`].
#[derive(Default)]
pub(in crate::train) struct ResumeReport {
    /// Record of the run for its checkpoints.
    pub record: Value,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

impl ResumeReport {
    /// With more warnings.
    pub fn with(mut self, more: Vec<String>) -> Self {
        self.warnings.extend(more);
        self
    }
}

/// Puts the record of a run into the state that it saves.
pub(in crate::train) fn put(record: &Value, extra: &mut Map<String, Value>) {
    extra.insert(LINEAGE_KEY.into(), record.clone());
}

impl ParentCheckpoint {
    fn from_start(config: &RunConfig, kinds: &Kinds, start: &Start) -> Result<Self, ResumeError> {
        let checkpoint = &start.checkpoint;
        let bad = |field: &str, message: String| CommonError::BadState {
            path: checkpoint.path().to_owned(),
            field: field.to_owned(),
            message,
        };
        let text = checkpoint.run_config()?;
        let recipe = RawConfig::from_text(&text, Format::Toml, &[], kinds)
            .map_err(|errors| bad("run_config.toml", errors.to_string()))?;
        // A program may save weights without the settings of their model.
        let says_model = text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("model"));
        let mut state = checkpoint.train_state()?;
        if let Some(of) = state.extra.get(GRADIENTS).and_then(Value::as_str) {
            return Err(bad(GRADIENTS, format!("a checkpoint has weights, and this folder gradients of {of}")).into());
        }
        let record = state.extra.remove(LINEAGE_KEY).map(serde_json::from_value).transpose();
        Ok(Self {
            path: checkpoint.path().to_owned(),
            iteration: state.step,
            consumed: state.consumed_train_samples,
            weights_only: start.weights_only,
            is_pretrained: start.is_pretrained,
            has_adapter: recipe.recipe().peft.is_some(),
            changes: if says_model { changes(recipe.recipe(), config.recipe()) } else { Vec::new() },
            tokenizer: tokenizer_of(checkpoint)?.map(Arc::new),
            record: record.map_err(|error| bad(LINEAGE_KEY, error.to_string()))?,
        })
    }

    /// An adapter where there was none, another than that of the checkpoint, or none where there
    /// was one.
    fn refused_of_adapter(&self, config: &RunConfig) -> Vec<ConfigError> {
        let refusal = |key: &str, found: &str, expected: &str, hint: &str| {
            let Self { path, iteration, .. } = self;
            let found_in = format!("{found}, in {} (iteration {iteration})", path.display());
            let error = ConfigError::new(ErrorKind::Conflict, key, "does not fit the checkpoint");
            vec![error.with_found(found_in).with_expected(expected).with_hint(hint).with_location(config.location(key))]
        };
        match (self.has_adapter, config.peft.is_some(), self.is_pretrained) {
            (false, _, true) | (false, false, false) => Vec::new(),
            (true, _, true) => refusal(
                "checkpoint.pretrained_checkpoint",
                "an adapter alone",
                "a checkpoint of a whole model",
                "name the base of the adapter, or a merge of both",
            ),
            (true, false, false) => {
                refusal("peft", "an adapter alone", "a checkpoint of a whole model", "write [peft]")
            }
            (false, true, false) => refusal(
                "peft",
                "a whole model",
                "a checkpoint of an adapter",
                "name a whole model in checkpoint.pretrained_checkpoint, and another folder in checkpoint.save and checkpoint.load",
            ),
            (true, true, false) => {
                let message = "is another adapter's than the checkpoint's, whose weights would compute something else";
                let changed = self.changes_of(Concerns::Function).filter(|change| change.key.starts_with(PEFT));
                changed.map(|change| self.differs(config, change, message)).collect()
            }
        }
    }

    fn refused_of_tokenizer(&self, config: &RunConfig) -> Vec<ConfigError> {
        const OF_TRAINING: [&str; 3] =
            ["tokenizer.tokenizer_type", "tokenizer.bpe_vocab_size", "tokenizer.special_tokens"];
        let is_trained = config.tokenizer.tokenizer_type == Some(TokenizerType::ByteLevelBpe);
        let Some(own) = self.tokenizer.as_ref().filter(|_| is_trained) else { return Vec::new() };
        let message = format!("asks for another tokenizer than the checkpoint's, of {} tokens", own.vocab_size());
        let hint = format!(
            "the checkpoint's own is taken with tokenizer.tokenizer_type = \"HuggingFaceTokenizer\" and tokenizer.tokenizer_model = {:?}",
            self.path.display().to_string()
        );
        let asked = self.changes.iter().filter(|change| OF_TRAINING.contains(&change.key.as_str()));
        asked.map(|change| self.differs(config, change, &message).with_hint(&hint)).collect()
    }

    fn changes_of(&self, concerns: Concerns) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(move |change| change.concerns == concerns)
    }

    fn differs(&self, config: &RunConfig, change: &Change, message: &str) -> ConfigError {
        let Self { path, iteration, .. } = self;
        ConfigError::new(ErrorKind::Conflict, &change.key, message)
            .with_found(change.now.to_inline())
            .with_expected(format!("{}, as in {} (iteration {iteration})", change.before.to_inline(), path.display()))
            .with_location(config.location(&change.key))
    }

    fn refusal(&self, config: &RunConfig, change: &Change) -> ConfigError {
        let name = change.key.strip_prefix(MODEL).unwrap_or(&change.key);
        self.differs(
            config,
            change,
            "is another model's than the checkpoint's, whose weights would compute something else",
        )
        .with_hint(format!("checkpoint.allow_model_changes = [\"{name}\"] goes on with the new value"))
    }

    /// Settings that were allowed to differ.
    fn allowed(&self, config: &RunConfig) -> Option<String> {
        let allowed: Vec<String> =
            self.changes_of(Concerns::Function).filter(|change| is_allowed(config, change)).map(said).collect();
        (!allowed.is_empty()).then(|| {
            let at = self.iteration;
            format!("checkpoint.allow_model_changes: another model since iteration {at}: {}", allowed.join(", "))
        })
    }

    /// Settings that change the course of a resumed run.
    fn changed_course(&self, config: &RunConfig, record: &Record) -> Vec<String> {
        if self.weights_only {
            return Vec::new();
        }
        let Self { iteration, consumed, .. } = self;
        let mut warnings = Vec::new();
        warnings.extend(self.unread_weights(config));
        // A number of epochs that gives the same number of iterations as in the checkpoint's run is
        // not a change.
        let iterations = config.train.train_iters.to_string();
        let has_length =
            |change: &&Change| change.key == "train.train_iters" && change.before.to_inline() == iterations;
        let has_same_length = self.changes_of(Concerns::Training).any(|change| has_length(&change));
        let is_length = |change: &Change| matches!(change.key.as_str(), "train.train_iters" | "train.num_epochs");
        let mut changed: Vec<String> = self
            .changes_of(Concerns::Training)
            .filter(|change| !(has_same_length && is_length(change)))
            .map(said)
            .collect();
        let replicas = self.record.as_ref().map(|record| record.data_parallel_size);
        if let Some(before) = replicas.filter(|before| *before != record.data_parallel_size) {
            changed.push(format!("data-parallel ranks {before} -> {}", record.data_parallel_size));
        }
        if !changed.is_empty() {
            warnings.push(format!("changed since the checkpoint of iteration {iteration}: {}", changed.join(", ")));
        }
        let decides_order = |change: &&Change| change.key.starts_with("dataset.") || change.key == "model.seq_length";
        if self.changes_of(Concerns::Training).any(|change| decides_order(&change)) {
            warnings.push(format!(
                "the sample order is another from iteration {} on: the run goes on with sample {consumed} of the new order, so some samples \
                 come again and others are left out",
                iteration + 1
            ));
        }
        if !config.checkpoint.load_optim {
            warnings.push(format!(
                "checkpoint.load_optim = false: moments, learning rate schedule and weight decay schedule begin anew at iteration {}",
                iteration + 1
            ));
        }
        warnings
    }

    /// Weights to begin from that were named since the run began.
    fn unread_weights(&self, config: &RunConfig) -> Option<String> {
        const KEY: &str = "checkpoint.pretrained_checkpoint";
        let named = config.checkpoint.pretrained_checkpoint.as_ref().filter(|_| config.peft.is_none())?;
        self.changes.iter().find(|change| change.key == KEY)?;
        Some(format!(
            "{KEY} = {:?} is not read: the run goes on from its own checkpoint of iteration {}. To begin from those weights, name another \
             folder in checkpoint.save and checkpoint.load",
            named.display().to_string(),
            self.iteration
        ))
    }

    /// Token files that are not those of the checkpoint's run.
    fn changed_data(&self, record: &Record) -> Option<String> {
        let before = self.record.as_ref().filter(|before| !self.weights_only && before.data != record.data)?;
        let said = |files: &[TokenFile]| {
            let (documents, tokens) = TokenFile::totals(files);
            format!("{documents} documents, {tokens} tokens")
        };
        let Self { iteration, consumed, .. } = self;
        let others = match said(&before.data) == said(&record.data) {
            true => ", as many but others: of another text, another tokenizer or another end of documents",
            false => "",
        };
        Some(format!(
            "the data has changed since the checkpoint of iteration {iteration}: {} then, {} now{others}. The sample order is another: the run goes \
             on with sample {consumed} of the new order, so some samples come again and others are left out",
            said(&before.data),
            said(&record.data)
        ))
    }

    /// Examples, chat template and special tokens that are not those of the checkpoint's run.
    fn changed_reads(&self, record: &Record, tokenizer: Option<&dyn Tokenizer>) -> Vec<String> {
        let of_base = self.record.as_ref().filter(|_| !self.weights_only).and_then(|before| before.reads.as_ref());
        let (Some(before), Some(now)) = (of_base, &record.reads) else { return Vec::new() };
        let base = Resumed { iteration: self.iteration, consumed: self.consumed, tokenizer: self.tokenizer.as_deref() };
        now.changed(before, base, tokenizer)
    }

    /// Compares the tokenizer of a run with that of the checkpoint. Runs without one read ids,
    /// which say nothing of where they come from.
    fn check_tokenizer(
        &self,
        config: &RunConfig,
        own: Option<&dyn Tokenizer>,
        record: &Record,
    ) -> Result<Option<String>, ResumeError> {
        let (Some(own), Some(of_run)) = (own, &record.tokenizer) else { return Ok(None) };
        let of_base = self.record.as_ref().and_then(|record| record.tokenizer.as_ref());
        let difference = match (&self.tokenizer, loaded_again(own)?) {
            (Some(there), Some(here)) => match compare(there, &here) {
                Comparison::Same => return Ok(None),
                Comparison::Extends(more) => {
                    let size = there.vocab_size();
                    return Ok(Some(format!("the tokenizer has {more} tokens more than the {size} of the checkpoint")));
                }
                Comparison::Differs(difference) => difference,
            },
            _ => match of_base.filter(|of_base| *of_base != of_run) {
                None => return Ok(None),
                Some(of_base) => Difference {
                    what: "identifier".into(),
                    first: of_base.identifier.to_string(),
                    second: of_run.identifier.to_string(),
                },
            },
        };
        let there =
            self.tokenizer.as_ref().map(|there| there.vocab_size()).or(of_base.map(|of_base| of_base.vocab_size));
        let (path, here) = (self.path.display(), own.vocab_size());
        let sizes = format!("{} tokens in {path}, {here} here; {difference}", there.unwrap_or_default());
        if config.checkpoint.allow_model_changes.iter().any(|name| name == TOKENIZER) {
            return Ok(Some(format!("checkpoint.allow_model_changes: another tokenizer: {sizes}")));
        }
        let key = key_of_tokenizer(config);
        let error = ConfigError::new(ErrorKind::Conflict, key, "is another tokenizer than the checkpoint's, whose model knows other ids")
            .with_found(config.tokenizer.tokenizer_model.as_ref().map_or("a tokenizer".into(), |path| path.display().to_string()))
            .with_expected(sizes)
            .with_hint("take the tokenizer of the checkpoint (its folder is one), or set checkpoint.allow_model_changes = [\"tokenizer\"]")
            .with_location(config.location(key));
        Err(error.into())
    }
}

fn is_allowed(config: &RunConfig, change: &Change) -> bool {
    let name = change.key.strip_prefix(MODEL);
    config.checkpoint.allow_model_changes.iter().any(|allowed| Some(allowed.as_str()) == name)
}

/// A change with both values.
fn said(change: &Change) -> String {
    format!("{} {} -> {}", change.key, change.before.to_inline(), change.now.to_inline())
}

/// The tokenizer that is saved with a checkpoint, if there is one.
///
/// # Errors
/// Files that cannot be read or understood.
pub fn tokenizer_of(checkpoint: &Checkpoint) -> Result<Option<HuggingFaceTokenizer>, ResumeError> {
    if !checkpoint.file_names().any(|name| name == TOKENIZER_FILE) {
        return Ok(None);
    }
    let failed = |error: std::io::Error| CommonError::log("tokenizer of the checkpoint", error);
    let folder = tempfile::tempdir().map_err(failed)?;
    for (name, bytes) in checkpoint.companions()?.into_iter().filter(|(name, _)| !name.contains('/')) {
        std::fs::write(folder.path().join(name), bytes).map_err(failed)?;
    }
    Ok(Some(HuggingFaceTokenizer::load(folder.path()).map_err(InputError::from)?))
}

/// A name that no other run has: the time it begins, and a number.
pub fn new_run_name() -> String {
    let now = chrono::Utc::now();
    let number = now.timestamp_subsec_nanos().wrapping_mul(0x9E37_79B9) ^ std::process::id().rotate_left(16);
    format!("{}-{number:08x}", now.format("%Y%m%d-%H%M%S"))
}
