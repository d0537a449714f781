//! From the `dataset` and `tokenizer` sections to the loaders of a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::TrainError;
use super::data_errors::name_setting;
use super::evaluate::Split;
use super::reporter::Reporter;
use super::text::{PreparedText, prepare_text};
use crate::config::{self, FinalDataset, FinalValidation, RunConfig};
use crate::data::gpt::{
    Blend, FimParams, FimRandomness, FimTokens, GptDatasetParams, GptDatasetProvider, GptSource, IndexCache,
    SampleOptions, SplitBlends, ValidationSize,
};
use crate::data::indexed::{BinAccess, idx_path};
use crate::data::loader::{DataLoader, LoaderParams, MicroBatch};
use crate::data::sampler::{Incomplete, Passes, Sampler, SamplerKind, SamplerParams, Sharding};
use crate::data::{
    BuildEvent, BuildObserver, DataError, DataParallel, Dataset, DatasetBuildContext, DatasetProvider, Datasets,
    FetchOrder,
};
use crate::logging::ProgressSink;
use crate::tokenizer::Tokenizer;

/// What a dataset factory is given.
#[derive(Clone)]
pub struct DatasetFactoryContext<'a> {
    /// The `dataset` section. `source` has been packed already; `text_prefix` says where.
    pub section: &'a FinalDataset,
    /// The tokenizer, if the recipe has one.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Prefix of the `.bin`/`.idx` pair made from `dataset.source`.
    pub text_prefix: Option<PathBuf>,
    /// The `validation` section: how much of the validation split is read.
    pub validation: &'a FinalValidation,
}

type Factory = Arc<dyn Fn(&DatasetFactoryContext) -> Result<Box<dyn DatasetProvider>, DataError> + Send + Sync>;

/// Dataset kinds by name. A value, not a global.
#[derive(Clone, Default)]
pub struct DatasetRegistry {
    factories: BTreeMap<String, Factory>,
}

impl DatasetRegistry {
    /// The kinds `gpt`, `fim` and `mock`.
    pub fn builtin() -> Self {
        let mut registry = Self::default();
        for kind in ["gpt", "fim", "mock"] {
            registry.register(kind, |context| Ok(Box::new(GptDatasetProvider::new(gpt_params(context)?)?)));
        }
        registry
    }

    /// Adds or replaces a kind.
    pub fn register(
        &mut self,
        kind: &str,
        factory: impl Fn(&DatasetFactoryContext) -> Result<Box<dyn DatasetProvider>, DataError> + Send + Sync + 'static,
    ) {
        self.factories.insert(kind.to_owned(), Arc::new(factory));
    }

    fn provider(&self, context: &DatasetFactoryContext) -> Result<Box<dyn DatasetProvider>, DataError> {
        let kind = &context.section.kind;
        let Some(factory) = self.factories.get(kind) else {
            let known = self.factories.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(DataError::Parameter(format!("dataset.kind: expected one of {known}, found `{kind}`")));
        };
        factory(context)
    }
}

/// Tokenizer, datasets and loaders of a run.
pub struct RunData {
    tokenizer: Option<Arc<dyn Tokenizer>>,
    datasets: Datasets,
    train: TrainLoader,
    /// Kept between evaluations, so that each goes on where the last one stopped.
    valid: Option<DataLoader>,
    /// Bytes of text each token id stands for; empty when the tokenizer cannot tell.
    token_bytes: Vec<u32>,
    /// This rank's place among those that read different samples.
    place: DataParallel,
}

/// The training loader, made when the first batch is asked for.
struct TrainLoader {
    config: Arc<RunConfig>,
    loader: Option<DataLoader>,
}

/// Prints what happens while datasets are built.
struct Narrator {
    progress: Arc<dyn ProgressSink>,
}

impl BuildObserver for Narrator {
    fn on_event(&self, event: &BuildEvent) {
        if matches!(event, BuildEvent::CacheRejected { .. } | BuildEvent::CacheNotWritten { .. }) {
            self.progress.suspend(&mut || eprintln!("warning: {event}"));
        }
    }
}

impl RunData {
    /// Makes or loads the tokenizer, packs text sources, and builds the splits.
    pub(super) fn build(
        config: &Arc<RunConfig>,
        registry: &DatasetRegistry,
        reporter: &Reporter,
        place: DataParallel,
    ) -> Result<Self, TrainError> {
        Self::at(place, config, registry, &reporter.progress(), &|text| reporter.note(text))
    }

    /// As in a run, for tools that only look at data. `note` gets lines to print.
    ///
    /// # Errors
    /// Missing or damaged files, too little text, a tokenizer that cannot be made.
    pub fn with_progress(
        config: &Arc<RunConfig>,
        registry: &DatasetRegistry,
        progress: &Arc<dyn ProgressSink>,
        note: &dyn Fn(&str),
    ) -> Result<Self, TrainError> {
        Self::at(DataParallel { rank: 0, size: config.parallel.data }, config, registry, progress, note)
    }

    /// The data that one data-parallel rank reads.
    fn at(
        place: DataParallel,
        config: &Arc<RunConfig>,
        registry: &DatasetRegistry,
        progress: &Arc<dyn ProgressSink>,
        note: &dyn Fn(&str),
    ) -> Result<Self, TrainError> {
        let named = |error| name_setting(config, error);
        let text = prepare_text(config, progress, note).map_err(named)?;
        let datasets = build_splits(config, registry, &text, &|tokenizer| DatasetBuildContext {
            train_samples: config.samples.train as usize,
            valid_samples: config.samples.valid as usize,
            test_samples: config.samples.test as usize,
            tokenizer,
            data_parallel: place,
            progress: Arc::new(Narrator { progress: Arc::clone(progress) }),
        })
        .map_err(named)?;
        let token_bytes = text.tokenizer.as_deref().map(token_bytes).unwrap_or_default();
        Ok(Self {
            tokenizer: text.tokenizer,
            datasets,
            train: TrainLoader { config: Arc::clone(config), loader: None },
            valid: None,
            token_bytes,
            place,
        })
    }

    /// Only the datasets, for a context of the caller's making (it is given the tokenizer).
    ///
    /// # Errors
    /// As [`RunData::with_progress`].
    pub fn build_datasets(
        config: &Arc<RunConfig>,
        registry: &DatasetRegistry,
        progress: &Arc<dyn ProgressSink>,
        context: &dyn Fn(Option<Arc<dyn Tokenizer>>) -> DatasetBuildContext,
    ) -> Result<Datasets, TrainError> {
        let named = |error| name_setting(config, error);
        let text = prepare_text(config, progress, &|_| {}).map_err(named)?;
        build_splits(config, registry, &text, context).map_err(named)
    }

    /// The tokenizer, if the recipe has one.
    pub fn tokenizer(&self) -> Option<&Arc<dyn Tokenizer>> {
        self.tokenizer.as_ref()
    }

    /// The splits.
    pub fn datasets(&self) -> &Datasets {
        &self.datasets
    }

    /// Size of the tokenizer's vocabulary; 0 without a tokenizer.
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.as_ref().map_or(0, |tokenizer| tokenizer.vocab_size())
    }

    pub(super) fn has_train(&self) -> bool {
        self.datasets.train.is_some()
    }

    pub(super) fn has_valid(&self) -> bool {
        self.datasets.valid.is_some()
    }

    pub(super) fn has_test(&self) -> bool {
        self.datasets.test.is_some()
    }

    pub(super) fn next_train(&mut self, count: u64, consumed: u64) -> Result<Vec<MicroBatch>, TrainError> {
        let loader = match &mut self.train.loader {
            Some(loader) => loader,
            empty => {
                let dataset = self.datasets.train.clone().ok_or_else(|| {
                    DataError::Parameter(
                        "dataset.split: the train split has no share, so there is nothing to train on".into(),
                    )
                })?;
                empty.insert(train_loader(&self.train.config, dataset, consumed, self.place)?)
            }
        };
        let mut batches = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let batch = loader.next().transpose()?;
            batches.push(batch.ok_or_else(|| {
                DataError::Parameter(format!(
                    "the training data ends after {consumed} samples: it has too few for the run"
                ))
            })?);
        }
        Ok(batches)
    }

    /// The loader of an evaluation that starts after `consumed` samples; `None` without such a split.
    pub(super) fn evaluation(
        &mut self,
        config: &RunConfig,
        split: Split,
        consumed: u64,
    ) -> Result<Option<DataLoader>, TrainError> {
        let dataset = match split {
            Split::Valid => self.datasets.valid.clone(),
            Split::Test => self.datasets.test.clone(),
        };
        let Some(dataset) = dataset else {
            return Ok(None);
        };
        if split == Split::Valid
            && let Some(loader) = self.valid.take()
        {
            return Ok(Some(loader));
        }
        let once = is_read_once(config, split);
        let kind = if once {
            SamplerKind::Single { incomplete: last_batch(self.place) }
        } else {
            SamplerKind::Cyclic { sharding: sharding(config) }
        };
        let params = SamplerParams {
            kind,
            total_samples: dataset.len(),
            consumed_samples: if once { 0 } else { whole_batches(consumed, dataset.len(), config, self.place) },
            micro_batch_size: config.validation.eval_micro_batch_size,
            global_batch_size: config.validation.eval_global_batch_size,
            data_parallel: self.place,
        };
        Ok(Some(loader(config, dataset, params)?))
    }

    /// How many samples all ranks together have read after `passes` micro-batches of an evaluation on each.
    pub(super) fn samples_in_passes(&self, config: &RunConfig, split: Split, passes: u64) -> u64 {
        let read = passes * (config.validation.eval_micro_batch_size * self.place.size) as u64;
        let dataset = match split {
            Split::Valid => &self.datasets.valid,
            Split::Test => &self.datasets.test,
        };
        // The last batch of a single pass may be short, or filled up with padding.
        match dataset {
            Some(dataset) if is_read_once(config, split) => read.min(dataset.len() as u64),
            _ => read,
        }
    }

    /// Takes back the loader of an evaluation, for the next one.
    pub(super) fn keep_valid_loader(&mut self, config: &RunConfig, loader: DataLoader) {
        if !config.validation.full_validation {
            self.valid = Some(loader);
        }
    }

    pub(super) fn count_bytes(&self, micro_batch: &MicroBatch) -> Option<u64> {
        if self.token_bytes.is_empty() {
            return None;
        }
        let counted = micro_batch.labels.iter().zip(&micro_batch.loss_mask).filter(|(_, mask)| **mask > 0.0);
        Some(counted.map(|(label, _)| u64::from(self.token_bytes.get(*label as usize).copied().unwrap_or(0))).sum())
    }
}

/// `consumed` validation samples, down to a whole number of today's batches: a resumed run may evaluate with another batch size.
fn whole_batches(consumed: u64, total: usize, config: &RunConfig, place: DataParallel) -> u64 {
    let unit = config.validation.eval_micro_batch_size * place.size;
    let epoch = (total - total % unit.max(1)) as u64;
    if epoch == 0 { 0 } else { consumed - consumed % epoch % unit as u64 }
}

fn build_splits(
    config: &RunConfig,
    registry: &DatasetRegistry,
    text: &PreparedText,
    context: &dyn Fn(Option<Arc<dyn Tokenizer>>) -> DatasetBuildContext,
) -> Result<Datasets, TrainError> {
    let factory_context = DatasetFactoryContext {
        section: &config.dataset,
        tokenizer: text.tokenizer.clone(),
        text_prefix: text.prefix.clone(),
        validation: &config.validation,
    };
    Ok(registry.provider(&factory_context)?.build(&context(text.tokenizer.clone()))?)
}

/// Bytes of each token, or nothing if some token's are unknown.
fn token_bytes(tokenizer: &dyn Tokenizer) -> Vec<u32> {
    let of = |id: usize| tokenizer.id_to_bytes(id as i64).map(|bytes| bytes.len() as u32);
    (0..tokenizer.vocab_size()).map(of).collect::<Option<Vec<_>>>().unwrap_or_default()
}

fn sharding(config: &RunConfig) -> Sharding {
    if config.dataset.data_sharding { Sharding::Buckets } else { Sharding::Interleaved }
}

/// Whether a split is read from start to end.
fn is_read_once(config: &RunConfig, split: Split) -> bool {
    split == Split::Test || config.validation.full_validation
}

/// What becomes of a last batch that is not full. Several ranks all get one of the same size, for they do the same work together.
fn last_batch(place: DataParallel) -> Incomplete {
    if place.size > 1 { Incomplete::Pad } else { Incomplete::Keep }
}

fn train_loader(
    config: &RunConfig,
    dataset: Arc<dyn Dataset>,
    consumed: u64,
    place: DataParallel,
) -> Result<DataLoader, TrainError> {
    let incomplete = if config.dataset.drop_last { Incomplete::Drop } else { last_batch(place) };
    let kind = match config.dataset.dataloader_type {
        None | Some(config::DataloaderType::Single) => SamplerKind::Single { incomplete },
        Some(config::DataloaderType::Cyclic) => SamplerKind::Cyclic { sharding: sharding(config) },
        Some(config::DataloaderType::Batch) => SamplerKind::Batch { incomplete, passes: Passes::Endless },
        Some(config::DataloaderType::External) => {
            // The data set is its own order: samples are taken as they come.
            SamplerKind::Batch { incomplete: Incomplete::Drop, passes: Passes::Endless }
        }
    };
    let params = SamplerParams {
        kind,
        total_samples: dataset.len(),
        consumed_samples: consumed,
        micro_batch_size: config.train.micro_batch_size,
        global_batch_size: config.train.global_batch_size,
        data_parallel: place,
    };
    loader(config, dataset, params)
}

fn loader(config: &RunConfig, dataset: Arc<dyn Dataset>, mut params: SamplerParams) -> Result<DataLoader, TrainError> {
    let workers = LoaderParams { num_workers: config.dataset.num_workers, ..LoaderParams::default() };
    let mut replayed = 0;
    if dataset.fetch_order() == FetchOrder::Matters {
        // Samples depend on those fetched before: go through them again, so that a resumed run draws what an
        // uninterrupted one would have drawn.
        replayed = params.consumed_samples / (params.micro_batch_size * params.data_parallel.size) as u64;
        params.consumed_samples = 0;
    }
    let mut loader = DataLoader::new(dataset, Sampler::new(params)?, workers);
    for _ in 0..replayed {
        loader.next().transpose()?;
    }
    Ok(loader)
}

/// Parameters of the built-in datasets.
fn gpt_params(context: &DatasetFactoryContext) -> Result<GptDatasetParams, DataError> {
    let section = context.section;
    let seed = i64::try_from(section.random_seed)
        .map_err(|_| DataError::Parameter(format!("dataset.random_seed = {}: too large", section.random_seed)))?;
    let mut params = GptDatasetParams::mock(section.seq_length, seed);
    params.source = match section.kind.as_str() {
        "mock" => GptSource::Mock,
        _ => gpt_source(context),
    };
    if let Some(folder) = &section.path_to_cache {
        params.cache = IndexCache::Folder(folder.clone());
    }
    params.bin_access = if section.mmap_bin_files { BinAccess::Mmap } else { BinAccess::Pread };
    params.num_dataset_builder_threads = section.num_dataset_builder_threads;
    params.mid_level_dataset_surplus = section.mid_level_dataset_surplus;
    if context.validation.full_validation {
        params.validation = ValidationSize::WholeSplit;
    }
    params.sample = SampleOptions {
        reset_position_ids: section.reset_position_ids,
        reset_attention_mask: section.reset_attention_mask,
        eod_mask_loss: section.eod_mask_loss,
        add_extra_token_to_sequence: section.add_extra_token_to_sequence,
        drop_last_partial_validation_sequence: section.drop_last_partial_validation_sequence,
        allow_ambiguous_pad_tokens: section.allow_ambiguous_pad_tokens,
    };
    if section.kind == "fim" {
        params.fim = Some(fim_params(context)?);
    }
    Ok(params)
}

fn gpt_source(context: &DatasetFactoryContext) -> GptSource {
    let section = context.section;
    let blend_of = |blend: &config::Blend| Blend {
        paths: blend.paths.iter().map(|path| member_prefix(Path::new(path))).collect(),
        weights: blend.weights.clone(),
    };
    let split = section.split.clone().unwrap_or_else(|| "969,30,1".into());
    if let Some(prefix) = &context.text_prefix {
        return GptSource::Blend { blend: Blend { paths: vec![prefix.clone()], weights: None }, split };
    }
    if let Some(blend) = &section.blend {
        return GptSource::Blend { blend: blend_of(blend), split };
    }
    match &section.blend_per_split {
        Some(blends) => {
            let mut blends = blends.iter().map(|blend| blend.as_ref().map(blend_of));
            let mut next = || blends.next().flatten();
            GptSource::PerSplit(SplitBlends { train: next(), valid: next(), test: next() })
        }
        None => GptSource::Mock,
    }
}

/// The prefix of a member of a blend, which may also be named by one of its two files.
fn member_prefix(path: &Path) -> PathBuf {
    // A prefix may itself end like a file.
    if idx_path(path).exists() { path.to_owned() } else { dataset_prefix(path) }
}

fn fim_params(context: &DatasetFactoryContext) -> Result<FimParams, DataError> {
    let section = context.section;
    let Some(tokenizer) = context.tokenizer.as_deref() else {
        return Err(DataError::Parameter("dataset.kind = \"fim\" needs a tokenizer".into()));
    };
    let rate = |name: &str, value: Option<f64>| {
        value.ok_or_else(|| DataError::Parameter(format!("dataset.{name}: dataset.kind = \"fim\" needs it")))
    };
    let names = section.fim_extra_tokens.clone().unwrap_or_default();
    let split_sample = match &section.fim_split_sample {
        Some(token) => Some(tokenizer.token_to_id(token).ok_or_else(|| {
            DataError::Parameter(format!("dataset.fim_split_sample = {token:?}: the tokenizer has no such token"))
        })?),
        None => None,
    };
    Ok(FimParams {
        rate: rate("fim_rate", section.fim_rate)?,
        spm_rate: rate("fim_spm_rate", section.fim_spm_rate)?,
        tokens: FimTokens::lookup(tokenizer, |key| names.get(key).map(String::as_str))?,
        split_sample,
        fragment_rate: match split_sample {
            Some(_) => rate("fim_fragment_rate", section.fim_fragment_rate)?,
            None => section.fim_fragment_rate.unwrap_or(0.0),
        },
        no_prefix: section.fim_no_prefix.clone(),
        randomness: FimRandomness::Stream,
    })
}

/// Opens what a user calls a data set: with or without its `.bin` or `.idx`.
pub fn dataset_prefix(path: &Path) -> PathBuf {
    match path.extension().and_then(|e| e.to_str()) {
        Some("bin" | "idx") => path.with_extension(""),
        _ => path.to_owned(),
    }
}
