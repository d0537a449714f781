//! The contracts between data and training: samples, datasets, providers and their context.
//! Concrete datasets are in the sibling modules, the registry of providers is with the
//! configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DataError;
use super::examples_report::ExamplesReport;
use super::extra::{Extra, ExtraValues, Extras, PADDING};
use super::gpt::split::Split;
use super::loader::MicroBatches;
use crate::tokenizer::Tokenizer;

/// One training sample; every vector has the sequence length, but for extra tensors.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// Input token ids.
    pub tokens: Vec<i64>,
    /// The token that each position has to predict.
    pub labels: Vec<i64>,
    /// Weight of each position in the loss: any number, 0 if it does not count.
    pub loss_mask: Vec<f32>,
    /// Position of each token, counted from 0 (from the document's start when positions are reset).
    pub position_ids: Vec<i64>,
    /// If attention is reset at document ends: the number of each token's document within the
    /// sample. Tokens attend only to earlier tokens of the same document.
    pub document_ids: Option<Vec<i32>>,
    /// Further inputs of models, by name. All samples have the same ones, of the same shapes.
    pub extras: Extras,
}

impl Sample {
    /// Removes the mask of padding, `[t]`; empty if no token is padding.
    pub(crate) fn take_padding(&mut self) -> Vec<i64> {
        match self.extras.remove(PADDING).map(|extra| extra.values) {
            Some(ExtraValues::Ints(padding)) => padding,
            _ => Vec::new(),
        }
    }

    /// Sets the mask of padding, `[t]`; empty if no token is padding.
    pub(crate) fn set_padding(&mut self, padding: Vec<i64>) {
        if !padding.is_empty() {
            let shape = [padding.len()];
            self.extras.insert(PADDING.to_owned(), Extra::ints(padding, &shape).along_sequence());
        }
    }

    /// Pads the sample to `length` tokens with `token`, which does not count for the loss. A longer
    /// sample is unchanged.
    pub(crate) fn fill(&mut self, length: usize, token: i64) {
        let length = length.max(self.tokens.len());
        let mut padding = self.take_padding();
        if length > self.tokens.len() {
            padding.resize(self.tokens.len(), 0);
            padding.resize(length, 1);
        }
        self.set_padding(padding);
        self.tokens.resize(length, token);
        self.labels.resize(length, token);
        self.loss_mask.resize(length, 0.0);
        let next = self.position_ids.last().map_or(0, |last| last + 1);
        self.position_ids.extend((next..).take(length - self.position_ids.len()));
        if let Some(documents) = &mut self.document_ids {
            let next = documents.last().map_or(0, |last| last + 1);
            documents.resize(length, next);
        }
    }
}

/// Padding of samples of different lengths to rows of a micro-batch: each is padded to the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filling {
    /// Token that pads a sample; it does not count for the loss.
    pub token: i64,
    /// The length is a multiple of this, unless it is `longest`.
    pub multiple: usize,
    /// The length is at most this.
    pub longest: usize,
}

impl Filling {
    /// Fills all samples up to one length.
    pub(crate) fn fill(&self, samples: &mut [Sample]) {
        let longest = samples.iter().map(|sample| sample.tokens.len()).max().unwrap_or(0);
        let length = longest.max(1).next_multiple_of(self.multiple.max(1)).min(self.longest);
        samples.iter_mut().for_each(|sample| sample.fill(length, self.token));
    }
}

/// A source of samples with random access.
pub trait Dataset: Send + Sync {
    /// Number of samples.
    fn len(&self) -> usize;

    /// True if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Samples of one pass over the data, for a dataset of several passes: [`Dataset::len`] then
    /// counts the samples of a run. `None` if the dataset does not know its passes.
    fn epoch_len(&self) -> Option<usize> {
        None
    }

    /// Sample `index`.
    ///
    /// # Errors
    /// An index out of range, unreadable data.
    fn get(&self, index: usize) -> Result<Sample, DataError>;

    /// A padding sample for incomplete batches, which does not count: the first sample with its
    /// loss masked.
    ///
    /// # Errors
    /// As [`Dataset::get`].
    fn padding(&self) -> Result<Sample, DataError> {
        let mut sample = self.get(0)?;
        sample.loss_mask.fill(0.0);
        // Where samples are filled up, this one is padding from end to end.
        if self.filling().is_some() {
            sample.set_padding(vec![1; sample.tokens.len()]);
        }
        Ok(sample)
    }

    /// Padding of samples of different lengths; `None` if all have one length.
    fn filling(&self) -> Option<Filling> {
        None
    }

    /// Dependence of samples on the order in which they are fetched. A loader uses one worker for
    /// ordered datasets.
    fn fetch_order(&self) -> FetchOrder {
        FetchOrder::Any
    }

    /// Resets a dataset of [`FetchOrder::Matters`]: later fetches return the samples of a new
    /// dataset. No loader may be using the dataset. Datasets whose samples do not depend on the
    /// order need no implementation.
    fn restart(&self) {}
}

/// Dependence of samples on the order of [`Dataset::get`] calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchOrder {
    /// A sample does not depend on when it is fetched.
    Any,
    /// The dataset draws from one random stream as samples are fetched, which [`Dataset::restart`]
    /// begins anew.
    Matters,
}

/// The three splits; a split with proportion 0 is absent.
#[derive(Clone, Default)]
pub struct Datasets {
    /// Training samples.
    pub train: Option<Arc<dyn Dataset>>,
    /// Validation samples.
    pub valid: Option<Arc<dyn Dataset>>,
    /// Test samples.
    pub test: Option<Arc<dyn Dataset>>,
    /// Sets that `valid` is made of, where each of them is evaluated apart. Without any, an
    /// evaluation reads `valid`.
    pub valid_sets: Vec<ValidSet>,
}

/// Validation set, if a run has several.
#[derive(Clone)]
pub struct ValidSet {
    /// Name of the set in figures; no other set of the run has this name.
    pub name: String,
    /// Samples of the set.
    pub dataset: Arc<dyn Dataset>,
}

/// Names for the files at `paths`: the result of `short`, or the whole path if the short name is
/// not unique.
pub(crate) fn names_of(paths: &[PathBuf], short: impl Fn(&Path) -> String) -> Vec<String> {
    let names: Vec<String> = paths.iter().map(|path| short(path)).collect();
    let is_alone = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
    let named =
        |(path, name): (&PathBuf, &String)| if is_alone(name) { name.clone() } else { path.display().to_string() };
    paths.iter().zip(&names).map(named).collect()
}

/// A rank's place among the data-parallel ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataParallel {
    /// 0..size.
    pub rank: usize,
    /// Number of data-parallel ranks.
    pub size: usize,
}

impl DataParallel {
    /// The only rank.
    pub const SINGLE: Self = Self { rank: 0, size: 1 };
}

/// An event during the building of datasets; its `Display` is a log line.
#[derive(Debug, Clone, PartialEq)]
pub enum BuildEvent {
    /// Index arrays are being computed.
    Building {
        /// Dataset.
        path: String,
        /// Split name.
        split: &'static str,
    },
    /// Index arrays are ready.
    Ready {
        /// Dataset.
        path: String,
        /// Split name.
        split: &'static str,
        /// Samples.
        samples: usize,
        /// Passes over the data.
        epochs: usize,
        /// True if the index came from the cache.
        from_cache: bool,
        /// Time taken.
        seconds: f64,
    },
    /// Files of examples have been tokenized.
    Examples {
        /// Report on the records.
        report: Box<ExamplesReport>,
    },
    /// Examples that are held out have been trained on.
    Overlap {
        /// Split name.
        split: &'static str,
        /// Examples of the held-out split.
        examples: usize,
        /// Examples that the training split has too.
        trained: usize,
    },
    /// Cached index arrays are unusable and are rebuilt.
    CacheRejected {
        /// Dataset.
        path: String,
        /// Split name.
        split: &'static str,
        /// Reason.
        reason: String,
    },
    /// The default cache folder cannot be written; the arrays stay in memory.
    CacheNotWritten {
        /// Dataset.
        path: String,
        /// Reason.
        reason: String,
    },
}

impl std::fmt::Display for BuildEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Building { path, split } => write!(f, "{path}: building the {split} index"),
            Self::Ready { path, split, samples, epochs, from_cache, seconds } => {
                let how = if *from_cache { "loaded" } else { "built" };
                write!(f, "{path}: {how} the {split} index in {seconds:.2} s: {samples} samples, {epochs} epochs")
            }
            Self::Examples { report } => write!(f, "{report}"),
            Self::Overlap { split, examples, trained } => write!(
                f,
                "{trained} of {examples} {split} examples are trained on, too: their loss does not say what the model does on new ones"
            ),
            Self::CacheRejected { path, split, reason } => {
                write!(f, "{path}: the cached {split} index is unusable and is rebuilt: {reason}")
            }
            Self::CacheNotWritten { path, reason } => {
                write!(f, "{path}: index not cached, it will be rebuilt next time: {reason}")
            }
        }
    }
}

/// An observer of the building of datasets.
pub trait BuildObserver: Send + Sync {
    /// Called from builder threads.
    fn on_event(&self, event: &BuildEvent);
}

/// An observer that ignores everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl BuildObserver for Silent {
    fn on_event(&self, _event: &BuildEvent) {}
}

/// The context of a provider.
#[derive(Clone)]
pub struct DatasetBuildContext {
    /// Samples that training will use.
    pub train_samples: usize,
    /// Samples that all validations together will use.
    pub valid_samples: usize,
    /// Samples that the test will use.
    pub test_samples: usize,
    /// The only split that is read, once from start to end, for tools that inspect data. The number
    /// of samples of a run is ignored, except for endless data (mock data, a weighted blend).
    pub once: Option<Split>,
    /// The tokenizer, for kinds of data that need one.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// This rank's place.
    pub data_parallel: DataParallel,
    /// Receives progress events.
    pub progress: Arc<dyn BuildObserver>,
}

/// The parameters of an external loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderRequest {
    /// Samples of a micro-batch, on each rank.
    pub micro_batch_size: usize,
    /// Samples that all ranks together have already consumed: where a resumed run continues.
    pub consumed_samples: u64,
}

/// Builds the datasets of a run.
pub trait DatasetProvider: Send + Sync {
    /// Builds the splits. Deterministic: every rank gets the same samples. Rank 0 builds before all
    /// other ranks, so that they find its files; ranks cannot wait for each other here.
    ///
    /// # Errors
    /// Unusable parameters, missing or damaged data, splits with too little text.
    fn build(&self, ctx: &DatasetBuildContext) -> Result<Datasets, DataError>;

    /// The dataset's own loader (`dataset.dataloader_type = "external"`): this rank's micro-batches
    /// for training. Data that is read sample by sample has none.
    ///
    /// # Errors
    /// Missing or damaged data.
    fn external_loader(
        &self,
        _ctx: &DatasetBuildContext,
        _request: LoaderRequest,
    ) -> Result<Option<MicroBatches>, DataError> {
        Ok(None)
    }

    /// The dataset's own tokenizer, if it has one. It replaces the recipe's, which must have none
    /// then: its vocabulary sizes the model, and it is saved with checkpoints and decodes samples.
    fn tokenizer(&self) -> Option<Arc<dyn Tokenizer>> {
        None
    }
}
