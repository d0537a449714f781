//! `bridge eval`: loss, perplexity and bits per byte.

use std::path::PathBuf;
use std::sync::Arc;

use bridge_core::config::{Format, Kinds, World, load, load_text};
use bridge_core::data::loader::MicroBatch;
use bridge_core::data::source::{SourceParams, Text, TextSource};
use bridge_core::model::{Auxiliary, Batch, ForwardContext, Mode};
use bridge_core::tokenizer::Tokenizer;
use bridge_core::train::{DatasetRegistry, Executor, Recompute, RunData, select_device};
use burn::tensor::Device;
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::failure::Failure;
use crate::model_source::{LoadedModel, open};
use crate::output::line;
use crate::progress;

/// A split of the recipe's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EvalSplit {
    /// The training split.
    Train,
    /// The validation split.
    Valid,
    /// The test split.
    Test,
}

/// What to evaluate, and on what.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Checkpoint folder, one of its `iter_` folders, or a Hugging Face folder.
    model: PathBuf,
    /// Text files or globs to evaluate on, instead of the recipe's data.
    #[arg(long, num_args = 1..)]
    text: Vec<String>,
    /// Recipe whose data is evaluated; a checkpoint's own by default.
    #[arg(long, conflicts_with = "text")]
    recipe: Option<PathBuf>,
    /// Split of the recipe's data.
    #[arg(long, value_enum, default_value = "valid")]
    split: EvalSplit,
    /// Sequences at most; all of them by default.
    #[arg(long)]
    max_samples: Option<usize>,
    /// Tokens a sequence; the model's by default.
    #[arg(long)]
    seq_length: Option<usize>,
    /// Sequences at a time.
    #[arg(long, default_value_t = 4)]
    micro_batch_size: usize,
    /// Compute device.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Overrides of the recipe.
    overrides: Vec<String>,
}

/// Sums over the evaluated tokens.
#[derive(Default)]
struct Totals {
    nats: f64,
    tokens: f64,
    bytes: Option<u64>,
    samples: usize,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    if arguments.micro_batch_size == 0 || arguments.seq_length == Some(0) {
        return Err(Failure::input("--micro-batch-size and --seq-length: expected at least 1, found 0"));
    }
    let device = select_device(&arguments.device).map_err(Failure::input)?;
    let model = open(&arguments.model, &device)?;
    let batches =
        if arguments.text.is_empty() { split_batches(arguments, &model)? } else { text_batches(arguments, &model)? };
    if batches.is_empty() {
        return Err(Failure::input("there is nothing to evaluate: the text is shorter than one sequence"));
    }
    let totals = evaluate(&model, &batches, &device)?;
    let loss = totals.nats / totals.tokens;
    let bits_per_byte =
        totals.bytes.filter(|bytes| *bytes > 0).map(|b| totals.nats / std::f64::consts::LN_2 / b as f64);
    if arguments.json {
        let report = json!({
            "loss": loss, "perplexity": loss.exp(), "bits_per_byte": bits_per_byte,
            "tokens": totals.tokens, "bytes": totals.bytes, "samples": totals.samples,
        });
        line(&report.to_string());
    } else {
        line(&format!("loss           {loss:.6} nats a token"));
        line(&format!("perplexity     {:.4}", loss.exp()));
        match bits_per_byte {
            Some(bits) => line(&format!("bits per byte  {bits:.4}")),
            None => line("bits per byte  unknown (the tokenizer does not say what its tokens stand for)"),
        }
        line(&format!("evaluated on   {} tokens in {} sequences", totals.tokens, totals.samples));
    }
    Ok(0)
}

fn evaluate(model: &LoadedModel, batches: &[MicroBatch], device: &Device) -> Result<Totals, Failure> {
    let executor = Executor::new(model.chunk.as_ref(), &Recompute::Off);
    let mut totals = Totals { bytes: model.tokenizer.as_ref().map(|_| 0), ..Totals::default() };
    for micro_batch in batches {
        let batch = Batch::new(micro_batch, device);
        let context = ForwardContext { batch: &batch, mode: Mode::Evaluate, auxiliary: Auxiliary::default() };
        let sum = executor.forward(model.chunk.as_ref(), &context).into_data();
        totals.nats += sum.iter::<f64>().next().unwrap_or(f64::NAN);
        totals.tokens += batch.num_tokens;
        totals.samples += micro_batch.batch_size;
        let counted = micro_batch.labels.iter().zip(&micro_batch.loss_mask).filter(|(_, mask)| **mask > 0.0);
        for (label, _) in counted {
            let tokenizer = model.tokenizer.as_deref();
            let length = tokenizer.and_then(|t| t.id_to_bytes(*label)).map(|bytes| bytes.len() as u64);
            totals.bytes = totals.bytes.zip(length).map(|(sum, length)| sum + length);
        }
    }
    Ok(totals)
}

/// Sequences of a split of the recipe's data.
fn split_batches(arguments: &Arguments, model: &LoadedModel) -> Result<Vec<MicroBatch>, Failure> {
    let kinds = Kinds::builtin();
    let config = match (&arguments.recipe, &model.checkpoint) {
        (Some(recipe), _) => load(recipe, &arguments.overrides, &kinds, &World::SINGLE)?,
        (None, Some(checkpoint)) => {
            let text = checkpoint.run_config().map_err(Failure::input)?;
            load_text((&text, Format::Toml), &arguments.overrides, &kinds, &World::SINGLE)?
        }
        (None, None) => {
            return Err(Failure::input("a Hugging Face folder has no data of its own: give --text or --recipe"));
        }
    };
    let data = RunData::with_progress(&Arc::new(config), &DatasetRegistry::builtin(), &progress::visible(), &|_| {})?;
    let datasets = data.datasets();
    let (dataset, name) = match arguments.split {
        EvalSplit::Train => (&datasets.train, "train"),
        EvalSplit::Valid => (&datasets.valid, "validation"),
        EvalSplit::Test => (&datasets.test, "test"),
    };
    let dataset =
        dataset.as_ref().ok_or_else(|| Failure::input(format!("the {name} split has no samples in this recipe")))?;
    let count = arguments.max_samples.unwrap_or(usize::MAX).min(dataset.len());
    let samples = (0..count).map(|i| dataset.get(i)).collect::<Result<Vec<_>, _>>().map_err(Failure::input)?;
    samples
        .chunks(arguments.micro_batch_size)
        .map(|chunk| MicroBatch::stack(chunk.iter().cloned()).map_err(Failure::input))
        .collect()
}

/// The text of `--text`, cut into sequences: every token but the first is predicted once.
fn text_batches(arguments: &Arguments, model: &LoadedModel) -> Result<Vec<MicroBatch>, Failure> {
    let tokenizer = model.tokenizer.as_deref().ok_or_else(|| {
        Failure::input(format!("{}: there is no tokenizer (expected tokenizer.json)", arguments.model.display()))
    })?;
    let tokens = tokenize(&arguments.text, tokenizer)?;
    let t = arguments.seq_length.unwrap_or(model.config.max_position_embeddings).min(tokens.len().saturating_sub(1));
    if t == 0 {
        return Ok(Vec::new());
    }
    let vocab_size = model.config.vocab_size as i64;
    if let Some(token) = tokens.iter().find(|token| **token >= vocab_size) {
        return Err(Failure::input(format!(
            "the tokenizer has more tokens than the model: found id {token}, expected ids below {vocab_size}"
        )));
    }
    let mut sequences = Vec::new();
    for start in (0..tokens.len() - 1).step_by(t) {
        let length = t.min(tokens.len() - 1 - start);
        let mut inputs = tokens[start..start + length].to_vec();
        let mut labels = tokens[start + 1..=start + length].to_vec();
        let mut mask = vec![1.0; length];
        inputs.resize(t, 0);
        labels.resize(t, 0);
        mask.resize(t, 0.0);
        sequences.push((inputs, labels, mask));
    }
    sequences.truncate(arguments.max_samples.unwrap_or(usize::MAX));
    let stack = |rows: &[(Vec<i64>, Vec<i64>, Vec<f32>)]| MicroBatch {
        tokens: rows.iter().flat_map(|row| row.0.iter().copied()).collect(),
        labels: rows.iter().flat_map(|row| row.1.iter().copied()).collect(),
        loss_mask: rows.iter().flat_map(|row| row.2.iter().copied()).collect(),
        position_ids: rows.iter().flat_map(|_| 0..t as i64).collect(),
        document_ids: None,
        batch_size: rows.len(),
        seq_length: t,
    };
    Ok(sequences.chunks(arguments.micro_batch_size).map(stack).collect())
}

fn tokenize(patterns: &[String], tokenizer: &dyn Tokenizer) -> Result<Vec<i64>, Failure> {
    let params = SourceParams { inputs: patterns.to_vec(), ..SourceParams::default() };
    let source = TextSource::resolve(&params).map_err(Failure::input)?;
    let mut tokens = Vec::new();
    for document in source.documents().map_err(Failure::input)? {
        let document = document.map_err(Failure::input)?;
        if let Text::Valid(text) = document.into_text().map_err(Failure::input)? {
            tokens.extend(tokenizer.encode(&text).map_err(Failure::input)?);
            tokens.extend(tokenizer.eod());
        }
    }
    Ok(tokens)
}
