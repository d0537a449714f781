//! From parameters to the three splits: blends, single datasets, mock data and fill-in-the-middle.
//! Index arrays and samples are made elsewhere; configuration types do not belong here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::blended::{BlendedDataset, Member, Mix};
use super::blending::normalize;
use super::fim::{FimDataset, FimParams};
use super::masks::{SampleOptions, SpecialTokens};
use super::spans::{SpanDataset, SpanParams};
use super::split::{Split, SplitMatrix};
use super::store::{MockStore, SequenceStore};
use super::{GptDataset, GptDatasetSpec, IndexCache};
use crate::DataError;
use crate::dataset::{BuildObserver, Dataset, DatasetBuildContext, DatasetProvider, Datasets, ValidSet, names_of};
use crate::indexed::{BinAccess, IndexedDataset};
use crate::tokenizer::Tokenizer;

/// Datasets to mix, by path prefix.
#[derive(Debug, Clone, PartialEq)]
pub struct Blend {
    /// Path prefixes of indexed datasets.
    pub paths: Vec<PathBuf>,
    /// Weights in any unit; without weights, each member is weighted by its size and read once.
    pub weights: Option<Vec<f64>>,
}

/// One blend per split, `None` for a split without data.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SplitBlends {
    /// Training datasets.
    pub train: Option<Blend>,
    /// Validation datasets.
    pub valid: Option<Blend>,
    /// Test datasets.
    pub test: Option<Blend>,
}

impl SplitBlends {
    fn get(&self, split: Split) -> Option<&Blend> {
        match split {
            Split::Train => self.train.as_ref(),
            Split::Valid => self.valid.as_ref(),
            Split::Test => self.test.as_ref(),
        }
    }
}

/// Source of samples.
#[derive(Debug, Clone, PartialEq)]
pub enum GptSource {
    /// One blend, cut into splits.
    Blend {
        /// The datasets.
        blend: Blend,
        /// Proportions of train, valid and test, such as `"969,30,1"`.
        split: String,
    },
    /// A separate blend for each split, used whole.
    PerSplit(SplitBlends),
    /// Generated sequences, in three equal splits.
    Mock,
}

/// Change of the tokens of a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum SampleChange {
    /// Documents are reordered: fill-in-the-middle.
    Fim(FimParams),
    /// Spans are masked, for an encoder and a decoder.
    Spans(SpanParams),
}

/// Number of validation samples that are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ValidationSize {
    /// As many samples as the run will use.
    #[default]
    AsRequested,
    /// The whole split once (`full_validation`). Blends must not have weights then.
    WholeSplit,
}

/// The parameters of a [`GptDatasetProvider`].
#[derive(Debug, Clone, PartialEq)]
pub struct GptDatasetParams {
    /// Tokens of a sample.
    pub sequence_length: usize,
    /// Seed of all shuffles, 0..=4294967295.
    pub random_seed: i64,
    /// Source of samples.
    pub source: GptSource,
    /// Place of the index arrays.
    pub cache: IndexCache,
    /// Access to token files.
    pub bin_access: BinAccess,
    /// Threads that build index arrays of a blend's members.
    pub num_dataset_builder_threads: usize,
    /// Fraction of extra samples built for each member of a blend.
    pub mid_level_dataset_surplus: f64,
    /// Number of validation samples.
    pub validation: ValidationSize,
    /// True if each member of a validation blend is also evaluated as a separate set. Such a blend
    /// must not have weights.
    pub validates_members: bool,
    /// Construction of samples from tokens.
    pub sample: SampleOptions,
    /// Change of the tokens of a sample.
    pub change: Option<SampleChange>,
}

impl GptDatasetParams {
    /// Mock data with every option at its default.
    pub fn mock(sequence_length: usize, random_seed: i64) -> Self {
        Self {
            sequence_length,
            random_seed,
            source: GptSource::Mock,
            cache: IndexCache::Default,
            bin_access: BinAccess::Mmap,
            num_dataset_builder_threads: 1,
            mid_level_dataset_surplus: 0.005,
            validation: ValidationSize::AsRequested,
            validates_members: false,
            sample: SampleOptions::default(),
            change: None,
        }
    }

    /// True if a split has any number of samples: generated, or drawn by the weights of a blend.
    fn has_no_end(&self, split: Split) -> bool {
        match &self.source {
            GptSource::Mock => true,
            GptSource::Blend { blend, .. } => blend.weights.is_some(),
            // The weight of a single path has no effect.
            GptSource::PerSplit(blends) => {
                blends.get(split).is_some_and(|blend| blend.weights.is_some() && blend.paths.len() > 1)
            }
        }
    }

    fn check(&self) -> Result<(), DataError> {
        let bad = |text: String| Err(DataError::Parameter(text));
        if self.sequence_length == 0 {
            return bad("sequence_length = 0: expected at least 1".into());
        }
        if self.mid_level_dataset_surplus.is_nan() || self.mid_level_dataset_surplus < 0.0 {
            return bad(format!(
                "mid_level_dataset_surplus = {}: expected a fraction of at least 0",
                self.mid_level_dataset_surplus
            ));
        }
        let blends = match &self.source {
            GptSource::Mock => Vec::new(),
            GptSource::Blend { blend, .. } => vec![blend],
            GptSource::PerSplit(blends) => Split::ALL.iter().filter_map(|&split| blends.get(split)).collect(),
        };
        if matches!(self.source, GptSource::PerSplit(_)) && blends.is_empty() {
            return bad("blend_per_split: every split is null".into());
        }
        blends.into_iter().try_for_each(check_blend)
    }
}

fn check_blend(blend: &Blend) -> Result<(), DataError> {
    let bad = |text: String| Err(DataError::Parameter(text));
    if blend.paths.is_empty() {
        return bad("the blend has no paths".into());
    }
    let Some(weights) = &blend.weights else { return Ok(()) };
    if weights.len() != blend.paths.len() {
        return bad(format!("the blend has {} paths but {} weights", blend.paths.len(), weights.len()));
    }
    for (path, weight) in blend.paths.iter().zip(weights) {
        if !weight.is_finite() || *weight <= 0.0 {
            return bad(format!(
                "the weight of {} in the blend is {weight}: expected a positive number",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Builds GPT, fill-in-the-middle and mock datasets.
///
/// ```ignore
/// let provider = GptDatasetProvider::new(GptDatasetParams::mock(64, 1234))?;
/// let datasets = provider.build(&context)?;
/// ```
#[derive(Debug, Clone)]
pub struct GptDatasetProvider {
    params: GptDatasetParams,
}

impl GptDatasetProvider {
    /// Checks the parameters.
    ///
    /// # Errors
    /// If values are out of range, or the paths and weights of a blend do not match.
    pub fn new(params: GptDatasetParams) -> Result<Self, DataError> {
        params.check()?;
        match &params.change {
            Some(SampleChange::Fim(fim)) => fim.check()?,
            Some(SampleChange::Spans(spans)) => spans.check(params.sequence_length)?,
            None => {}
        }
        Ok(Self { params })
    }
}

impl DatasetProvider for GptDatasetProvider {
    fn build(&self, ctx: &DatasetBuildContext) -> Result<Datasets, DataError> {
        let valid = match self.params.validation {
            ValidationSize::AsRequested => Some(ctx.valid_samples),
            ValidationSize::WholeSplit => None,
        };
        let asked = [Some(ctx.train_samples), valid, Some(ctx.test_samples)];
        let Some(once) = ctx.once else { return self.build_sized(ctx, asked) };
        let size = |(split, asked): (Split, Option<usize>)| match split == once {
            true => asked.filter(|_| self.params.has_no_end(split)),
            false => Some(0),
        };
        let [train, valid, test] = Split::ALL.map(|split| size((split, asked[split as usize])));
        self.build_sized(ctx, [train, valid, test])
    }
}

impl GptDatasetProvider {
    /// Builds splits of the given sizes; `None` for the whole split once.
    pub(super) fn build_sized(
        &self,
        ctx: &DatasetBuildContext,
        sizes: [Option<usize>; 3],
    ) -> Result<Datasets, DataError> {
        let special = self.special_tokens(ctx)?;
        let builder = Builder { params: &self.params, ctx, special, opened: Mutex::default() };
        let [train, valid, test] = sizes;
        Ok(Datasets {
            train: builder.split(Split::Train, train)?,
            valid: builder.split(Split::Valid, valid)?,
            test: builder.split(Split::Test, test)?,
            valid_sets: if self.params.validates_members { builder.valid_sets(valid)? } else { Vec::new() },
        })
    }

    fn special_tokens(&self, ctx: &DatasetBuildContext) -> Result<SpecialTokens, DataError> {
        let options = &self.params.sample;
        let tokenizer = ctx.tokenizer.as_deref();
        let eod = tokenizer.and_then(Tokenizer::eod);
        let flags = "reset_position_ids, reset_attention_mask and eod_mask_loss";
        if options.needs_eod() && eod.is_none() {
            let missing = if tokenizer.is_some() { "one with an end-of-document token" } else { "a tokenizer" };
            return Err(DataError::NoTokenizer(format!("{flags} need {missing}")));
        }
        Ok(SpecialTokens::new(eod, tokenizer.and_then(Tokenizer::pad), options))
    }
}

struct Builder<'a> {
    params: &'a GptDatasetParams,
    ctx: &'a DatasetBuildContext,
    special: SpecialTokens,
    opened: Mutex<HashMap<PathBuf, Arc<dyn SequenceStore>>>,
}

impl Builder<'_> {
    /// One split with `target` samples (`None`: the whole split once). An unused split is not
    /// built.
    fn split(&self, split: Split, target: Option<usize>) -> Result<Option<Arc<dyn Dataset>>, DataError> {
        if target == Some(0) {
            return Ok(None);
        }
        match &self.params.source {
            GptSource::Mock => {
                let matrix = SplitMatrix::parse("1,1,1")?;
                let member = self.member(self.mock_store()?, split, &matrix, target)?;
                Ok(member.map(Member::into_shared))
            }
            GptSource::Blend { blend, split: shares } => {
                let matrix = SplitMatrix::parse(shares)?;
                if matrix.fraction(split).is_none() {
                    return Ok(None);
                }
                // With a single weighted path, Megatron still uses a blend.
                let alone = blend.paths.len() == 1 && blend.weights.is_none();
                self.blend(blend, split, &matrix, Request { target, alone })
            }
            GptSource::PerSplit(blends) => {
                let Some(blend) = blends.get(split) else { return Ok(None) };
                let request = Request { target, alone: blend.paths.len() == 1 };
                self.blend(blend, split, &SplitMatrix::whole(split), request)
            }
        }
    }

    /// The members of the validation blend, each with `target` samples (`None`: all of it once).
    fn valid_sets(&self, target: Option<usize>) -> Result<Vec<ValidSet>, DataError> {
        let blend = match &self.params.source {
            GptSource::PerSplit(blends) if target != Some(0) => blends.get(Split::Valid),
            GptSource::PerSplit(_) | GptSource::Blend { .. } | GptSource::Mock => None,
        };
        let Some(blend) = blend else { return Ok(Vec::new()) };
        if blend.weights.is_some() {
            let message = "validation sets are evaluated apart, so the weights of their blend have no meaning";
            return Err(DataError::Parameter(message.into()));
        }
        let matrix = SplitMatrix::whole(Split::Valid);
        let members = self.members(blend, Split::Valid, &matrix, &vec![target; blend.paths.len()])?;
        let last = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let names = names_of(&blend.paths, last);
        let set = |(name, member): (String, Member)| ValidSet { name, dataset: member.into_shared() };
        Ok(names.into_iter().zip(members.unwrap_or_default()).map(set).collect())
    }

    fn blend(
        &self,
        blend: &Blend,
        split: Split,
        matrix: &SplitMatrix,
        request: Request,
    ) -> Result<Option<Arc<dyn Dataset>>, DataError> {
        if request.alone {
            let member = self.member(self.open(&blend.paths[0])?, split, matrix, request.target)?;
            return Ok(member.map(Member::into_shared));
        }
        let weights = blend.weights.as_deref().map(normalize);
        let wanted = self.member_targets(weights.as_deref(), blend.paths.len(), split, request.target)?;
        let Some(members) = self.members(blend, split, matrix, &wanted)? else { return Ok(None) };
        let mix = match (weights, request.target) {
            (Some(weights), Some(target)) => {
                // Sizes of members are rounded up, so the blend can be a little longer than
                // requested.
                let size = weights.iter().map(|weight| share(target, *weight)).sum();
                Mix::Weighted { weights, size }
            }
            (_, target) => {
                let sizes: Vec<usize> = members.iter().map(|member| member.gpt().len()).collect();
                let total: usize = sizes.iter().sum();
                match target {
                    Some(target) => Mix::Weighted {
                        weights: sizes.iter().map(|&size| size as f64).collect(),
                        size: target.min(total),
                    },
                    None => Mix::Exhaustive,
                }
            }
        };
        let blended = BlendedDataset::build(members, &mix, &self.params.cache, self.observer())?;
        Ok(Some(Arc::new(blended)))
    }

    /// Samples to build for each member; `None` for one pass.
    fn member_targets(
        &self,
        weights: Option<&[f64]>,
        members: usize,
        split: Split,
        target: Option<usize>,
    ) -> Result<Vec<Option<usize>>, DataError> {
        match (weights, target) {
            (None, _) => Ok(vec![None; members]),
            (Some(weights), Some(target)) => {
                let surplus = 1.0 + self.params.mid_level_dataset_surplus;
                let wanted = |weight: &f64| Some((share(target, *weight) as f64 * surplus).ceil() as usize);
                Ok(weights.iter().map(wanted).collect())
            }
            (Some(_), None) => Err(DataError::Parameter(format!(
                "full_validation reads the whole {} split, so the blend's weights have no meaning: remove one of the two",
                split.name()
            ))),
        }
    }

    /// Builds all members in parallel; `None` if this split is not needed and too small.
    fn members(
        &self,
        blend: &Blend,
        split: Split,
        matrix: &SplitMatrix,
        wanted: &[Option<usize>],
    ) -> Result<Option<Vec<Member>>, DataError> {
        let build = |(path, &wanted): (&PathBuf, &Option<usize>)| self.member(self.open(path)?, split, matrix, wanted);
        let pairs: Vec<_> = blend.paths.iter().zip(wanted).collect();
        let threads = self.params.num_dataset_builder_threads.clamp(1, pairs.len().max(1));
        let built: Result<Vec<_>, DataError> = if threads == 1 {
            pairs.into_iter().map(build).collect()
        } else {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|thread| format!("builder-{thread}"))
                .build()
                .map_err(|error| DataError::Parameter(format!("num_dataset_builder_threads = {threads}: {error}")))?;
            pool.install(|| pairs.into_par_iter().map(build).collect())
        };
        Ok(built?.into_iter().collect())
    }

    fn member(
        &self,
        store: Arc<dyn SequenceStore>,
        split: Split,
        matrix: &SplitMatrix,
        num_samples: Option<usize>,
    ) -> Result<Option<Member>, DataError> {
        let class = match (&self.params.source, &self.params.change) {
            (GptSource::Mock, _) => "MockGPTDataset",
            (_, Some(SampleChange::Fim(_))) => "GPTFIMDataset",
            // Samples of the GPT dataset, which are masked when they are read.
            (_, Some(SampleChange::Spans(_)) | None) => "GPTDataset",
        };
        let tokenizer = self.ctx.tokenizer.as_ref();
        let dataset = GptDataset::build(GptDatasetSpec {
            class,
            store,
            split,
            matrix,
            num_samples,
            sequence_length: self.params.sequence_length,
            random_seed: self.params.random_seed,
            options: self.params.sample,
            special: self.special,
            tokenizer_identity: tokenizer.map(|tokenizer| tokenizer.unique_identifier()),
            cache: &self.params.cache,
            observer: self.observer(),
        })?;
        let Some(dataset) = dataset else { return Ok(None) };
        let fim = match &self.params.change {
            None => return Ok(Some(Member::Gpt(dataset))),
            Some(SampleChange::Spans(spans)) => {
                let seed = self.params.random_seed;
                return Ok(Some(Member::Spans(SpanDataset::new(dataset, spans.clone(), seed))));
            }
            Some(SampleChange::Fim(fim)) => fim,
        };
        let tokenizer = tokenizer
            .cloned()
            .ok_or_else(|| DataError::NoTokenizer("fill-in-the-middle cuts text and needs a tokenizer".into()))?;
        FimDataset::new(dataset, fim.clone(), tokenizer, self.params.random_seed)
            .map(|dataset| Some(Member::Fim(dataset)))
    }

    /// Opens a dataset once for all splits.
    fn open(&self, prefix: &Path) -> Result<Arc<dyn SequenceStore>, DataError> {
        let lock = || self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = lock().get(prefix) {
            return Ok(Arc::clone(store));
        }
        let store: Arc<dyn SequenceStore> = Arc::new(IndexedDataset::open(prefix, self.params.bin_access)?);
        lock().insert(prefix.to_owned(), Arc::clone(&store));
        Ok(store)
    }

    fn mock_store(&self) -> Result<Arc<dyn SequenceStore>, DataError> {
        let tokenizer = self.ctx.tokenizer.as_ref().ok_or_else(|| {
            DataError::NoTokenizer(
                "mock data needs a tokenizer for its vocabulary size and end-of-document token".into(),
            )
        })?;
        let eod = tokenizer.eod().ok_or_else(|| {
            DataError::NoTokenizer("mock data needs a tokenizer with an end-of-document token".into())
        })?;
        Ok(Arc::new(MockStore::new(tokenizer.vocab_size(), eod)))
    }

    fn observer(&self) -> &dyn BuildObserver {
        self.ctx.progress.as_ref()
    }
}

/// Request for a split.
struct Request {
    target: Option<usize>,
    /// A single dataset that needs no blend.
    alone: bool,
}

fn share(target: usize, weight: f64) -> usize {
    (target as f64 * weight).ceil() as usize
}
