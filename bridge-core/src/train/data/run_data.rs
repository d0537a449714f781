//! From the `dataset` and `tokenizer` sections to the loaders of a run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bridge_data::loader::{DataLoader, LoaderParams, MicroBatch};
use bridge_data::sampler::{Incomplete, Passes, Sampler, SamplerKind, SamplerParams, Sharding};
use bridge_data::tokenizer::{HuggingFaceTokenizer, Tokenizer};
use bridge_data::{
    DataError, DataParallel, Dataset, DatasetBuildContext, DatasetProvider, Datasets, FetchOrder, LoaderRequest,
    ValidSet, gpt,
};

use crate::config::{ConfigError, DataloaderType, ErrorKind, RunConfig};
use crate::logging::{ProgressSink, Split};
use crate::train::data::data_errors::name_setting;
use crate::train::data::data_events::{Narrator, Told};
use crate::train::data::error::InputError;
use crate::train::data::input_fingerprints::Examples;
use crate::train::data::model_tokenizer::{check_tokenizer_of_model, loaded_again};
use crate::train::data::registry::{DatasetFactoryContext, DatasetRegistry};
use crate::train::data::text::{PreparedText, TextWatch, prepare_text};
use crate::train::data::token_bytes::TokenBytes;

/// Tokenizer, datasets and loaders of a run.
pub struct RunData {
    tokenizer: Option<Arc<dyn Tokenizer>>,
    datasets: Datasets,
    train: TrainLoader,
    /// Loaders of each validation set. Kept between evaluations, so that each continues where the
    /// last one stopped.
    valid: Vec<DataLoader>,
    token_bytes: Option<TokenBytes>,
    /// This rank's place among those that read different samples.
    place: DataParallel,
    /// Messages while splits are built.
    told: Arc<Mutex<Told>>,
}

/// Samples that an evaluation reads at once.
pub(in crate::train) struct EvaluatedSet {
    /// Name of a set that is evaluated apart from others.
    pub name: Option<String>,
    /// Samples of the set.
    pub dataset: Arc<dyn Dataset>,
}

/// The training loader, made when the first batch is asked for.
struct TrainLoader {
    config: Arc<RunConfig>,
    loader: Option<DataLoader>,
    provider: Box<dyn DatasetProvider>,
    context: DatasetBuildContext,
}

impl TrainLoader {
    /// True if the data loads itself.
    fn is_external(&self) -> bool {
        self.config.dataset.dataloader_type == Some(DataloaderType::External)
    }

    /// The loader that goes on after `consumed` samples.
    fn open(&self, dataset: Option<&Arc<dyn Dataset>>, consumed: u64) -> Result<DataLoader, InputError> {
        if self.is_external() {
            return self.open_external(consumed);
        }
        let dataset = dataset.ok_or_else(|| {
            DataError::Parameter("dataset.split: the train split has no share, so there is nothing to train on".into())
        })?;
        train_loader(&self.config, Arc::clone(dataset), consumed, self.context.data_parallel)
    }

    fn open_external(&self, consumed: u64) -> Result<DataLoader, InputError> {
        let kind = &self.config.dataset.kind;
        let micro_batch_size = self.config.train.micro_batch_size;
        let request = LoaderRequest { micro_batch_size, consumed_samples: consumed };
        let batches = self.provider.external_loader(&self.context, request)?.ok_or_else(|| {
            let message = format!("dataset.kind = \"{kind}\" has no loader of its own; leave out \"external\"");
            DataError::Parameter(format!("dataset.dataloader_type: {message}"))
        })?;
        let expected = (micro_batch_size, self.config.model.seq_length);
        let kind = kind.clone();
        Ok(DataLoader::external(batches.map(move |batch| {
            let batch = batch?;
            let found = (batch.batch_size, batch.seq_length);
            if found == expected {
                return every_token_has_all(batch, &kind);
            }
            let shape = |(samples, tokens): (usize, usize)| format!("{samples} samples of {tokens} tokens");
            let (expected, found) = (shape(expected), shape(found));
            Err(DataError::Parameter(format!(
                "the loader of `{kind}` yields {found}, expected micro-batches of {expected}"
            )))
        })))
    }
}

/// Refuses a micro-batch whose parts have not one entry for each token.
fn every_token_has_all(batch: MicroBatch, kind: &str) -> Result<MicroBatch, DataError> {
    let tokens = batch.batch_size * batch.seq_length;
    let document_ids = batch.document_ids.as_ref().map_or(tokens, Vec::len);
    for (name, found) in [
        ("tokens", batch.tokens.len()),
        ("labels", batch.labels.len()),
        ("loss_mask", batch.loss_mask.len()),
        ("position_ids", batch.position_ids.len()),
        ("document_ids", document_ids),
    ] {
        if found != tokens {
            let message =
                format!("the loader of `{kind}` yields {found} {name}, expected one for each of {tokens} tokens");
            return Err(DataError::Parameter(message));
        }
    }
    match batch.extras.iter().find(|(_, extra)| !extra.fits(batch.batch_size, batch.seq_length)) {
        Some((name, extra)) => Err(DataError::Parameter(format!(
            "the loader of `{kind}` yields an extra tensor `{name}` whose shape {:?} does not fit its elements, {} samples and {} tokens",
            extra.shape, batch.batch_size, batch.seq_length
        ))),
        None => Ok(batch),
    }
}

impl RunData {
    /// Builds the splits that one data-parallel rank reads, or only the one that is read `once`,
    /// from text that has been prepared.
    pub(in crate::train) fn build(
        config: &Arc<RunConfig>,
        registry: &DatasetRegistry,
        text: &PreparedText,
        observer: &Arc<dyn ProgressSink>,
        place: DataParallel,
        once: Option<gpt::Split>,
    ) -> Result<Self, InputError> {
        let told = Arc::new(Mutex::new(Told::default()));
        let built = build_splits(config, registry, text, &|tokenizer| DatasetBuildContext {
            train_samples: config.samples.train as usize,
            valid_samples: config.samples.valid as usize,
            test_samples: config.samples.test as usize,
            once,
            tokenizer,
            data_parallel: place,
            progress: Arc::new(Narrator {
                progress: Arc::clone(observer),
                told: Arc::clone(&told),
                validation: validation_samples(config),
            }),
        });
        let Built { datasets, provider, context } = built.map_err(|error| name_setting(config, error))?;
        check_sets(config, &datasets)?;
        let tokenizer = context.tokenizer.clone();
        Ok(Self {
            token_bytes: tokenizer.as_deref().map(TokenBytes::new),
            tokenizer,
            datasets,
            train: TrainLoader { config: Arc::clone(config), loader: None, provider, context },
            valid: Vec::new(),
            place,
            told,
        })
    }

    /// Data as in a run that resumes from a model with the tokenizer `tokenizer`, but one split,
    /// read once from start to end: for tools that only inspect data
    /// ([`DatasetBuildContext::once`]). If the recipe trains a tokenizer, text is read with the
    /// model's.
    ///
    /// # Errors
    /// Missing or damaged files, too little text, a tokenizer that cannot be made, or that gives
    /// text other ids than the model's.
    pub fn of_model(
        config: &Arc<RunConfig>,
        registry: &DatasetRegistry,
        progress: &Arc<dyn ProgressSink>,
        tokenizer: Option<&dyn Tokenizer>,
        split: gpt::Split,
    ) -> Result<Self, InputError> {
        let base = tokenizer.map(loaded_again).transpose()?.flatten().map(Arc::new);
        let text = prepare(config, base.as_ref(), progress)?;
        let place = DataParallel { rank: 0, size: config.parallel.data };
        let data = Self::build(config, registry, &text, progress, place, Some(split))?;
        if let (Some(base), Some(own)) = (&base, data.tokenizer()) {
            check_tokenizer_of_model(config, base, own.as_ref())?;
        }
        Ok(data)
    }

    /// Only the datasets, for a context of the caller's making (it is given the tokenizer).
    ///
    /// # Errors
    /// As [`RunData::of_model`].
    pub fn build_datasets(
        config: &Arc<RunConfig>,
        registry: &DatasetRegistry,
        progress: &Arc<dyn ProgressSink>,
        context: &dyn Fn(Option<Arc<dyn Tokenizer>>) -> DatasetBuildContext,
    ) -> Result<Datasets, InputError> {
        let text = prepare(config, None, progress)?;
        let built = build_splits(config, registry, &text, context).map_err(|error| name_setting(config, error))?;
        Ok(built.datasets)
    }

    /// The tokenizer, if the recipe or the data has one.
    pub fn tokenizer(&self) -> Option<&Arc<dyn Tokenizer>> {
        self.tokenizer.as_ref()
    }

    /// Warnings about splits that are read repeatedly, in the order of their names.
    pub(in crate::train) fn repeats(&self) -> Vec<String> {
        let mut repeats = self.told.lock().unwrap_or_else(PoisonError::into_inner).repeats.clone();
        // Splits are built by several threads.
        repeats.sort();
        repeats
    }

    /// Samples of a pass over the training data, however many the run takes: of one text, or of the
    /// examples (packs, where they are packed) to fine-tune on. Blends have no passes.
    pub(in crate::train) fn epoch_samples(&self) -> Option<u64> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match told.passes.as_slice() {
            [one] => Some(*one),
            [] => self.datasets.train.as_ref()?.epoch_len().map(|samples| samples as u64),
            _ => None,
        }
    }

    /// The examples of each split, if the data is made of such.
    pub(in crate::train) fn examples(&self) -> BTreeMap<String, Examples> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).examples.clone()
    }

    /// The splits.
    pub fn datasets(&self) -> &Datasets {
        &self.datasets
    }

    /// Size of the tokenizer's vocabulary; 0 without a tokenizer.
    pub fn vocab_size(&self) -> usize {
        self.tokenizer.as_ref().map_or(0, |tokenizer| tokenizer.vocab_size())
    }

    pub(in crate::train) fn has_train(&self) -> bool {
        self.datasets.train.is_some() || self.train.is_external()
    }

    /// True if training samples have lengths of their own.
    pub(in crate::train) fn lengths_vary(&self) -> bool {
        self.datasets.train.as_ref().is_some_and(|train| train.filling().is_some())
    }

    pub(in crate::train) fn has_valid(&self) -> bool {
        self.datasets.valid.is_some()
    }

    pub(in crate::train) fn has_test(&self) -> bool {
        self.datasets.test.is_some()
    }

    /// Lets the next micro-batches be those after the samples that were consumed before the step,
    /// again.
    pub(in crate::train) fn rewind_train(&mut self) {
        self.train.loader = None;
    }

    pub(in crate::train) fn next_train(&mut self, count: u64, consumed: u64) -> Result<Vec<MicroBatch>, InputError> {
        let loader = match self.train.loader.take() {
            Some(loader) => loader,
            None => self.train.open(self.datasets.train.as_ref(), consumed)?,
        };
        let loader = self.train.loader.insert(loader);
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

    /// Samples of an evaluation: a split, or each of its sets; empty without such a split.
    pub(in crate::train) fn evaluated(&self, split: Split) -> Vec<EvaluatedSet> {
        let whole = match split {
            Split::Valid if !self.datasets.valid_sets.is_empty() => {
                let set =
                    |set: &ValidSet| EvaluatedSet { name: Some(set.name.clone()), dataset: Arc::clone(&set.dataset) };
                return self.datasets.valid_sets.iter().map(set).collect();
            }
            Split::Valid => &self.datasets.valid,
            Split::Test => &self.datasets.test,
        };
        whole.iter().map(|dataset| EvaluatedSet { name: None, dataset: Arc::clone(dataset) }).collect()
    }

    /// A loader for each of `sets`, of an evaluation that comes after `consumed` samples of all of
    /// them.
    pub(in crate::train) fn evaluation(
        &mut self,
        config: &RunConfig,
        split: Split,
        sets: &[EvaluatedSet],
        consumed: u64,
    ) -> Result<Vec<DataLoader>, InputError> {
        if split == Split::Valid && !self.valid.is_empty() {
            return Ok(std::mem::take(&mut self.valid));
        }
        let open = |set: &EvaluatedSet| {
            // Evaluations read as much of each.
            let consumed = consumed / sets.len() as u64;
            let params = evaluation_params(config, split, set.dataset.len(), consumed, self.place);
            loader(config, Arc::clone(&set.dataset), params)
        };
        sets.iter().map(open).collect()
    }

    /// This rank's place among those that read different samples.
    pub(in crate::train) fn place(&self) -> DataParallel {
        self.place
    }

    /// Number of samples of a set that all ranks together have read after `passes` micro-batches of
    /// an evaluation on each.
    pub(in crate::train) fn samples_in_passes(
        &self,
        config: &RunConfig,
        split: Split,
        set: &EvaluatedSet,
        passes: u64,
    ) -> u64 {
        let read = passes * (config.validation.eval_micro_batch_size * self.place.size) as u64;
        // The last batch of a single pass may be short, or filled up with padding.
        if is_read_once(config, split) { read.min(set.dataset.len() as u64) } else { read }
    }

    /// Takes back the loaders of an evaluation, for the next one.
    pub(in crate::train) fn keep_valid_loaders(&mut self, config: &RunConfig, loaders: Vec<DataLoader>) {
        if !config.validation.full_validation {
            self.valid = loaders;
        }
    }

    /// Bytes of text that a micro-batch's counted labels stand for, if the tokenizer can tell.
    pub(in crate::train) fn count_bytes(&self, micro_batch: &MicroBatch) -> Option<u64> {
        self.token_bytes.as_ref()?.of_labels(micro_batch)
    }
}

/// Validation sets must be there where they are asked for, and have names of their own.
fn check_sets(config: &RunConfig, datasets: &Datasets) -> Result<(), InputError> {
    let key = "validation.multiple_validation_sets";
    let sets = &datasets.valid_sets;
    let message = if config.validation.multiple_validation_sets && sets.is_empty() && datasets.valid.is_some() {
        format!("{key}: dataset.kind = \"{}\" has no validation sets to evaluate apart", config.dataset.kind)
    } else if let Some(twice) =
        sets.iter().enumerate().find(|(i, set)| sets[..*i].iter().any(|other| other.name == set.name))
    {
        format!("{key}: two validation sets are called {:?}", twice.1.name)
    } else {
        return Ok(());
    };
    Err(DataError::Parameter(message).into())
}

/// Prepares text without cancellation and messages.
fn prepare(
    config: &RunConfig,
    base: Option<&Arc<HuggingFaceTokenizer>>,
    progress: &Arc<dyn ProgressSink>,
) -> Result<PreparedText, InputError> {
    let watch = TextWatch { progress, note: &|_| {}, cancelled: &|| false };
    prepare_text(config, base, &watch).map_err(|error| name_setting(config, error))
}

/// `consumed` validation samples, down to a whole number of today's batches: a resumed run may
/// evaluate with another batch size.
fn whole_batches(consumed: u64, total: usize, config: &RunConfig, place: DataParallel) -> u64 {
    let unit = config.validation.eval_micro_batch_size * place.size;
    let epoch = (total - total % unit.max(1)) as u64;
    if epoch == 0 { 0 } else { consumed - consumed % epoch % unit as u64 }
}

/// The splits, the provider that built them, and the context that it was given, with the tokenizer
/// of the recipe or of the data.
struct Built {
    datasets: Datasets,
    provider: Box<dyn DatasetProvider>,
    context: DatasetBuildContext,
}

fn build_splits(
    config: &RunConfig,
    registry: &DatasetRegistry,
    text: &PreparedText,
    context: &dyn Fn(Option<Arc<dyn Tokenizer>>) -> DatasetBuildContext,
) -> Result<Built, InputError> {
    let provider = registry.provider(&DatasetFactoryContext {
        section: &config.dataset,
        tokenizer: text.tokenizer.clone(),
        text_prefix: text.prefix.clone(),
        examples: text.examples.clone(),
        preferences: config.dpo.is_some(),
        validation: &config.validation,
        sequence_parts: sequence_parts(config),
        target_length: config.model.seq_length_dec,
        start_token: i64::try_from(config.model.decoder_start_token_id).unwrap_or(i64::MAX),
    })?;
    let tokenizer = match (&text.tokenizer, provider.tokenizer()) {
        (Some(_), Some(_)) => {
            let kind = &config.dataset.kind;
            let message = format!("must not be given with dataset.kind = \"{kind}\", which has a tokenizer of its own");
            let error = ConfigError::new(ErrorKind::Conflict, "tokenizer.tokenizer_type", message);
            return Err(error.with_location(config.location("tokenizer.tokenizer_type")).into());
        }
        (of_recipe, own) => own.or_else(|| of_recipe.clone()),
    };
    let context = context(tokenizer);
    Ok(Built { datasets: provider.build(&context)?, provider, context })
}

/// Divisor of the number of tokens of a sequence, so that ranks can shard the sequence.
fn sequence_parts(config: &RunConfig) -> usize {
    let context = if config.parallel.context > 1 { 2 * config.parallel.context } else { 1 };
    if config.model.sequence_parallel { context * config.parallel.tensor } else { context }
}

/// Samples of one evaluation of the validation split, if it does not read all of it once.
fn validation_samples(config: &RunConfig) -> u64 {
    let validation = &config.validation;
    if validation.full_validation { 0 } else { (validation.eval_iters * validation.eval_global_batch_size) as u64 }
}

fn sharding(config: &RunConfig) -> Sharding {
    if config.dataset.data_sharding { Sharding::Buckets } else { Sharding::Interleaved }
}

/// True if a split is read from start to end.
fn is_read_once(config: &RunConfig, split: Split) -> bool {
    split == Split::Test || config.validation.full_validation
}

/// Treatment of an incomplete last batch. Several ranks all get one of the same size, because they
/// do the same work together.
fn last_batch(place: DataParallel) -> Incomplete {
    if place.size > 1 { Incomplete::Pad } else { Incomplete::Keep }
}

fn train_loader(
    config: &RunConfig,
    dataset: Arc<dyn Dataset>,
    consumed: u64,
    place: DataParallel,
) -> Result<DataLoader, InputError> {
    let params = train_params(config, dataset.len(), consumed, place);
    loader(config, dataset, params)
}

/// Sampler parameters of `total` training samples, of which `consumed` were read before.
pub(in crate::train) fn train_params(
    config: &RunConfig,
    total: usize,
    consumed: u64,
    place: DataParallel,
) -> SamplerParams {
    let drop_last = config.dataset.drop_last;
    let kind = match config.dataset.dataloader_type {
        Some(DataloaderType::Cyclic) => SamplerKind::Cyclic { sharding: sharding(config) },
        Some(DataloaderType::Batch) => {
            // A step takes a whole global batch, so the last one of a pass is filled up or left
            // out.
            let incomplete = if drop_last { Incomplete::Drop } else { Incomplete::Pad };
            SamplerKind::Batch { incomplete, passes: Passes::Endless }
        }
        _ => SamplerKind::Single { incomplete: if drop_last { Incomplete::Drop } else { last_batch(place) } },
    };
    SamplerParams {
        kind,
        total_samples: total,
        consumed_samples: consumed,
        micro_batch_size: config.train.micro_batch_size,
        global_batch_size: config.train.global_batch_size,
        data_parallel: place,
    }
}

/// Sampler parameters of an evaluation on `total` samples of a split, after `consumed` ones.
pub(in crate::train) fn evaluation_params(
    config: &RunConfig,
    split: Split,
    total: usize,
    consumed: u64,
    place: DataParallel,
) -> SamplerParams {
    let once = is_read_once(config, split);
    let kind = match once {
        true => SamplerKind::Single { incomplete: last_batch(place) },
        false => SamplerKind::Cyclic { sharding: sharding(config) },
    };
    SamplerParams {
        kind,
        total_samples: total,
        consumed_samples: if once { 0 } else { whole_batches(consumed, total, config, place) },
        micro_batch_size: config.validation.eval_micro_batch_size,
        global_batch_size: config.validation.eval_global_batch_size,
        data_parallel: place,
    }
}

fn loader(config: &RunConfig, dataset: Arc<dyn Dataset>, mut params: SamplerParams) -> Result<DataLoader, InputError> {
    let workers = LoaderParams { num_workers: config.dataset.num_workers, ..LoaderParams::default() };
    let mut replayed = 0;
    if dataset.fetch_order() == FetchOrder::Matters {
        // Samples depend on earlier fetches, so replay them from the start. Then a resumed run or a
        // repeated step draws the samples of an uninterrupted one, and all evaluations of a whole
        // split draw the same samples.
        dataset.restart();
        replayed = params.consumed_samples / (params.micro_batch_size * params.data_parallel.size) as u64;
        params.consumed_samples = 0;
    }
    let mut loader = DataLoader::new(dataset, Sampler::new(params)?, workers);
    for _ in 0..replayed {
        loader.next().transpose()?;
    }
    Ok(loader)
}

#[cfg(test)]
#[path = "run_data_tests.rs"]
mod tests;
