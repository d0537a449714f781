//! Several adapters on one base, whose weights are in memory once: which of them computes is chosen
//! by text.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bridge_core::model::{Adapter, BuildContext, DeferredParameters, ModelChunk, Parallel, Replacement, Stage};
use burn::tensor::{Device, FloatDType};

use super::{AdapterError, PeftAdapter};
use crate::decoder::{DecoderConfig, build_decoder};
use crate::generate::{GenerateError, GenerateRequest, generate_batch};
use crate::huggingface::HfError;

/// A base on one rank, in float32, and adapters of it by name. One of them may be active, as after
/// `peft`'s `set_adapter`.
///
/// Each adapter is a chunk of its own, whose frozen parameters share the memory of the base's; each
/// adapter has its own copy of fully trained modules (`modules_to_save`).
#[derive(Debug)]
pub struct AdapterSet {
    config: DecoderConfig,
    device: Device,
    base: Box<dyn ModelChunk>,
    adapters: BTreeMap<String, Box<dyn ModelChunk>>,
    active: Option<String>,
}

/// A prompt, how to continue it, and with which adapter; `None` with the base alone.
#[derive(Clone, Copy, Debug)]
pub struct AdapterRequest<'a> {
    /// Name of the adapter.
    pub adapter: Option<&'a str>,
    /// The rest.
    pub request: GenerateRequest<'a>,
}

impl AdapterSet {
    /// The base `config`, whose weights `base` has, on `device`. It has no adapter yet, and none is
    /// active.
    pub fn new(config: DecoderConfig, base: &dyn ModelChunk, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        Self { config, device, base: base.inference(), adapters: BTreeMap::new(), active: None }
    }

    /// The base's architecture.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Names of the adapters, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.adapters.keys().map(String::as_str)
    }

    /// The base with `adapter`. The adapter's parameters have no values yet: load them before the
    /// chunk is used. Parameters of the base share its memory.
    ///
    /// # Errors
    /// If the adapter needs a quantised base, or the base cannot be built with it.
    pub fn blank(&self, adapter: Arc<dyn Adapter>) -> Result<Box<dyn ModelChunk>, AdapterError> {
        let config = DecoderConfig { perform_initialization: false, ..self.config.clone() };
        let context = BuildContext {
            device: self.device.clone().autodiff(),
            seed: 0,
            params_dtype: FloatDType::F32,
            padded_vocab_size: config.padded_vocab_size,
            parallel: Parallel::single(),
            // Deferred parameters get their values from the base and the adapter's files.
            deferred: Some(DeferredParameters::default()),
            adapter: Some(adapter),
        };
        let built = build_decoder(&config, &context, &Stage::whole(config.stacks()));
        let mut chunk = built.map_err(|error| AdapterError::from(HfError::from(error)))?;
        if let Some(held) = chunk.parameters().iter().find(|info| info.quantization.is_some()) {
            return Err(AdapterError::Quantised { parameter: held.name.clone() });
        }
        let mut shared = BTreeMap::new();
        self.base.visit_parameters(&mut |name, value| drop(shared.insert(name.to_owned(), value)));
        let shared = shared.iter().map(|(name, value)| (name.as_str(), Replacement::Value(value.clone())));
        chunk.replace_parameters(shared.collect());
        Ok(chunk)
    }

    /// Adds a chunk of [`blank`](Self::blank), after its values were loaded, as the adapter called
    /// `name`.
    ///
    /// # Errors
    /// If there is one of this name.
    pub fn insert(&mut self, name: &str, chunk: &dyn ModelChunk) -> Result<(), AdapterError> {
        if self.adapters.contains_key(name) {
            return Err(AdapterError::Taken { name: name.to_owned() });
        }
        self.adapters.insert(name.to_owned(), chunk.inference());
        Ok(())
    }

    /// Adds a folder of `peft` as the adapter called `name`.
    ///
    /// # Errors
    /// As [`blank`](Self::blank) and [`insert`](Self::insert), and if a tensor cannot be read.
    pub fn add_peft(&mut self, name: &str, adapter: &PeftAdapter) -> Result<(), AdapterError> {
        let mut chunk = self.blank(Arc::new(adapter.adapter()))?;
        adapter.load_into(chunk.as_mut())?;
        self.insert(name, chunk.as_ref())
    }

    /// Drops an adapter. If it was active, none is.
    ///
    /// # Errors
    /// If there is no adapter of this name.
    pub fn remove(&mut self, name: &str) -> Result<(), AdapterError> {
        self.model(Some(name))?;
        self.adapters.remove(name);
        self.active = self.active.take().filter(|active| active != name);
        Ok(())
    }

    /// Makes an adapter the active one, or with `None` the base alone.
    ///
    /// # Errors
    /// If there is no adapter of this name.
    pub fn set_adapter(&mut self, name: Option<&str>) -> Result<(), AdapterError> {
        self.model(name)?;
        self.active = name.map(str::to_owned);
        Ok(())
    }

    /// Name of the active adapter.
    pub fn active(&self) -> Option<&str> {
        self.active.as_deref()
    }

    /// The base with the active adapter.
    ///
    /// # Panics
    /// Never: an active adapter is there.
    pub fn active_model(&self) -> &dyn ModelChunk {
        self.model(self.active()).expect("the active adapter is one of the set")
    }

    /// The base with an adapter, or with `None` alone. Without autodiff.
    ///
    /// # Errors
    /// If there is no adapter of this name.
    pub fn model(&self, name: Option<&str>) -> Result<&dyn ModelChunk, AdapterError> {
        let Some(name) = name else { return Ok(self.base.as_ref()) };
        match self.adapters.get(name) {
            Some(chunk) => Ok(chunk.as_ref()),
            None => {
                let known: Vec<String> = self.names().map(|name| format!("`{name}`")).collect();
                Err(AdapterError::Unknown { name: name.to_owned(), known: known.join(", ") })
            }
        }
    }

    /// Continues several prompts, each with its adapter, as [`generate_batch`] does. Prompts with
    /// the same adapter form a batch. `on_token` gets each new token with the number of its
    /// request, and may stop this request.
    ///
    /// Returns the new tokens of each request.
    ///
    /// # Errors
    /// If there is no adapter of a name, or as [`generate_batch`], with the number of the request.
    /// Names are checked before any prompt is continued.
    pub fn generate(
        &self,
        requests: &[AdapterRequest],
        on_token: &mut dyn FnMut(usize, i64) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<i64>>, (usize, SetError)> {
        let mut by_adapter: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
        for (number, AdapterRequest { adapter, .. }) in requests.iter().enumerate() {
            self.model(*adapter).map_err(|error| (number, error.into()))?;
            by_adapter.entry(*adapter).or_default().push(number);
        }
        let mut texts = vec![Vec::new(); requests.len()];
        for (adapter, numbers) in by_adapter {
            let model = self.model(adapter).map_err(|error| (numbers[0], error.into()))?;
            let of_adapter: Vec<GenerateRequest> = numbers.iter().map(|number| requests[*number].request).collect();
            let continued =
                generate_batch(model, &self.device, &of_adapter, &mut |place, token| on_token(numbers[place], token));
            let continued = continued.map_err(|(place, error)| (numbers[place], error.into()))?;
            for (number, text) in numbers.into_iter().zip(continued) {
                texts[number] = text;
            }
        }
        Ok(texts)
    }
}

/// Error of a request.
#[derive(thiserror::Error)]
pub enum SetError {
    /// There is no such adapter.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The prompt cannot be continued.
    #[error(transparent)]
    Generate(#[from] GenerateError),
}
