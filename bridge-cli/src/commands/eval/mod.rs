//! `bridge eval`: loss, perplexity and bits per byte; with `--tasks`, answers to questions.

mod conversations;
mod items;
mod tasks;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_core::config::{ConfigError, ErrorKind, FinalDataset, Format, RawConfig, World};
use bridge_core::logging::{ProgressSink, ProgressTask, Verbosity};
use bridge_core::model::{Batch, ForwardContext, Mode, loss_sum};
use bridge_core::train::{RunData, TokenBytes, select_device};
use bridge_data::gpt::Split;
use bridge_data::loader::MicroBatch;
use bridge_data::source::{SourceParams, TextSource};
use bridge_data::{Filling, Sample};
use bridge_models::registry;
use burn::tensor::Device;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde_json::json;

use self::tasks::{Evaluation, TaskArguments};
use super::split_name::split_parser;
use super::text_sequences::TextSequences;
use crate::chosen_models::{ModelArguments, Models};
use crate::failure::Failure;
use crate::model_source::LoadedModel;
use crate::output::line;
use crate::progress;
use crate::rooted::{root_paths, start_folder};

/// The model to evaluate, and the data.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    /// Adapter that is evaluated, among several, or `base` for none.
    #[arg(long = "use", value_name = "NAME")]
    chosen: Option<String>,
    /// Text files or globs to evaluate on instead of the recipe's data.
    #[arg(long, num_args = 1..)]
    text: Vec<String>,
    /// Files of held-out conversations, or of prompts with their answers: the loss is that of the
    /// answers.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["text", "tasks", "recipe", "split"])]
    data: Vec<PathBuf>,
    #[command(flatten)]
    tasks: TaskArguments,
    /// Recipe whose data is used; the checkpoint's own recipe by default.
    #[arg(long, conflicts_with = "text")]
    recipe: Option<PathBuf>,
    /// Split of the recipe's data.
    #[arg(long, value_parser = split_parser(), default_value = "valid")]
    split: Split,
    /// Maximum number of sequences, or of a task's items; all by default.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    max_samples: Option<usize>,
    /// Tokens per sequence of --text; the model's by default. A recipe's data has its own length.
    #[arg(long, requires = "text", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    seq_length: Option<usize>,
    /// Sequences, or answers, per batch.
    #[arg(long, default_value_t = 4, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    micro_batch_size: usize,
    /// Compute device.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Overrides of the recipe. Settings about ranks are ignored: this is one process.
    overrides: Vec<String>,
}

/// Sequences of mock data that are evaluated by default.
const MOST_MOCK: usize = 100;

/// Sums over the evaluated tokens.
#[derive(Default)]
struct Totals {
    nats: f64,
    tokens: f64,
    bytes: Option<u64>,
    samples: usize,
}

/// Runs the command.
pub fn run(arguments: &Arguments, verbosity: Verbosity) -> Result<u8, Failure> {
    overrides_have_a_recipe(arguments)?;
    let device = select_device(&arguments.device).map_err(Failure::input)?;
    let models = Models::open(&arguments.model, &device)?;
    let model = models.choose(arguments.chosen.as_slice(), 1)?[0].model;
    let progress = progress::visible(verbosity);
    if arguments.tasks.are_given() {
        let evaluation = Evaluation {
            tokenizer: model.tokenizer_of(&arguments.model.model)?,
            model,
            device: &device,
            batch_size: arguments.micro_batch_size,
            max_items: arguments.max_samples,
            is_json: arguments.json,
        };
        return evaluation.run(&arguments.tasks, progress.as_ref()).map(|()| 0);
    }
    if !arguments.data.is_empty() {
        let missing = || model.tokenizer_of(&arguments.model.model).err();
        let tokenizer = model.tokenizer.clone();
        let evaluation = conversations::Evaluation {
            tokenizer: match (tokenizer, missing()) {
                (Some(tokenizer), _) => tokenizer,
                (None, failure) => return Err(failure.unwrap_or_else(|| Failure::input("there is no tokenizer"))),
            },
            model,
            device: &device,
            batch_size: arguments.micro_batch_size,
            max_examples: arguments.max_samples,
            is_json: arguments.json,
        };
        return evaluation.run(&arguments.data, progress.as_ref()).map(|()| 0);
    }
    let sequences = if arguments.text.is_empty() {
        split_sequences(arguments, model, &progress)?
    } else {
        text_sequences(arguments, model)?
    };
    if let Some(bound) = sequences.bound.filter(|_| arguments.max_samples.is_none()) {
        eprintln!("mock data has no end: evaluating on {bound} sequences (--max-samples asks for another number)");
    }
    let sequences = sequences.limited(arguments.max_samples);
    let totals = evaluate(model, sequences, arguments.micro_batch_size, &device, progress.as_ref())?;
    if totals.tokens == 0.0 {
        return Err(Failure::input("there is nothing to evaluate: no token is predicted from one before it"));
    }
    let loss = totals.nats / totals.tokens;
    let bits_per_byte =
        totals.bytes.filter(|bytes| *bytes > 0).map(|b| totals.nats / std::f64::consts::LN_2 / b as f64);
    if arguments.json {
        let report = json!({
            "loss": loss, "perplexity": loss.exp(), "bits_per_byte": bits_per_byte,
            "tokens": totals.tokens as u64, "bytes": totals.bytes, "samples": totals.samples,
        });
        line(&report.to_string());
    } else {
        line(&format!("loss           {loss:.6} nats a token"));
        line(&format!("perplexity     {:.4}", loss.exp()));
        match bits_per_byte {
            Some(bits) => line(&format!("bits per byte  {bits:.4}")),
            None => line("bits per byte  unknown (the tokenizer does not know the bytes of its tokens)"),
        }
        line(&format!("evaluated on   {} tokens in {} sequences", totals.tokens, totals.samples));
    }
    Ok(0)
}

/// Overrides change the recipe's data, which `--text` and `--tasks` replace. Overrides written
/// after these look like their files.
fn overrides_have_a_recipe(arguments: &Arguments) -> Result<(), Failure> {
    let tasks: Vec<String> = arguments.tasks.tasks.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let data: Vec<String> = arguments.data.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let given = [("--tasks", &tasks), ("--data", &data), ("--text", &arguments.text)];
    let Some((option, files)) = given.into_iter().find(|(_, files)| !files.is_empty()) else { return Ok(()) };
    let is_override = |text: &&String| {
        let key = text.split_once('=').map(|(key, _)| key);
        let is_key =
            |key: &str| key.contains('.') && key.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
        key.is_some_and(is_key) && !Path::new(text.as_str()).exists()
    };
    match arguments.overrides.iter().chain(files.iter().filter(is_override)).next() {
        Some(found) => Err(Failure::input(format!(
            "{found}: overrides change the recipe's data, but {option} is evaluated instead: remove one of the two"
        ))),
        None => Ok(()),
    }
}

/// The sequences to evaluate, read lazily.
struct Sequences {
    /// Number of samples, if it is known before they are read.
    count: Option<usize>,
    samples: Box<dyn Iterator<Item = Result<Sample, Failure>>>,
    /// Padding of samples of different lengths.
    filling: Option<Filling>,
    /// Default number of samples to evaluate, for generated data without an end.
    bound: Option<usize>,
}

impl Sequences {
    /// The first `limit` sequences, or all.
    fn limited(self, limit: Option<usize>) -> Self {
        let Some(limit) = limit.or(self.bound) else { return self };
        Self { count: self.count.map(|count| count.min(limit)), samples: Box::new(self.samples.take(limit)), ..self }
    }
}

fn evaluate(
    model: &LoadedModel,
    mut sequences: Sequences,
    micro_batch_size: usize,
    device: &Device,
    progress: &dyn ProgressSink,
) -> Result<Totals, Failure> {
    let token_bytes = model.tokenizer.as_deref().map(TokenBytes::new);
    let mut totals = Totals { bytes: token_bytes.as_ref().map(|_| 0), ..Totals::default() };
    let total = sequences.count.map(|count| count as u64);
    let mut bar = progress.start(ProgressTask { total, ..ProgressTask::new("evaluating", 0, "sequences") });
    loop {
        let samples = sequences.samples.by_ref().take(micro_batch_size).collect::<Result<Vec<_>, _>>()?;
        if samples.is_empty() {
            return Ok(totals);
        }
        let micro_batch = MicroBatch::filled(samples, sequences.filling).map_err(Failure::input)?;
        tokens_are_known(&micro_batch, model)?;
        let batch = Batch::new(&micro_batch, device);
        let context = ForwardContext::new(&batch, Mode::Evaluate);
        let sum = loss_sum(model.chunk.as_ref(), &context).map_err(Failure::run)?.into_data();
        totals.nats += sum.iter::<f64>().next().unwrap_or(f64::NAN);
        totals.tokens += batch.num_tokens;
        totals.samples += micro_batch.batch_size;
        let bytes = token_bytes.as_ref().and_then(|table| table.of_labels(&micro_batch));
        totals.bytes = totals.bytes.zip(bytes).map(|(sum, bytes)| sum + bytes);
        bar.set_position(totals.samples as u64);
    }
}

/// Checks token ids: the data may have been made with another tokenizer than the model's.
fn tokens_are_known(micro_batch: &MicroBatch, model: &LoadedModel) -> Result<(), Failure> {
    let size = model.config.vocab_size as i64;
    let counted = micro_batch.labels.iter().zip(&micro_batch.loss_mask).filter(|(_, mask)| **mask > 0.0);
    let mut ids = micro_batch.tokens.iter().chain(counted.map(|(label, _)| label));
    match ids.find(|id| !(0..size).contains(*id)) {
        Some(id) => Err(Failure::input(format!(
            "the data has a token outside the model's vocabulary: found id {id}, expected ids below {size}"
        ))),
        None => Ok(()),
    }
}

/// Sequences of a split of the recipe's data.
fn split_sequences(
    arguments: &Arguments,
    model: &LoadedModel,
    progress: &Arc<dyn ProgressSink>,
) -> Result<Sequences, Failure> {
    let registry = registry();
    let kinds = registry.kinds();
    let scratch = tempfile::tempdir().map_err(Failure::run)?;
    let recipe = match (&arguments.recipe, &model.checkpoint) {
        (Some(recipe), _) => RawConfig::from_file(recipe, &arguments.overrides, &kinds)?,
        (None, Some(checkpoint)) => {
            let text = checkpoint.run_config().map_err(Failure::input)?;
            let mut saved = RawConfig::from_text(&text, Format::Toml, &[], &kinds)?;
            if let Some(folder) = start_folder(&saved, checkpoint.path()) {
                root_paths(&mut saved, &folder);
            }
            // Prepared data goes to a scratch folder: without a recipe, no setting names a cache
            // for this command.
            let kept = || Some(scratch.path().to_owned());
            saved.dataset.path_to_cache = kept();
            saved.dataset.source_cache_dir = saved.dataset.source.as_ref().and_then(|_| kept());
            RawConfig::from_text(&saved.to_toml(), Format::Toml, &arguments.overrides, &kinds)?
        }
        (None, None) => {
            return Err(Failure::input("a Hugging Face folder has no data: give --text, --data or --recipe"));
        }
    };
    // One rank reads the data, however many ranks have trained with it.
    let config = recipe.for_one_rank().finalize(&World::SINGLE)?;
    let (length, positions) = (config.dataset.seq_length, model.config.max_position_embeddings);
    if length > positions {
        let message = format!("the recipe's sequences have {length} tokens, the model has positions for {positions}");
        let error = ConfigError::new(ErrorKind::Conflict, "model.seq_length", message);
        return Err(Failure::Config(error.with_location(config.location("model.seq_length")).into()));
    }
    if config.dpo.is_some() {
        return Err(Failure::input(
            "the recipe's data are preferences, of which no loss is that of a text: give --text, --tasks, or --recipe with other data",
        ));
    }
    let is_mock = matches!(config.dataset.kind.as_str(), "mock" | "mock_t5");
    let split = arguments.split;
    let is_weighted = has_weights(&config.dataset, split);
    let data = RunData::of_model(&Arc::new(config), &registry.datasets, progress, model.tokenizer.as_deref(), split)?;
    let datasets = data.datasets();
    let dataset = match split {
        Split::Train => &datasets.train,
        Split::Valid => &datasets.valid,
        Split::Test => &datasets.test,
    };
    let missing = || Failure::input(format!("the {} split has no samples in this recipe", split.name()));
    let dataset = Arc::clone(dataset.as_ref().ok_or_else(missing)?);
    let samples = (0..dataset.len()).map({
        let dataset = Arc::clone(&dataset);
        move |i| dataset.get(i).map_err(Failure::input)
    });
    let count = dataset.len();
    if is_weighted && arguments.max_samples.is_none() {
        eprintln!(
            "a blend with weights has no end: evaluating on the {count} sequences that the run would draw by them"
        );
    }
    Ok(Sequences {
        count: Some(count),
        samples: Box::new(samples),
        filling: dataset.filling(),
        bound: (is_mock && count > MOST_MOCK).then_some(MOST_MOCK),
    })
}

/// True if a split is drawn by the weights of a blend.
fn has_weights(dataset: &FinalDataset, split: Split) -> bool {
    let of_split = dataset.blend_per_split.as_ref().and_then(|blends| blends.get(split as usize)?.as_ref());
    match (&dataset.blend, of_split) {
        (Some(blend), _) => blend.weights.is_some(),
        (None, Some(blend)) => blend.weights.is_some() && blend.paths.len() > 1,
        (None, None) => false,
    }
}

/// The text of `--text`, divided into sequences.
fn text_sequences(arguments: &Arguments, model: &LoadedModel) -> Result<Sequences, Failure> {
    let tokenizer = model.tokenizer.clone().ok_or_else(|| {
        Failure::input(format!("{}: there is no tokenizer (expected tokenizer.json)", arguments.model.model.display()))
    })?;
    let positions = model.config.max_position_embeddings;
    if let Some(length) = arguments.seq_length.filter(|length| *length > positions) {
        return Err(Failure::input(format!("--seq-length: expected at most the model's {positions}, found {length}")));
    }
    let params = SourceParams { inputs: arguments.text.clone(), ..SourceParams::default() };
    let source = TextSource::resolve(&params).map_err(Failure::input)?;
    let documents = source.documents().map_err(Failure::input)?;
    let samples = TextSequences::new(documents, tokenizer, arguments.seq_length.unwrap_or(positions));
    Ok(Sequences { count: None, samples: Box::new(samples), filling: None, bound: None })
}
