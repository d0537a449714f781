//! The tokenizer of a run, and its text sources packed into token files.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bridge_data::DataError;
use bridge_data::gpt::{Split, SplitMatrix};
use bridge_data::pack::{
    DocumentEnd, OutputLock, Overwrite, PackParams, WorkCounts, WorkProgress, pack_locked, train_tokenizer_locked,
};
use bridge_data::sft::make_examples;
use bridge_data::source::{SourceParams, TextFormat, TextSource};
use bridge_data::tokenizer::{BpeTrainParams, HuggingFaceTokenizer, NullTokenizer, Tokenizer};

use crate::config::{ConfigError, ErrorKind, FinalDataset, RunConfig, SourceFormat, TokenizerType};
use crate::logging::{ProgressHandle, ProgressSink, ProgressTask};
use crate::train::data::error::InputError;
use crate::train::data::gpt_data::DEFAULT_SPLIT;
use crate::train::data::tokenizers;

/// The tokenizer and the token files of a run's own text.
pub(in crate::train) struct PreparedText {
    /// The tokenizer, if the recipe has one.
    pub(in crate::train) tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Prefix of the token files made from `dataset.source`.
    pub(in crate::train) prefix: Option<PathBuf>,
    /// Folder of the examples made from it.
    pub(in crate::train) examples: Option<PathBuf>,
    /// Locks on files that were made or checked, which keep other processes from replacing them
    /// before all ranks have opened them.
    _locks: Vec<OutputLock>,
}

/// Observer of the preparation of text, which may stop it.
pub(in crate::train) struct TextWatch<'a> {
    pub(in crate::train) progress: &'a Arc<dyn ProgressSink>,
    /// Gets lines to print.
    pub(in crate::train) note: &'a dyn Fn(&str),
    /// True to stop.
    pub(in crate::train) cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// Loads or trains the tokenizer and packs `dataset.source`, or makes examples of it. An earlier
/// run's results of the same text are reused. If another process works on the same files, this
/// waits for it. A tokenizer that would be trained is `base` instead, that of the checkpoint that
/// the run resumes from, if there is one.
pub(in crate::train) fn prepare_text(
    config: &RunConfig,
    base: Option<&Arc<HuggingFaceTokenizer>>,
    watch: &TextWatch,
) -> Result<PreparedText, InputError> {
    let source = match &config.dataset.source {
        Some(_) => Some(in_pieces(config, TextSource::resolve(&source_params(&config.dataset)?)?)),
        None => None,
    };
    let folder = config.text_folder();
    let mut locks = Vec::new();
    let tokenizer = make_tokenizer(config, |params| {
        if let Some(base) = base {
            let size = base.vocab_size();
            (watch.note)(&format!("the tokenizer is that of the checkpoint ({size} tokens); none is trained"));
            return Ok(Arc::clone(base));
        }
        let source = source.as_ref().ok_or_else(|| missing("dataset.source", "ByteLevelBPE is trained on it"))?;
        let (tokenizer, lock) = trained_tokenizer(config, source, &params, watch)?;
        locks.push(lock);
        Ok(Arc::new(tokenizer))
    })?;
    let (Some(source), Some(tokenizer)) = (&source, &tokenizer) else {
        return Ok(PreparedText { tokenizer, prefix: None, examples: None, _locks: locks });
    };
    if config.dataset.makes_examples() {
        let split = SplitMatrix::parse(config.dataset.split.as_deref().unwrap_or(DEFAULT_SPLIT))?;
        let (report, lock) = when_free(watch, || make_examples(source, &split, &folder.join(EXAMPLES)))?;
        locks.push(lock);
        (watch.note)(&report.to_string());
        let (tokenizer, examples) = (Some(Arc::clone(tokenizer)), Some(report.folder));
        return Ok(PreparedText { tokenizer, prefix: None, examples, _locks: locks });
    }
    let output_prefix = folder.join(PREFIX);
    let end = if config.dataset.append_eod { DocumentEnd::EndOfDocument } else { DocumentEnd::Nothing };
    let params = PackParams {
        source,
        tokenizer: tokenizer.as_ref(),
        output_prefix: &output_prefix,
        overwrite: Overwrite::Own,
        document_end: end,
        num_threads: config.train.num_threads,
        progress: &Bar::until("packing text", watch),
    };
    let (report, lock) = when_free(watch, || pack_locked(&params))?;
    locks.push(lock);
    (watch.note)(&report.to_string());
    let (tokenizer, prefix) = (Some(Arc::clone(tokenizer)), Some(report.prefix));
    Ok(PreparedText { tokenizer, prefix, examples: None, _locks: locks })
}

/// Loads the result of [`prepare_text`] on another rank that sees the same files.
pub(in crate::train) fn prepared_text(
    config: &RunConfig,
    base: Option<&Arc<HuggingFaceTokenizer>>,
) -> Result<PreparedText, InputError> {
    let folder = config.text_folder();
    let tokenizer = make_tokenizer(config, |_| match base {
        Some(base) => Ok(Arc::clone(base)),
        None => Ok(Arc::new(HuggingFaceTokenizer::load(&folder)?)),
    })?;
    let has_text = config.dataset.source.is_some() && tokenizer.is_some();
    let (is_examples, locks) = (config.dataset.makes_examples(), Vec::new());
    let prefix = (has_text && !is_examples).then(|| folder.join(PREFIX));
    let examples = (has_text && is_examples).then(|| folder.join(EXAMPLES));
    Ok(PreparedText { tokenizer, prefix, examples, _locks: locks })
}

/// True if only one rank can read the text: standard input.
pub(in crate::train) fn is_read_by_one(config: &RunConfig) -> bool {
    config.dataset.source.as_ref().is_some_and(|source| source.as_slice().iter().any(|input| input == "-"))
}

/// Name of the token files in the cache folder.
const PREFIX: &str = "text";
/// Name of the folder of examples there.
const EXAMPLES: &str = "examples";

/// Polling interval of a run that waits for files of another process.
const INTERVAL: Duration = Duration::from_millis(50);
/// Time before a waiting run prints a message.
const PATIENCE: Duration = Duration::from_secs(1);

/// Does `work` as soon as no other process is in its way.
fn when_free<T>(watch: &TextWatch, mut work: impl FnMut() -> Result<T, DataError>) -> Result<T, DataError> {
    let started = Instant::now();
    let mut is_told = false;
    loop {
        let path = match work() {
            Err(DataError::Locked { path }) => path,
            done => return done,
        };
        if (watch.cancelled)() {
            return Err(DataError::Interrupted);
        }
        if !is_told && started.elapsed() > PATIENCE {
            is_told = true;
            (watch.note)(&format!("waiting for another process, which holds {}", path.display()));
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Refuses text sources that name nothing, before anything is written.
pub(in crate::train) fn check_source(config: &RunConfig) -> Result<(), InputError> {
    if config.dataset.source.is_some() {
        TextSource::resolve(&source_params(&config.dataset)?)?;
    }
    Ok(())
}

/// Number of ids of the recipe's tokenizer, or of the model without one. A tokenizer that would be
/// trained has as many as are asked for.
pub(in crate::train) fn tokenizer_rows(config: &RunConfig) -> Result<usize, InputError> {
    if config.tokenizer.tokenizer_type == Some(TokenizerType::ByteLevelBpe)
        && let Some(size) = config.tokenizer.bpe_vocab_size
    {
        return Ok(size);
    }
    let untrained = |_| Err(missing("tokenizer.bpe_vocab_size", "must be given"));
    let size = make_tokenizer(config, untrained)?.map(|tokenizer| tokenizer.vocab_size());
    let size = size.or(config.model.vocab_size);
    size.ok_or_else(|| missing("model.vocab_size", "must be given without tokenizer.tokenizer_type"))
}

fn missing(key: &str, message: &str) -> InputError {
    ConfigError::new(ErrorKind::Missing, key, message).into()
}

/// The tokenizer of a recipe; one that is trained on the recipe's text comes from `trained`.
fn make_tokenizer(
    config: &RunConfig,
    trained: impl FnOnce(BpeTrainParams) -> Result<Arc<HuggingFaceTokenizer>, InputError>,
) -> Result<Option<Arc<dyn Tokenizer>>, InputError> {
    let section = &config.tokenizer;
    let tokenizer: Arc<dyn Tokenizer> = match section.tokenizer_type {
        None => return Ok(None),
        Some(TokenizerType::Null) => {
            let size = section.vocab_size;
            let size = size.ok_or_else(|| missing("tokenizer.vocab_size", "the Null tokenizer needs its size"))?;
            Arc::new(NullTokenizer::new(size))
        }
        Some(TokenizerType::ByteLevelBpe) => {
            let size = section.bpe_vocab_size;
            let vocab_size = size.ok_or_else(|| missing("tokenizer.bpe_vocab_size", "ByteLevelBPE needs its size"))?;
            let tokenizer = trained(BpeTrainParams {
                vocab_size,
                special_tokens: section.special_tokens.clone().unwrap_or_default(),
                ..BpeTrainParams::default()
            })?;
            match &section.chat_template {
                Some(template) => Arc::new(tokenizers::with_template(&tokenizer, section, template)?),
                None => tokenizer,
            }
        }
        Some(kind) => Arc::new(tokenizers::load(section, kind)?),
    };
    Ok(Some(tokenizer))
}

/// The tokenizer trained on the recipe's text, by this run or an earlier one.
fn trained_tokenizer(
    config: &RunConfig,
    source: &TextSource,
    params: &BpeTrainParams,
    watch: &TextWatch,
) -> Result<(HuggingFaceTokenizer, OutputLock), InputError> {
    let folder = config.text_folder();
    let sample = source.sampled(config.tokenizer.bpe_train_max_bytes.0);
    let bar = Bar::until("training tokenizer", watch);
    let (trained, lock) = when_free(watch, || train_tokenizer_locked(&sample, params, &folder, Overwrite::Own, &bar))?;
    let verb = if trained.reused { "reusing" } else { "trained" };
    let size = trained.tokenizer.vocab_size();
    let asked = params.vocab_size;
    let fewer = match sample.total_bytes() {
        _ if size >= asked => String::new(),
        Some(bytes) => {
            format!("; {asked} were asked for, no further pair of tokens occurs twice in {bytes} bytes of text")
        }
        None => format!("; {asked} were asked for, no further pair of tokens occurs twice in the text"),
    };
    (watch.note)(&format!("{verb} the byte-level BPE tokenizer in {} ({size} tokens{fewer})", folder.display()));
    Ok((trained.tokenizer, lock))
}

/// The text with its documents cut into pieces: if the recipe sets it, or if otherwise a split that
/// is read would get no file.
fn in_pieces(config: &RunConfig, source: TextSource) -> TextSource {
    /// Number of pieces that the text is cut into, so that splits come near to their shares.
    const PIECES: u64 = 1000;
    const SMALLEST: u64 = 2 << 10;
    const LARGEST: u64 = 256 << 10;

    let size = config.dataset.source_piece_bytes.map(|size| size.0).or_else(|| {
        let files = source.num_whole_files()?;
        let matrix = SplitMatrix::parse(config.dataset.split.as_deref().unwrap_or(DEFAULT_SPLIT)).ok()?;
        let asked = [config.samples.train, config.samples.valid, config.samples.test];
        let is_empty = |split: Split| matrix.range(split, files).is_some_and(|range| range.is_empty());
        let lacks = Split::ALL.into_iter().zip(asked).any(|(split, samples)| samples > 0 && is_empty(split));
        let wanted = source.total_bytes().unwrap_or(LARGEST * PIECES) / PIECES;
        lacks.then_some(wanted.clamp(SMALLEST, LARGEST))
    });
    match size {
        Some(size) => source.in_pieces(usize::try_from(size).unwrap_or(usize::MAX / 4)),
        None => source,
    }
}

fn source_params(section: &FinalDataset) -> Result<SourceParams, InputError> {
    let format = match section.source_format {
        None => match section.source_jsonl_key.as_str() {
            "text" => TextFormat::Auto,
            key => TextFormat::JsonLines { key: key.to_owned() },
        },
        Some(SourceFormat::Text | SourceFormat::RustDocs) => TextFormat::Document,
        Some(SourceFormat::Jsonl) => TextFormat::JsonLines { key: section.source_jsonl_key.clone() },
    };
    let shuffle_seed = section.source_shuffle_seed.map(u32::try_from).transpose().map_err(|_| {
        let error = ConfigError::new(ErrorKind::OutOfRange, "dataset.source_shuffle_seed", "too large");
        error.with_expected("at most 4294967295")
    })?;
    Ok(SourceParams {
        inputs: section.source.as_ref().map(|source| source.as_slice().to_vec()).unwrap_or_default(),
        exclude: section.source_exclude.clone(),
        format,
        max_bytes: section.source_max_bytes.map(|size| size.0),
        shuffle_seed,
    })
}

/// A progress bar in bytes.
pub struct Bar<'a> {
    handle: Mutex<(Box<dyn ProgressHandle>, bool)>,
    progress: Arc<dyn ProgressSink>,
    title: &'static str,
    cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl<'a> Bar<'a> {
    /// A bar called `title`. It appears with its first position.
    pub fn new(title: &'static str, progress: &Arc<dyn ProgressSink>) -> Self {
        Self::with(title, progress, &|| false)
    }

    /// A bar called `title`, of work that may be stopped.
    fn until(title: &'static str, watch: &TextWatch<'a>) -> Self {
        Self::with(title, watch.progress, watch.cancelled)
    }

    fn with(title: &'static str, progress: &Arc<dyn ProgressSink>, cancelled: &'a (dyn Fn() -> bool + Sync)) -> Self {
        let hidden = crate::logging::NoProgress.start(ProgressTask::new(title, 0, ""));
        Self { handle: Mutex::new((hidden, false)), progress: Arc::clone(progress), title, cancelled }
    }
}

impl WorkProgress for Bar<'_> {
    fn cancelled(&self) -> bool {
        (self.cancelled)()
    }

    fn update(&self, counts: &WorkCounts) {
        let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
        let mut state = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.1 {
            let mut task = ProgressTask::new(self.title, 0, "MB");
            task.total = counts.bytes_total.map(megabytes);
            *state = (self.progress.start(task), true);
        }
        state.0.set_position(megabytes(counts.bytes_done));
        state.0.set_message(&format!("{} documents", counts.documents));
    }
}
