//! The datasets of fine-tuning: their files prepared, packed and put in order.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::dataset::{Grouping, SftDataset};
use super::example::ExampleBuilder;
use super::packing::{self, Packs};
use super::params::{EpochOrder, Packing, SftParams};
use super::prepare::Part;
use super::{files, prepare, prompt, store};
use crate::chat::ChatTemplate;
use crate::dataset::{BuildEvent, Filling, ValidSet, names_of};
use crate::gpt::Split;
use crate::tokenizer::Tokenizer;
use crate::{DataError, Dataset, DatasetBuildContext, DatasetProvider, Datasets};

/// Builds fine-tuning datasets.
#[derive(Debug)]
pub struct SftProvider {
    params: SftParams,
}

impl SftProvider {
    /// Checks the parameters.
    ///
    /// # Errors
    /// A prompt template that does not end with its label, or names no such field for truncation.
    pub fn new(params: SftParams) -> Result<Self, DataError> {
        prompt::check(&params.example).map_err(DataError::Parameter)?;
        Ok(Self { params })
    }

    fn dataset(
        &self,
        ctx: &DatasetBuildContext,
        builder: &Arc<ExampleBuilder>,
        part: &Part<'_>,
        samples: usize,
    ) -> Result<Option<Arc<dyn Dataset>>, DataError> {
        if part.files.is_empty() {
            return Ok(None);
        }
        let (store, report) = prepare::prepare(&self.params, builder, part)?;
        ctx.progress.on_event(&BuildEvent::Examples { report: Box::new(report) });
        let is_training = part.split == Split::Train;
        let limit = self.params.max_train_samples.filter(|_| is_training).unwrap_or(usize::MAX);
        let are_pairs = self.params.example.kind.is_preference();
        let each = if are_pairs { 2 } else { 1 };
        let num_examples = (store.len() / each).min(limit);
        let seq_length = self.params.example.seq_length;
        let grouping = match self.params.packing {
            Packing::Off if are_pairs => Grouping::Pairs,
            Packing::Off => Grouping::Single,
            Packing::OnTheFly => Grouping::NextFit { size: seq_length },
            Packing::Offline { size, multiple, algorithm } => {
                let lengths = (0..num_examples).map(|at| packing::length_in_pack(store.length(at), multiple).min(size));
                Grouping::Packed { packs: Packs::cached(&store, lengths, size, algorithm, self.params.seed)?, multiple }
            }
        };
        let eod = builder.filler();
        let is_whole = self.params.pad_to_max_length || self.params.packing != Packing::Off;
        let filling = Filling {
            token: eod,
            multiple: if is_whole { seq_length } else { self.params.pad_multiple.min(seq_length) },
            longest: seq_length,
        };
        let filling = Filling { multiple: each * filling.multiple, longest: each * seq_length, ..filling };
        let is_drawn = is_training && self.params.order == EpochOrder::Shuffled;
        let (seed, samples) = (is_drawn.then_some(self.params.seed), is_drawn.then_some(samples));
        Ok(Some(Arc::new(SftDataset::new(store, num_examples, grouping, filling, seed, samples)?)))
    }
}

impl SftProvider {
    /// Says how many examples that are held out are those of the training split, word for word.
    fn tell_overlaps(&self, ctx: &DatasetBuildContext, datasets: &Datasets) -> Result<(), DataError> {
        let sums = |split: Split| store::sums(&self.params.cache_folder().join(split.name()));
        let held_out = [(Split::Valid, &datasets.valid), (Split::Test, &datasets.test)];
        let held_out: Vec<Split> =
            held_out.into_iter().filter(|(_, dataset)| dataset.is_some()).map(|(split, _)| split).collect();
        if datasets.train.is_none() || held_out.is_empty() {
            return Ok(());
        }
        let limit = self.params.max_train_samples.unwrap_or(usize::MAX);
        let trained: HashSet<u64> = sums(Split::Train)?.into_iter().take(limit).collect();
        for split in held_out {
            let examples = sums(split)?;
            let count = examples.iter().filter(|sum| trained.contains(sum)).count();
            if count > 0 {
                let event = BuildEvent::Overlap { split: split.name(), examples: examples.len(), trained: count };
                ctx.progress.on_event(&event);
            }
        }
        Ok(())
    }

    /// The validation files, each as a set.
    fn valid_sets(&self, ctx: &DatasetBuildContext, builder: &Arc<ExampleBuilder>) -> Result<Vec<ValidSet>, DataError> {
        let files = files::split_files(&self.params.root, Split::Valid)?;
        // Of `a.jsonl.gz`, what stands before the first dot.
        let stem = |path: &Path| {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
            name.split_once('.').map_or(name.clone(), |(stem, _)| stem.to_owned())
        };
        let mut sets = Vec::new();
        for ((number, file), name) in files.iter().enumerate().zip(names_of(&files, stem)) {
            let split = Split::Valid;
            let part = Part { split, name: format!("{}-{number}", split.name()), files: std::slice::from_ref(file) };
            let dataset = self.dataset(ctx, builder, &part, ctx.valid_samples)?;
            sets.extend(dataset.map(|dataset| ValidSet { name, dataset }));
        }
        Ok(sets)
    }
}

impl DatasetProvider for SftProvider {
    fn build(&self, ctx: &DatasetBuildContext) -> Result<Datasets, DataError> {
        let tokenizer = ctx.tokenizer.clone().ok_or_else(|| {
            DataError::NoTokenizer("dataset.kind = \"finetuning\" needs a tokenizer: its files are text".to_owned())
        })?;
        let template = template_of(tokenizer.as_ref())?;
        let builder = Arc::new(ExampleBuilder::new(tokenizer, template, self.params.example.clone())?);
        let [train, valid, test] = match ctx.once {
            Some(once) => Split::ALL.map(|split| split == once),
            None => self.params.splits,
        };
        let of = |split, is_read: bool, samples| match is_read {
            true => {
                let files = files::split_files(&self.params.root, split)?;
                let part = Part { split, name: split.name().to_owned(), files: &files };
                self.dataset(ctx, &builder, &part, samples)
            }
            false => Ok(None),
        };
        let datasets = Datasets {
            // None asked for are those of one epoch.
            train: of(Split::Train, train, if ctx.once.is_some() { 0 } else { ctx.train_samples })?,
            valid: of(Split::Valid, valid, ctx.valid_samples)?,
            test: of(Split::Test, test, ctx.test_samples)?,
            valid_sets: if valid && ctx.once.is_none() && self.params.validates_files {
                self.valid_sets(ctx, &builder)?
            } else {
                Vec::new()
            },
        };
        if train && datasets.train.is_none() {
            return Err(DataError::Source(format!(
                "{}: there is no training data: expected training.jsonl or training.json (.gz or .zst too), training.parquet, training.arrow or training.feather, or a folder \
                 `training` of such files",
                self.params.root.display()
            )));
        }
        self.tell_overlaps(ctx, &datasets)?;
        Ok(datasets)
    }
}

fn template_of(tokenizer: &dyn Tokenizer) -> Result<Option<ChatTemplate>, DataError> {
    ChatTemplate::from_tokenizer(tokenizer)
        .map_err(|error| DataError::Parameter(format!("the tokenizer's chat template: {error}")))
}
