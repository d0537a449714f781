//! `bridge eval --data`: held-out conversations, or prompts with their answers, by the tokens that
//! count for the loss.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bridge_core::logging::{ProgressSink, ProgressTask};
use bridge_data::gpt::Split;
use bridge_data::sft::{
    BadLine, EpochOrder, ExampleKind, ExampleOptions, Packing, RecordKind, SftParams, SftProvider, TRUNCATED_FIELD,
    TruncationMethod, examples_of,
};
use bridge_data::tokenizer::Tokenizer;
use bridge_data::{
    BuildEvent, BuildObserver, DataParallel, Dataset, DatasetBuildContext, DatasetProvider, ExamplesReport, Sample,
};
use bridge_models::score::{Continuation, Scorer};
use burn::tensor::Device;
use serde_json::json;

use crate::failure::Failure;
use crate::model_source::LoadedModel;
use crate::output::line;

/// The model and the limits of an evaluation.
pub struct Evaluation<'a> {
    /// The model.
    pub model: &'a LoadedModel,
    /// Tokenizer of the model.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Compute device.
    pub device: &'a Device,
    /// Sequences of a batch.
    pub batch_size: usize,
    /// Most examples of each file.
    pub max_examples: Option<usize>,
    /// True if one JSON object is printed.
    pub is_json: bool,
}

/// Sums over the tokens that count.
#[derive(Default)]
struct Totals {
    nats: f64,
    weight: f64,
    tokens: u64,
    correct: u64,
    examples: u64,
    truncated: u64,
    left_out: u64,
}

/// Keeps the report of the examples.
#[derive(Default)]
struct Reports(Mutex<Option<ExamplesReport>>);

impl BuildObserver for Reports {
    fn on_event(&self, event: &BuildEvent) {
        if let BuildEvent::Examples { report } = event {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((**report).clone());
        }
    }
}

impl Evaluation<'_> {
    /// Evaluates the examples of all files and prints the figures. Fails on a file without
    /// examples; a conversation that the chat template cannot write; a model that cannot score.
    pub fn run(&self, files: &[PathBuf], progress: &dyn ProgressSink) -> Result<(), Failure> {
        if self.model.config.encoder.is_some() {
            return Err(Failure::input("--data: expected a decoder, found a model with an encoder"));
        }
        let mut totals = Totals::default();
        for file in files {
            self.add(file, &mut totals, progress)?;
        }
        if totals.weight <= 0.0 {
            return Err(Failure::input("there is nothing to evaluate: no token counts for the loss"));
        }
        let loss = totals.nats / totals.weight;
        let accuracy = totals.correct as f64 / totals.tokens as f64;
        if self.is_json {
            let report = json!({
                "loss": loss, "perplexity": loss.exp(), "token_accuracy": accuracy, "tokens": totals.tokens,
                "examples": totals.examples, "truncated": totals.truncated, "left_out": totals.left_out,
            });
            line(&report.to_string());
            return Ok(());
        }
        line(&format!("loss            {loss:.6} nats a token that counts"));
        line(&format!("perplexity      {:.4}", loss.exp()));
        line(&format!("token accuracy  {accuracy:.4}"));
        line(&format!("evaluated on    {} tokens that count in {} examples", totals.tokens, totals.examples));
        let positions = self.model.config.max_position_embeddings;
        for (count, what) in
            [(totals.truncated, "cut"), (totals.left_out, "left out: nothing of them that counts fits")]
        {
            if count > 0 {
                line(&format!("{count} examples are longer than the model's {positions} positions, and are {what}"));
            }
        }
        Ok(())
    }

    /// Adds the examples of a file to the totals.
    fn add(&self, file: &Path, totals: &mut Totals, progress: &dyn ProgressSink) -> Result<(), Failure> {
        let kind = match examples_of(file).map_err(Failure::input)? {
            Some(ExampleKind::Preference) => {
                let message = "expected conversations, or prompts with their answers, found preferences";
                return Err(Failure::input(format!("{}: {message}", file.display())));
            }
            Some(ExampleKind::Conversation) => RecordKind::AsWritten,
            Some(ExampleKind::Prompt) if self.model.chat_template.is_some() => RecordKind::Chat,
            Some(ExampleKind::Prompt) => RecordKind::AsWritten,
            None => {
                let message = "expected conversations, or prompts with their answers, of one kind in JSON Lines, Parquet or Arrow \
                     (docs/data.md); plain text is evaluated by --text";
                return Err(Failure::input(format!("{}: {message}", file.display())));
            }
        };
        let folder = tempfile::tempdir().map_err(Failure::run)?;
        let (link, dataset, report) = self.dataset(file, kind, folder.path())?;
        let about =
            |failure: String| Failure::input(failure.replace(&link.display().to_string(), &file.display().to_string()));
        if let Some(report) = &report {
            totals.truncated += report.truncated;
            totals.left_out += report.without_loss;
            if let Some(fields) = report.unused_fields() {
                eprintln!("warning: {}: {fields}", file.display());
            }
        }
        let count = dataset.len().min(self.max_examples.unwrap_or(usize::MAX));
        let scorer = Scorer::new(self.model.chunk.as_ref(), &self.model.config, self.device);
        let mut bar = progress.start(ProgressTask::new("evaluating", count as u64, "examples"));
        for begin in (0..count).step_by(self.batch_size) {
            let samples = (begin..count.min(begin + self.batch_size)).map(|at| dataset.get(at));
            let samples = samples.collect::<Result<Vec<Sample>, _>>().map_err(|error| about(error.to_string()))?;
            let whole = |sample: &Sample| Continuation {
                context: sample.tokens.first().copied().into_iter().collect(),
                tokens: sample.labels.clone(),
            };
            let continuations: Vec<Continuation> = samples.iter().map(whole).collect();
            let scores = scorer.token_scores(&continuations).map_err(|(place, error)| {
                Failure::input(format!("{}: example {}: {error}", file.display(), begin + place + 1))
            })?;
            for (sample, scores) in samples.iter().zip(scores) {
                let counted = sample.loss_mask.iter().zip(scores).filter(|(weight, _)| **weight > 0.0);
                for (weight, score) in counted {
                    let weight = f64::from(*weight);
                    totals.nats -= weight * score.log_probability;
                    totals.weight += weight;
                    totals.tokens += 1;
                    totals.correct += u64::from(score.is_greedy);
                }
            }
            totals.examples += samples.len() as u64;
            bar.set_position((begin + samples.len()) as u64);
        }
        Ok(())
    }

    /// The examples of a file as a training split below `folder`, by the reader that fine-tunes,
    /// and the name of the file there.
    fn dataset(
        &self,
        file: &Path,
        kind: RecordKind,
        folder: &Path,
    ) -> Result<(PathBuf, Arc<dyn Dataset>, Option<ExamplesReport>), Failure> {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let parts: Vec<&str> = name.split('.').collect();
        let endings = if matches!(parts.last(), Some(&("gz" | "zst"))) { 2 } else { 1 };
        let ending = parts[parts.len().saturating_sub(endings).max(1).min(parts.len())..].join(".");
        let link = folder.join(format!("training.{ending}"));
        let target = std::path::absolute(file).map_err(Failure::run)?;
        std::os::unix::fs::symlink(&target, &link).map_err(Failure::run)?;
        let provider = SftProvider::new(SftParams {
            root: folder.to_owned(),
            cache: Some(folder.join("cache")),
            example: ExampleOptions {
                seq_length: self.model.config.max_position_embeddings,
                kind,
                prompt_template: None,
                label_key: "output".to_owned(),
                truncation_field: TRUNCATED_FIELD.to_owned(),
                truncation_method: TruncationMethod::Right,
                add_bos: Default::default(),
                add_eos: true,
                add_sep: false,
                answer_only_loss: true,
                tokens_to_generate: 0,
            },
            bad_line: BadLine::Error,
            max_train_samples: None,
            packing: Packing::Off,
            pad_multiple: 1,
            pad_to_max_length: false,
            seed: 0,
            order: EpochOrder::AsStored,
            splits: [true, false, false],
            validates_files: false,
            num_threads: None,
        });
        let reports = Arc::new(Reports::default());
        let context = DatasetBuildContext {
            train_samples: 0,
            valid_samples: 0,
            test_samples: 0,
            once: Some(Split::Train),
            tokenizer: Some(Arc::clone(&self.tokenizer)),
            data_parallel: DataParallel { rank: 0, size: 1 },
            progress: Arc::clone(&reports) as Arc<dyn BuildObserver>,
        };
        let built = provider.and_then(|provider| provider.build(&context)).map_err(|error| {
            Failure::input(error.to_string().replace(&link.display().to_string(), &file.display().to_string()))
        })?;
        let missing = || Failure::input(format!("{}: there are no examples", file.display()));
        let report = reports.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok((link, built.train.ok_or_else(missing)?, report))
    }
}
