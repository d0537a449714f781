//! The built-in kinds of dataset: from the `dataset` section to the parameters of the GPT datasets.

use std::path::{Path, PathBuf};

use bridge_data::gpt::{
    Blend, FimParams, FimTokens, GptDatasetParams, GptDatasetProvider, GptSource, IndexCache, SampleChange,
    SampleOptions, SpanParams, SpanTokens, SplitBlends, ValidationSize,
};
use bridge_data::indexed::{BinAccess, idx_path};
use bridge_data::{DataError, DatasetProvider};

use crate::config;
use crate::train::data::registry::DatasetFactoryContext;

/// The factory of the built-in kinds.
pub(in crate::train) fn gpt_provider(context: &DatasetFactoryContext) -> Result<Box<dyn DatasetProvider>, DataError> {
    Ok(Box::new(GptDatasetProvider::new(gpt_params(context)?)?))
}

/// Shares of train, valid and test where the recipe names none.
pub(in crate::train) const DEFAULT_SPLIT: &str = "969,30,1";

/// Parameters of the built-in datasets.
fn gpt_params(context: &DatasetFactoryContext) -> Result<GptDatasetParams, DataError> {
    let section = context.section;
    let seed = i64::try_from(section.random_seed)
        .map_err(|_| DataError::Parameter(format!("dataset.random_seed = {}: too large", section.random_seed)))?;
    let mut params = GptDatasetParams::mock(section.seq_length, seed);
    params.source = match section.kind.as_str() {
        "mock" | "mock_t5" => GptSource::Mock,
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
    params.validates_members = context.validation.multiple_validation_sets;
    params.sample = SampleOptions {
        reset_position_ids: section.reset_position_ids,
        reset_attention_mask: section.reset_attention_mask,
        eod_mask_loss: section.eod_mask_loss,
        add_extra_token_to_sequence: section.add_extra_token_to_sequence,
        drop_last_partial_validation_sequence: section.drop_last_partial_validation_sequence,
        allow_ambiguous_pad_tokens: section.allow_ambiguous_pad_tokens,
    };
    match section.kind.as_str() {
        "fim" => params.change = Some(SampleChange::Fim(fim_params(context)?)),
        "t5" | "mock_t5" => {
            // Labels are the masked spans of the sample itself, so no extra token is needed.
            params.sample.add_extra_token_to_sequence = false;
            params.change = Some(SampleChange::Spans(span_params(context)?));
        }
        _ => {}
    }
    Ok(params)
}

fn gpt_source(context: &DatasetFactoryContext) -> GptSource {
    let section = context.section;
    let blend_of = |blend: &config::Blend| Blend {
        paths: blend.paths.iter().map(|path| member_prefix(Path::new(path))).collect(),
        weights: blend.weights.clone(),
    };
    let split = section.split.clone().unwrap_or_else(|| DEFAULT_SPLIT.into());
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
pub(in crate::train) fn member_prefix(path: &Path) -> PathBuf {
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
    })
}

fn span_params(context: &DatasetFactoryContext) -> Result<SpanParams, DataError> {
    let kind = &context.section.kind;
    let Some(tokenizer) = context.tokenizer.as_deref() else {
        return Err(DataError::Parameter(format!("dataset.kind = \"{kind}\" needs a tokenizer")));
    };
    let value = |name: &str| context.section.extra.get(name);
    let number = |name: &str| {
        let number =
            value(name).and_then(|value| value.as_float().or_else(|| value.as_integer().map(|value| value as f64)));
        number.ok_or_else(|| DataError::Parameter(format!("dataset.{name}: dataset.kind = \"{kind}\" needs it")))
    };
    let count = value("num_sentinels").and_then(|value| usize::try_from(value.as_integer()?).ok());
    Ok(SpanParams {
        masked_lm_prob: number("masked_lm_prob")?,
        short_seq_prob: number("short_seq_prob")?,
        mean_span_length: number("mean_span_length")?,
        target_length: context.target_length,
        tokens: SpanTokens::from_tokenizer(tokenizer, count, context.start_token)?,
    })
}

/// The prefix of a dataset that is named with or without its `.bin` or `.idx`.
pub fn dataset_prefix(path: &Path) -> PathBuf {
    match path.extension().and_then(|e| e.to_str()) {
        Some("bin" | "idx") => path.with_extension(""),
        _ => path.to_owned(),
    }
}
