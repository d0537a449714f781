//! Megatron's GPT dataset: fixed-length samples cut from a shuffled stream of documents. Index
//! arrays are built in `index` and cached in `cache`, blends are in `blended`, runs use it through
//! `provider`.

mod blended;
mod blending;
mod cache;
mod fim;
mod index;
mod masks;
mod provider;
mod spans;
pub(crate) mod split;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

pub use blended::BlendedDataset;
pub use blending::{BlendingIndices, blending_indices, exhaustive_blending_indices};
pub use fim::{FimDataset, FimParams, FimTokens};
pub use masks::SampleOptions;
pub use provider::{Blend, GptDatasetParams, GptDatasetProvider, GptSource, SampleChange, SplitBlends, ValidationSize};
pub use spans::{SpanDataset, SpanParams, SpanTokens};
pub use split::{Split, SplitMatrix};
pub use store::{MockStore, SequenceStore};

use super::DataError;
use super::dataset::{BuildEvent, BuildObserver, Dataset, Sample};
use super::json_text::Json;
use cache::CacheKey;
use index::{IndexRequest, PartialSample, SampleIndices};
use masks::SpecialTokens;

/// Place of the index arrays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum IndexCache {
    /// In `{prefix}/cache/{class}_indices` beside the dataset; generated data is not cached.
    #[default]
    Default,
    /// The cache is in this folder.
    Folder(PathBuf),
    /// No cache.
    Off,
}

/// Inputs of a [`GptDataset`].
pub(crate) struct GptDatasetSpec<'a> {
    pub(crate) class: &'static str,
    pub(crate) store: Arc<dyn SequenceStore>,
    pub(crate) split: Split,
    pub(crate) matrix: &'a SplitMatrix,
    pub(crate) num_samples: Option<usize>,
    pub(crate) sequence_length: usize,
    pub(crate) random_seed: i64,
    pub(crate) options: SampleOptions,
    pub(crate) special: SpecialTokens,
    pub(crate) tokenizer_identity: Option<serde_json::Value>,
    pub(crate) cache: &'a IndexCache,
    pub(crate) observer: &'a dyn BuildObserver,
}

/// Samples of one split of one token store.
pub struct GptDataset {
    store: Arc<dyn SequenceStore>,
    split: Split,
    sequence_length: usize,
    options: SampleOptions,
    special: SpecialTokens,
    indices: SampleIndices,
    identity: Json,
}

impl GptDataset {
    /// Builds or loads the index arrays. `None` if the split has proportion 0.
    pub(crate) fn build(spec: GptDatasetSpec<'_>) -> Result<Option<Self>, DataError> {
        let Some(range) = spec.matrix.range(spec.split, spec.store.num_sequences()) else { return Ok(None) };
        let started = Instant::now();
        let name = spec.store.name();
        let lengths = spec.store.lengths(range.clone());
        let keep = spec.split == Split::Valid && !spec.options.drop_last_partial_validation_sequence;
        let request = IndexRequest {
            path: &name,
            split: spec.split,
            lengths: &lengths,
            first_sequence: range.start,
            sequence_length: spec.sequence_length,
            extra: spec.options.extra(),
            num_samples: spec.num_samples.map(|samples| samples as u64),
            partial: if keep { PartialSample::Keep } else { PartialSample::Drop },
            seed: spec.random_seed,
        };
        let plan = match request.plan() {
            // A split that is not read may be too small.
            Err(DataError::SplitTooSmall { .. }) if spec.num_samples == Some(0) => return Ok(None),
            plan => plan?,
        };
        let identity = identity_of(&spec);
        let key =
            cache_folder(&spec).map(|folder| CacheKey::new(folder, spec.class, spec.split.name(), identity.dump()));
        let (indices, from_cache) = load_or_build(&spec, key.as_ref(), &request, plan)?;
        spec.observer.on_event(&BuildEvent::Ready {
            path: name.clone(),
            split: spec.split.name(),
            samples: plan.samples,
            epochs: plan.epochs,
            from_cache,
            seconds: started.elapsed().as_secs_f64(),
        });
        Ok(Some(Self {
            store: spec.store,
            split: spec.split,
            sequence_length: spec.sequence_length,
            options: spec.options,
            special: spec.special,
            indices,
            identity,
        }))
    }

    /// The split it belongs to.
    pub fn split(&self) -> Split {
        self.split
    }

    /// The name of the source of its tokens.
    pub fn name(&self) -> String {
        self.store.name()
    }

    /// Identifies the dataset in cache names.
    pub(crate) fn identity(&self) -> &Json {
        &self.identity
    }

    /// The tokens of sample `index`, one more than the inputs when an extra token is fetched;
    /// shorter at the end of a validation split that keeps its partial sample.
    pub(crate) fn raw_tokens(&self, index: usize) -> Result<Vec<i64>, DataError> {
        let len = self.len();
        if index >= len {
            return Err(DataError::OutOfRange {
                what: format!("{}: {} sample", self.name(), self.split.name()),
                index,
                len,
            });
        }
        let extra = self.options.extra();
        let sample = self.indices.shuffle.at(index);
        let (first, start) = self.indices.sample.pair(sample);
        let (last, end) = self.indices.sample.pair(sample + 1);
        let document = self.indices.document.as_slice();
        let mut tokens = Vec::with_capacity(self.sequence_length + extra);
        #[allow(clippy::needless_range_loop, reason = "the position is compared with both ends, too")]
        for position in first..=last {
            let offset = if position == first { start } else { 0 };
            let length = (position == last).then(|| (end + extra).saturating_sub(offset));
            self.store.read_into(document[position] as usize, offset, length, &mut tokens)?;
        }
        Ok(tokens)
    }

    /// Makes a sample from raw tokens.
    pub(crate) fn finish(&self, tokens: Vec<i64>) -> Result<Sample, DataError> {
        masks::make_sample(tokens, self.sequence_length, &self.options, &self.special)
    }
}

impl Dataset for GptDataset {
    fn len(&self) -> usize {
        self.indices.shuffle.len()
    }

    fn get(&self, index: usize) -> Result<Sample, DataError> {
        self.finish(self.raw_tokens(index)?)
    }
}

fn load_or_build(
    spec: &GptDatasetSpec<'_>,
    key: Option<&CacheKey>,
    request: &IndexRequest<'_>,
    plan: index::EpochPlan,
) -> Result<(SampleIndices, bool), DataError> {
    let path = || request.path.to_owned();
    let split = request.split.name();
    let checksum = if key.is_some() { spec.store.checksum() } else { 0 };
    if let Some(key) = key {
        match cache::load(key, request, plan, checksum) {
            Ok(Some(indices)) => return Ok((indices, true)),
            Ok(None) => {}
            Err(error) => {
                spec.observer.on_event(&BuildEvent::CacheRejected { path: path(), split, reason: error.to_string() })
            }
        }
    }
    spec.observer.on_event(&BuildEvent::Building { path: path(), split });
    let indices = request.build(plan)?;
    if let Some(key) = key {
        match cache::store(key, request, &indices, checksum) {
            // A folder that the user named must work; the default one may be read-only.
            Err(error) if *spec.cache == IndexCache::Default => {
                spec.observer.on_event(&BuildEvent::CacheNotWritten { path: path(), reason: error.to_string() });
            }
            stored => stored?,
        }
    }
    Ok((indices, false))
}

fn cache_folder(spec: &GptDatasetSpec<'_>) -> Option<PathBuf> {
    match spec.cache {
        IndexCache::Off => None,
        IndexCache::Folder(folder) => Some(folder.clone()),
        IndexCache::Default => spec.store.path().map(|prefix| store::default_cache_folder(prefix, spec.class)),
    }
}

/// The fields that determine Megatron's cache file names, in their order.
fn identity_of(spec: &GptDatasetSpec<'_>) -> Json {
    let fraction = |split: Split| {
        Json::optional(spec.matrix.fraction(split), |(begin, end)| {
            // The first bookend is an integer there.
            let begin = if split == Split::Train { Json::Integer(0) } else { Json::Float(begin) };
            Json::List(vec![begin, Json::Float(end)])
        })
    };
    let path_text = |path: &Path| Json::text(path.display().to_string());
    let (text, matrix) = match spec.matrix.text() {
        Some(text) => (Json::text(text), Json::List(Split::ALL.map(fraction).to_vec())),
        None => (Json::Null, Json::Null),
    };
    Json::Object(vec![
        ("class", Json::text(spec.class)),
        ("dataset_path", Json::optional(spec.store.path(), path_text)),
        ("num_samples", Json::optional(spec.num_samples, |samples| Json::Integer(samples as i128))),
        ("index_split", Json::text(spec.split.name())),
        ("random_seed", Json::Integer(spec.random_seed.into())),
        ("sequence_length", Json::Integer(spec.sequence_length as i128)),
        ("split", text),
        ("split_matrix", matrix),
        ("tokenizer", Json::optional(spec.tokenizer_identity.clone(), Json::Foreign)),
    ])
}

/// Opens an index array of a cache and checks that its header and its size agree.
///
/// # Errors
/// If they do not, or the file cannot be read.
pub fn check_index_file(path: &std::path::Path) -> Result<(), crate::DataError> {
    crate::npy::Npy::open(path).map(drop)
}

#[cfg(test)]
mod tests;
