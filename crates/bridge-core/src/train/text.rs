//! The tokenizer of a run, and its text sources packed into token files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::TrainError;
use crate::config::{ConfigError, ErrorKind, FinalDataset, RunConfig, SourceFormat, TokenizerType};
use crate::data::pack::{DocumentEnd, PackParams, WorkCounts, WorkProgress, pack, train_tokenizer};
use crate::data::source::{SourceParams, TextFormat, TextSource};
use crate::logging::{ProgressHandle, ProgressSink, ProgressTask};
use crate::tokenizer::{BpeTrainParams, HuggingFaceTokenizer, NullTokenizer, Tokenizer};

/// What [`prepare_text`] made.
pub(super) struct PreparedText {
    /// The tokenizer, if the recipe has one.
    pub(super) tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Prefix of the token files made from `dataset.source`.
    pub(super) prefix: Option<PathBuf>,
}

/// Loads or trains the tokenizer and packs `dataset.source`. What an earlier run made of the same text is used again.
pub(super) fn prepare_text(
    config: &RunConfig,
    progress: &Arc<dyn ProgressSink>,
    note: &dyn Fn(&str),
) -> Result<PreparedText, TrainError> {
    let source = match &config.dataset.source {
        Some(_) => Some(TextSource::resolve(&source_params(&config.dataset)?)?),
        None => None,
    };
    let folder = cache_folder(config);
    let tokenizer = make_tokenizer(config, source.as_ref(), &folder, progress, note)?;
    let (Some(source), Some(tokenizer)) = (&source, &tokenizer) else {
        return Ok(PreparedText { tokenizer, prefix: None });
    };
    let output_prefix = folder.join("text");
    let end = if config.dataset.append_eod { DocumentEnd::EndOfDocument } else { DocumentEnd::Nothing };
    let report = pack(&PackParams {
        source,
        tokenizer: tokenizer.as_ref(),
        output_prefix: &output_prefix,
        document_end: end,
        num_threads: config.train.num_threads,
        progress: &Bar::new("packing text", progress),
    })?;
    note(&report.to_string());
    Ok(PreparedText { tokenizer: Some(Arc::clone(tokenizer)), prefix: Some(report.prefix) })
}

/// Refuses text sources that name nothing, before anything is written.
pub(super) fn check_source(config: &RunConfig) -> Result<(), TrainError> {
    if config.dataset.source.is_some() {
        TextSource::resolve(&source_params(&config.dataset)?)?;
    }
    Ok(())
}

fn make_tokenizer(
    config: &RunConfig,
    source: Option<&TextSource>,
    folder: &Path,
    progress: &Arc<dyn ProgressSink>,
    note: &dyn Fn(&str),
) -> Result<Option<Arc<dyn Tokenizer>>, TrainError> {
    let section = &config.tokenizer;
    let missing =
        |key: &str, message: &str| TrainError::Config(ConfigError::new(ErrorKind::Missing, key, message).into());
    let tokenizer: Arc<dyn Tokenizer> = match section.tokenizer_type {
        None => return Ok(None),
        Some(TokenizerType::Null) => {
            let size = section.vocab_size;
            let size = size.ok_or_else(|| missing("tokenizer.vocab_size", "the Null tokenizer needs its size"))?;
            Arc::new(NullTokenizer::new(size))
        }
        Some(TokenizerType::ByteLevelBpe) => {
            let source = source.ok_or_else(|| missing("dataset.source", "ByteLevelBPE is trained on it"))?;
            let size = section.bpe_vocab_size;
            let vocab_size = size.ok_or_else(|| missing("tokenizer.bpe_vocab_size", "ByteLevelBPE needs its size"))?;
            let params = BpeTrainParams {
                vocab_size,
                special_tokens: section.special_tokens.clone().unwrap_or_default(),
                ..BpeTrainParams::default()
            };
            let sample = source.limited(section.bpe_train_max_bytes.0);
            let trained = train_tokenizer(&sample, &params, folder, &Bar::new("training tokenizer", progress))?;
            let verb = if trained.reused { "reusing" } else { "trained" };
            let size = trained.tokenizer.vocab_size();
            note(&format!("{verb} the byte-level BPE tokenizer in {} ({size} tokens)", folder.display()));
            Arc::new(trained.tokenizer)
        }
        Some(_) => {
            let path = section.tokenizer_model.as_ref();
            let path =
                path.ok_or_else(|| missing("tokenizer.tokenizer_model", "a tokenizer.json, or a folder with one"))?;
            let mut tokenizer = HuggingFaceTokenizer::load(path)?;
            if let Some(tokens) = &section.special_tokens {
                tokenizer = tokenizer.with_special_tokens(tokens)?;
            }
            Arc::new(tokenizer)
        }
    };
    Ok(Some(tokenizer))
}

/// Where tokenizer and token files of a recipe's own text are kept.
fn cache_folder(config: &RunConfig) -> PathBuf {
    config.dataset.source_cache_dir.clone().unwrap_or_else(|| Path::new("data").join(&config.name))
}

fn source_params(section: &FinalDataset) -> Result<SourceParams, TrainError> {
    let format = match section.source_format {
        None => match section.source_jsonl_key.as_str() {
            "text" => TextFormat::Auto,
            key => TextFormat::JsonLines { key: key.to_owned() },
        },
        Some(SourceFormat::Text) => TextFormat::Document,
        Some(SourceFormat::Jsonl) => TextFormat::JsonLines { key: section.source_jsonl_key.clone() },
    };
    let shuffle_seed = section.source_shuffle_seed.map(u32::try_from).transpose().map_err(|_| {
        let error = ConfigError::new(ErrorKind::OutOfRange, "dataset.source_shuffle_seed", "too large");
        TrainError::Config(error.with_expected("at most 4294967295").into())
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
pub struct Bar {
    handle: Mutex<(Box<dyn ProgressHandle>, bool)>,
    progress: Arc<dyn ProgressSink>,
    title: &'static str,
}

impl Bar {
    /// A bar called `title`. It appears with its first position.
    pub fn new(title: &'static str, progress: &Arc<dyn ProgressSink>) -> Self {
        let hidden = crate::logging::NoProgress.start(ProgressTask::new(title, 0, ""));
        Self { handle: Mutex::new((hidden, false)), progress: Arc::clone(progress), title }
    }
}

impl WorkProgress for Bar {
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
