//! The model of a run with adapters: loaded once, taught by examples, and asked with one adapter or
//! another.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use bridge_core::checkpoint::{Checkpoint, CheckpointStore, LoadRequest, Resolution, TOKENIZER_FILE};
use bridge_core::config::{RunConfig, TokenizerType};
use bridge_core::train::{build_model, load_adapter, load_parameters};
use bridge_data::tokenizer::{HuggingFaceTokenizer, NullTokenizer, Tokenizer};
use bridge_models::adapters::{AdapterRequest, AdapterSet};
use bridge_models::generate::{GenerateOptions, GenerateRequest};
use bridge_models::{DecoderConfig, registry};
use burn::tensor::Device;

/// The base, whose weights are in memory once, and its adapters.
pub struct Speaker {
    set: AdapterSet,
    tokenizer: Arc<dyn Tokenizer>,
}

impl Speaker {
    /// Loads the newest checkpoint of a run.
    pub fn load(config: &RunConfig, checkpoints: &Path) -> anyhow::Result<Self> {
        let (checkpoint, device) = (newest(checkpoints)?, Device::flex());
        let tokenizer = tokenizer(config, &checkpoint)?;
        let size = tokenizer.vocab_size();
        let mut base = build_model(config, &registry().models, &device.clone().autodiff(), size)?;
        load_parameters(base.as_mut(), &checkpoint)?;
        let decoder = DecoderConfig::from_transformer(&config.model, config.model.padded_vocab_size(size)?)?;
        Ok(Self { set: AdapterSet::new(decoder, base.as_ref(), &device), tokenizer })
    }

    /// Adds the adapter that a run has trained on the base.
    pub fn add(&mut self, name: &str, config: &RunConfig, checkpoints: &Path) -> anyhow::Result<()> {
        let adapter =
            registry().models.adapter(config.peft.as_ref(), &config.model)?.context("the run has no adapter")?;
        let mut chunk = self.set.blank(adapter)?;
        load_adapter(chunk.as_mut(), &newest(checkpoints)?)?;
        Ok(self.set.insert(name, chunk.as_ref())?)
    }

    /// True if there is an adapter of this name.
    pub fn has(&self, name: &str) -> bool {
        self.set.names().any(|known| known == name)
    }

    /// Forgets an adapter.
    pub fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        Ok(self.set.remove(name)?)
    }

    /// Continues a prompt with the likeliest tokens, up to the end of the document.
    pub fn answer(&self, adapter: Option<&str>, prompt: &str, max_tokens: usize) -> anyhow::Result<String> {
        let ids = self.tokenizer.encode(prompt)?;
        let options = GenerateOptions {
            stop_tokens: self.tokenizer.eod().into_iter().collect(),
            ..GenerateOptions::greedy(self.set.config(), max_tokens)
        };
        let request = AdapterRequest { adapter, request: GenerateRequest { prompt: &ids, options: &options } };
        let texts = self.set.generate(&[request], &mut |_, _| ControlFlow::Continue(()));
        let mut new = texts.map_err(|(_, error)| error)?.remove(0);
        new.retain(|token| !options.stop_tokens.contains(token));
        Ok(self.tokenizer.decode(&new)?)
    }
}

fn newest(checkpoints: &Path) -> anyhow::Result<Checkpoint> {
    match CheckpointStore::open(checkpoints)?.resolve(&LoadRequest::default())? {
        Resolution::Found(found) => Ok(found.checkpoint),
        Resolution::NothingFound { searched } => bail!("{}: there is no checkpoint yet", searched.display()),
    }
}

/// The tokenizer of a run: its files are saved with each checkpoint, but for one of plain numbers.
fn tokenizer(config: &RunConfig, checkpoint: &Checkpoint) -> anyhow::Result<Arc<dyn Tokenizer>> {
    if checkpoint.file_names().any(|name| name == TOKENIZER_FILE) {
        return Ok(Arc::new(HuggingFaceTokenizer::load(checkpoint.path())?));
    }
    match (config.tokenizer.tokenizer_type, config.tokenizer.vocab_size) {
        (Some(TokenizerType::Null), Some(size)) => Ok(Arc::new(NullTokenizer::new(size))),
        (found, _) => bail!("expected a tokenizer whose files are saved, found {found:?}"),
    }
}
