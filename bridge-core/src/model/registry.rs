//! The registry that finds model configurations by kind, and the adapters that they are built with.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::eight_bits::EightBits;
use super::freezing::Freezing;
use super::last_layer::Replacing;
use super::{Adapter, LinearForLastLayer, ModelBuildError, ModelConfig};
use crate::config::{
    AskModel, FinalModel, FinalTransformer, Kind, KindRegistry, Kinds, PeftConfig, Section as _, TransformerConfig,
};

type Factory = Arc<dyn Fn(&FinalModel) -> Result<Box<dyn ModelConfig>, ModelBuildError> + Send + Sync>;

/// Model kinds by name. A value, not a global: part of the [`Registry`](crate::train::Registry)
/// that a run is given.
#[derive(Clone)]
pub struct ModelRegistry {
    kinds: KindRegistry,
    factories: BTreeMap<String, Factory>,
    adapter: Option<Arc<dyn Adapter>>,
    adapt_by: Option<AdapterFactory>,
    last_layer: Option<LinearForLastLayer>,
}

type AdapterFactory =
    Arc<dyn Fn(&PeftConfig, &FinalTransformer) -> Result<Arc<dyn Adapter>, ModelBuildError> + Send + Sync>;

impl Default for ModelRegistry {
    /// No kind that could be built; recipes may name those that model crates are known to register.
    fn default() -> Self {
        Self {
            kinds: Kinds::builtin().model,
            factories: BTreeMap::new(),
            adapter: None,
            adapt_by: None,
            last_layer: None,
        }
    }
}

impl ModelRegistry {
    /// Adds a kind with the settings that it supports, or replaces the one of the same name.
    ///
    /// # Panics
    /// If the kind lists a setting that `[model]` does not have.
    pub fn register(
        &mut self,
        name: &str,
        kind: Kind,
        factory: impl Fn(&FinalModel) -> Result<Box<dyn ModelConfig>, ModelBuildError> + Send + Sync + 'static,
    ) {
        let known = TransformerConfig::names();
        for setting in kind.settings.iter().flatten() {
            assert!(known.contains(&setting.as_str()), "kind `{name}`: [model] has no setting `{setting}`");
        }
        let factory: Factory = Arc::new(factory);
        let asked = Arc::clone(&factory);
        let answer = move |section: &FinalModel| {
            let config = asked(section)?;
            config.check()?;
            Ok(config.stacks())
        };
        let ask = AskModel::new(move |section| {
            answer(section).map_err(|error: ModelBuildError| match error {
                ModelBuildError::Invalid { key, message } => (key, message),
                other => ("model.kind".to_owned(), other.to_string()),
            })
        });
        self.kinds.register(name, Kind { model: Some(ask), ..kind });
        self.factories.insert(name.to_owned(), factory);
    }

    /// Builds all models with `adapter` from now on.
    pub fn adapt(&mut self, adapter: Arc<dyn Adapter>) {
        self.adapter = Some(adapter);
    }

    /// Builds all models with this layer in place of their output projection from now on, such as a
    /// value head. Runs that begin with weights which lack it draw it; their recipes may have
    /// `[peft]`, beside which it is trained in full.
    pub fn replace_last_layer(&mut self, layer: LinearForLastLayer) {
        self.last_layer = Some(layer);
    }

    /// Builds all models with the adapter of `[peft]` from now on, for a run whose own recipe has
    /// none: one that measures, and draws its base. Without `[peft]` nothing changes.
    ///
    /// # Errors
    /// As [`Self::adapter`].
    pub fn adapt_as(&mut self, peft: Option<&PeftConfig>, section: &FinalTransformer) -> Result<(), ModelBuildError> {
        self.adapter = self.own_adapter(peft, section)?;
        Ok(())
    }

    /// Makes the adapters that recipes ask for in `[peft]`.
    pub fn adapt_by(
        &mut self,
        factory: impl Fn(&PeftConfig, &FinalTransformer) -> Result<Arc<dyn Adapter>, ModelBuildError>
        + Send
        + Sync
        + 'static,
    ) {
        self.adapt_by = Some(Arc::new(factory));
    }

    /// Adapter that the model `section` is built with: that of `[peft]`, or else that of
    /// [`Self::adapt`]; the replacement of the output projection; the parameters that
    /// `model.freeze_parameters` freezes; and the 8-bit products of `model.fp8`.
    ///
    /// # Errors
    /// If there is `[peft]` and no factory for it, or that refuses it, or the layer of
    /// [`Self::replace_last_layer`] cannot be built.
    pub fn adapter(
        &self,
        peft: Option<&PeftConfig>,
        section: &FinalTransformer,
    ) -> Result<Option<Arc<dyn Adapter>>, ModelBuildError> {
        let adapter = self.own_adapter(peft, section)?;
        let adapter = match self.last_layer {
            Some(layer) => Some(Arc::new(Replacing::new(layer, adapter)?) as Arc<dyn Adapter>),
            None => adapter,
        };
        let patterns = &section.freeze_parameters;
        let adapter = match patterns.is_empty() {
            true => adapter,
            false => Some(Arc::new(Freezing::new(patterns.clone(), adapter)) as Arc<dyn Adapter>),
        };
        Ok(match EightBits::from_config(section, adapter.as_ref()) {
            Some(eight_bits) => Some(Arc::new(eight_bits)),
            None => adapter,
        })
    }

    /// The adapter of `[peft]`, or else that of [`Self::adapt`].
    fn own_adapter(
        &self,
        peft: Option<&PeftConfig>,
        section: &FinalTransformer,
    ) -> Result<Option<Arc<dyn Adapter>>, ModelBuildError> {
        match (peft, &self.adapt_by) {
            (None, _) => Ok(self.adapter.clone()),
            (Some(peft), Some(factory)) => Ok(Some(factory(peft, section)?)),
            (Some(_), None) => {
                let message = "this program makes no adapters".to_owned();
                Err(ModelBuildError::Invalid { key: "peft".into(), message })
            }
        }
    }

    /// Names and settings, for reading recipes.
    pub fn kinds(&self) -> &KindRegistry {
        &self.kinds
    }

    /// The configuration object for a model section.
    ///
    /// # Errors
    /// If the kind is unknown or its factory refuses the section.
    pub fn config(&self, section: &FinalModel) -> Result<Box<dyn ModelConfig>, ModelBuildError> {
        let Some(factory) = self.factories.get(&section.kind) else {
            let known: Vec<String> = self.factories.keys().map(|kind| format!("`{kind}`")).collect();
            return Err(ModelBuildError::UnknownKind { found: section.kind.clone(), known: known.join(", ") });
        };
        factory(section)
    }
}

impl fmt::Debug for ModelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.factories.keys()).finish()
    }
}
