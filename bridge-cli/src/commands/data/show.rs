//! `bridge data samples` and `bridge data show`: a recipe's training data, as ids and as text.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bridge_core::config::{RawConfig, World};
use bridge_core::train::RunData;
use bridge_data::gpt::Split;
use bridge_data::tokenizer::{NullTokenizer, Tokenizer};
use bridge_data::{
    BuildEvent, BuildObserver, DataParallel, Dataset, DatasetBuildContext, ENCODER_MASK, ENCODER_TOKENS, ExtraValues,
    Sample,
};
use bridge_models::registry;
use clap::Args;
use serde_json::json;

use super::super::split_name::split_parser;
use super::paint::{Part, paint};
use crate::failure::Failure;
use crate::output::line;
use crate::progress;

/// Prints warnings about incomplete records while datasets are built.
struct Warnings;

impl BuildObserver for Warnings {
    fn on_event(&self, event: &BuildEvent) {
        if matches!(event, BuildEvent::Examples { report } if report.lacks()) {
            eprintln!("warning: {event}");
        }
    }
}

/// Samples of a recipe's dataset.
#[derive(Debug, Args)]
pub struct Samples {
    /// The recipe.
    recipe: PathBuf,
    /// Overrides.
    overrides: Vec<String>,
    /// The split.
    #[arg(long, value_parser = split_parser(), default_value = "train")]
    split: Split,
    /// Samples requested from each split: TRAIN,VALID,TEST; the recipe's numbers by default.
    #[arg(long, value_delimiter = ',', num_args = 1)]
    num_samples: Vec<usize>,
    /// Number of samples to print.
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
        for Shown { answer, tokens, .. } in shown(&sample) {
            if samples.json {
                let mut object = json!({ "tokens": tokens });
                if let Some(source) = &source {
                    object["encoder_tokens"] = json!(source);
                }
                if let Some(answer) = answer {
                    object["answer"] = json!(answer);
                }
                line(&object.to_string());
            } else {
                let text = tokens.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
                let answer = answer.map(|answer| format!(" {answer}")).unwrap_or_default();
                line(&format!("{i}{answer}: {text}"));
            }
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
        let source = encoder_ids(&sample);
        for Shown { answer, tokens, weights } in shown(&sample) {
            let counts: Vec<bool> = weights.iter().map(|weight| *weight > 0.0).collect();
            let counted = counts.iter().filter(|counts| **counts).count();
            if samples.json {
                // Most weights are 0 and 1.
                let mask: Vec<_> = weights
                    .into_iter()
                    .map(|weight| if weight.fract() == 0.0 { json!(weight as i64) } else { json!(weight) })
                    .collect();
                let mut object =
                    json!({ "sample": i, "text": tokenizer.decode(&tokens).ok(), "tokens": tokens, "loss_mask": mask });
                if let Some(source) = &source {
                    object["encoder_text"] = json!(tokenizer.decode(source).ok());
                    object["encoder_tokens"] = json!(source);
                }
                if let Some(answer) = answer {
                    object["answer"] = json!(answer);
                }
                line(&object.to_string());
            } else {
                if let Some(source) = &source {
                    line(&format!("--- sample {i}: {} tokens for the encoder ---", source.len()));
                    line(&paint(tokenizer.as_ref(), source, |_| Part::LeftOut));
                }
                let answer = answer.map(|answer| format!(", {answer}")).unwrap_or_default();
                line(&format!("--- sample {i}{answer}: {} tokens, {counted} count for the loss ---", tokens.len()));
                let part = |at: usize| if counts[at] { Part::Counted } else { Part::LeftOut };
                line(&paint(tokenizer.as_ref(), &tokens, part));
            }
        }
    }
    Ok(0)
}

/// A sequence of a sample, each token with the weight of its prediction.
struct Shown {
    /// Answer of a preference pair: chosen or rejected.
    answer: Option<&'static str>,
    tokens: Vec<i64>,
    weights: Vec<f32>,
}

/// The sequences of a sample: one, or those of the two answers of a preference, whose tokens stand
/// in turn.
fn shown(sample: &Sample) -> Vec<Shown> {
    let is_pair = sample.document_ids.is_none() && matches!(sample.position_ids.as_slice(), [0, 0, ..]);
    if !is_pair {
        let (tokens, weights) = with_labels(sample);
        return vec![Shown { answer: None, tokens, weights }];
    }
    fn every_other<T: Copy>(values: &[T], first: usize) -> Vec<T> {
        values.iter().skip(first).step_by(2).copied().collect()
    }
    let answer = |(first, answer): (usize, &'static str)| {
        let one = Sample {
            tokens: every_other(&sample.tokens, first),
            labels: every_other(&sample.labels, first),
            loss_mask: every_other(&sample.loss_mask, first),
            position_ids: every_other(&sample.position_ids, first),
            ..Sample::default()
        };
        let (tokens, weights) = with_labels(&one);
        Shown { answer: Some(answer), tokens, weights }
    };
    ["chosen", "rejected"].into_iter().enumerate().map(answer).collect()
}

/// Tokens of a sample, each with the weight of its prediction: its inputs, and labels that are not
/// inputs, such as the last token of an example before padding. Such a token takes the place of the
/// padding, or precedes the next document of the sample.
fn with_labels(sample: &Sample) -> (Vec<i64>, Vec<f32>) {
    let Sample { tokens, labels, loss_mask, document_ids, .. } = sample;
    let (mut ids, mut weights) = (Vec::with_capacity(tokens.len() + 1), Vec::with_capacity(tokens.len() + 1));
    for (at, token) in tokens.iter().enumerate() {
        // Position n predicts token n + 1.
        let (label, weight) = if at == 0 { (*token, 0.0) } else { (labels[at - 1], loss_mask[at - 1]) };
        if weight > 0.0 && label != *token {
            ids.push(label);
            weights.push(weight);
            if document_ids.as_ref().is_some_and(|documents| documents[at] != documents[at - 1]) {
                ids.push(*token);
                weights.push(0.0);
            }
        } else {
            ids.push(*token);
            weights.push(weight);
        }
    }
    ids.extend(labels.last());
    weights.extend(loss_mask.last());
    (ids, weights)
}

/// Encoder input of a sample, without padding, if the sample has one.
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
            let progress = Arc::new(Warnings);
            let once = None;
            DatasetBuildContext { train_samples, valid_samples, test_samples, once, tokenizer, data_parallel, progress }
        };
        let datasets = RunData::build_datasets(&config, &registry.datasets, &progress::hidden(), &context)?;
        let split = self.split;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(tokens: &[i64], labels: &[i64], loss_mask: &[f32], positions: &[i64]) -> Sample {
        let [tokens, labels, position_ids] = [tokens, labels, positions].map(<[i64]>::to_vec);
        Sample { tokens, labels, loss_mask: loss_mask.to_vec(), position_ids, ..Sample::default() }
    }

    #[test]
    fn the_last_label_stands_in_place_of_padding() {
        let padded = sample(&[5, 6, 7, 0, 0], &[6, 7, 9, 0, 0], &[0.0, 1.0, 0.5, 0.0, 0.0], &[0, 1, 2, 3, 4]);
        assert_eq!(with_labels(&padded), (vec![5, 6, 7, 9, 0, 0], vec![0.0, 0.0, 1.0, 0.5, 0.0, 0.0]));
        let whole = sample(&[5, 6, 7], &[6, 7, 9], &[0.0, 1.0, 1.0], &[0, 1, 2]);
        assert_eq!(with_labels(&whole), (vec![5, 6, 7, 9], vec![0.0, 0.0, 1.0, 1.0]));
        // A label that does not count is not added; the input's token is shown.
        let ended = sample(&[5, 6, 7], &[6, 0, 9], &[1.0, 0.0, 1.0], &[0, 1, 2]);
        assert_eq!(with_labels(&ended), (vec![5, 6, 7, 9], vec![0.0, 1.0, 0.0, 1.0]));
    }

    #[test]
    fn the_last_label_of_a_document_stands_before_the_next() {
        let packed = sample(&[5, 6, 7, 8], &[6, 9, 8, 4], &[0.0, 1.0, 1.0, 1.0], &[0, 1, 0, 1]);
        let packed = Sample { document_ids: Some(vec![0, 0, 1, 1]), ..packed };
        assert_eq!(with_labels(&packed), (vec![5, 6, 9, 7, 8, 4], vec![0.0, 0.0, 1.0, 0.0, 1.0, 1.0]));
    }

    #[test]
    fn the_answers_of_a_pair_are_shown_one_after_the_other() {
        let pair =
            sample(&[5, 5, 6, 7, 8, 0], &[6, 7, 8, 9, 4, 0], &[0.0, 1.0, 1.0, 1.0, 1.0, 0.0], &[0, 0, 1, 1, 2, 2]);
        let [chosen, rejected] = shown(&pair).try_into().ok().expect("two sequences");
        assert_eq!((chosen.answer, chosen.tokens), (Some("chosen"), vec![5, 6, 8, 4]));
        assert_eq!((rejected.answer, rejected.tokens), (Some("rejected"), vec![5, 7, 9, 0]));
        assert_eq!(rejected.weights, [0.0, 1.0, 1.0, 0.0]);
        let alone = sample(&[5, 6], &[6, 9], &[1.0; 2], &[0, 1]);
        assert_eq!(shown(&alone).len(), 1);
    }
}
