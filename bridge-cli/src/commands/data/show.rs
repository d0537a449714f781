//! `bridge data samples` and `bridge data show`: what a recipe trains on, as ids and as text.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bridge_core::config::{RawConfig, World};
use bridge_core::train::RunData;
use bridge_data::gpt::Split;
use bridge_data::tokenizer::{NullTokenizer, Tokenizer};
use bridge_data::{
    DataParallel, Dataset, DatasetBuildContext, ENCODER_MASK, ENCODER_TOKENS, ExtraValues, Sample, Silent,
};
use bridge_models::registry;
use clap::Args;
use serde_json::json;

use super::super::split_name::SplitName;
use super::paint::{Part, paint};
use crate::failure::Failure;
use crate::output::line;
use crate::progress;

/// Samples of a recipe's dataset.
#[derive(Debug, Args)]
pub struct Samples {
    /// The recipe.
    recipe: PathBuf,
    /// Overrides.
    overrides: Vec<String>,
    /// The split.
    #[arg(long, value_enum, default_value = "train")]
    split: SplitName,
    /// Samples requested from each split: TRAIN,VALID,TEST; the recipe's numbers by default.
    #[arg(long, value_delimiter = ',', num_args = 1)]
    num_samples: Vec<usize>,
    /// How many to print.
    #[arg(long, default_value_t = 10)]
    count: usize,
    /// Print one JSON line per sample.
    #[arg(long)]
    json: bool,
}

/// Prints the ids of samples.
pub fn run_samples(samples: &Samples) -> Result<u8, Failure> {
    let (dataset, _) = samples.dataset()?;
    for i in 0..samples.count.min(dataset.len()) {
        let sample = dataset.get(i).map_err(Failure::input)?;
        let source = encoder_ids(&sample);
        let tokens = ids_of(sample);
        if samples.json {
            let mut object = json!({ "tokens": tokens });
            if let Some(source) = source {
                object["encoder_tokens"] = json!(source);
            }
            line(&object.to_string());
        } else {
            let text = tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            line(&format!("{i}: {text}"));
        }
    }
    Ok(0)
}

/// Prints samples as text, and which tokens count for the loss.
pub fn run_show(samples: &Samples) -> Result<u8, Failure> {
    let (dataset, tokenizer) = samples.dataset()?;
    // Without a tokenizer ids are all that is known.
    let tokenizer = tokenizer.unwrap_or_else(|| Arc::new(NullTokenizer::new(usize::MAX >> 1)));
    for i in 0..samples.count.min(dataset.len()) {
        let sample = dataset.get(i).map_err(Failure::input)?;
        // Position n predicts token n + 1.
        let counts: Vec<bool> = std::iter::once(false).chain(sample.loss_mask.iter().map(|mask| *mask > 0.0)).collect();
        let counted = counts.iter().filter(|counts| **counts).count();
        let source = encoder_ids(&sample);
        let sample_weights = sample.loss_mask.clone();
        let tokens = ids_of(sample);
        if samples.json {
            let weights = std::iter::once(0.0).chain(sample_weights);
            // Most weights are 0 and 1.
            let mask: Vec<_> = weights
                .map(|weight| if weight.fract() == 0.0 { json!(weight as i64) } else { json!(weight) })
                .collect();
            let mut object =
                json!({ "sample": i, "text": tokenizer.decode(&tokens).ok(), "tokens": tokens, "loss_mask": mask });
            if let Some(source) = source {
                object["encoder_text"] = json!(tokenizer.decode(&source).ok());
                object["encoder_tokens"] = json!(source);
            }
            line(&object.to_string());
        } else {
            if let Some(source) = source {
                line(&format!("--- sample {i}: {} tokens for the encoder ---", source.len()));
                line(&paint(tokenizer.as_ref(), &source, |_| Part::LeftOut));
            }
            line(&format!("--- sample {i}: {} tokens, {counted} count for the loss ---", tokens.len()));
            let part = |at: usize| if counts[at] { Part::Counted } else { Part::LeftOut };
            line(&paint(tokenizer.as_ref(), &tokens, part));
        }
    }
    Ok(0)
}

/// The tokens of a sample: its inputs, and the last one that has to be predicted.
fn ids_of(sample: Sample) -> Vec<i64> {
    let mut tokens = sample.tokens;
    tokens.extend(sample.labels.last());
    tokens
}

/// What an encoder reads of a sample, without padding, if the sample has that.
fn encoder_ids(sample: &Sample) -> Option<Vec<i64>> {
    let ExtraValues::Ints(ids) = &sample.extras.get(ENCODER_TOKENS)?.values else { return None };
    let ExtraValues::Floats(mask) = &sample.extras.get(ENCODER_MASK)?.values else { return None };
    Some(ids.iter().zip(mask).filter(|(_, weight)| **weight > 0.0).map(|(id, _)| *id).collect())
}

/// A split's dataset, and the tokenizer of its ids.
type Readable = (Arc<dyn Dataset>, Option<Arc<dyn Tokenizer>>);

impl Samples {
    /// The split's dataset, and the tokenizer of its ids.
    fn dataset(&self) -> Result<Readable, Failure> {
        let registry = registry();
        let recipe = RawConfig::from_file(&self.recipe, &self.overrides, &registry.kinds())?;
        // One rank reads the data, however many ranks train with it.
        let config = Arc::new(recipe.for_one_rank().finalize(&World::SINGLE)?);
        let [train_samples, valid_samples, test_samples] = match self.num_samples.as_slice() {
            [] => [config.samples.train as usize, config.samples.valid as usize, config.samples.test as usize],
            [train, valid, test] => [*train, *valid, *test],
            other => {
                let message = format!("--num-samples: expected TRAIN,VALID,TEST, found {} numbers", other.len());
                return Err(Failure::input(message));
            }
        };
        let data_parallel = DataParallel { rank: 0, size: config.parallel.data };
        let seen = Mutex::new(None);
        let context = |tokenizer: Option<Arc<dyn Tokenizer>>| {
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = tokenizer.clone();
            let progress = Arc::new(Silent);
            let once = None;
            DatasetBuildContext { train_samples, valid_samples, test_samples, once, tokenizer, data_parallel, progress }
        };
        let datasets = RunData::build_datasets(&config, &registry.datasets, &progress::hidden(), &context)?;
        let split = Split::from(self.split);
        let dataset = match split {
            Split::Train => datasets.train,
            Split::Valid => datasets.valid,
            Split::Test => datasets.test,
        };
        let missing = || Failure::input(format!("dataset.split: the {} split has proportion 0", split.name()));
        let tokenizer = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((dataset.ok_or_else(missing)?, tokenizer))
    }
}
