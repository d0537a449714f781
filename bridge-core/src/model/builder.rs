//! Model configurations, the builders they name, and the registry that finds them by kind.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use burn::tensor::{Device, FloatDType};

use super::{DeferredParameters, ModelChunk, Parallel};
use crate::config::{ExtraField, KindRegistry, Kinds, TransformerConfig};

/// Which part of the layers a chunk holds, and whether it has embedding and head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Global numbers of the layers.
    pub layers: std::ops::Range<usize>,
    /// With the embedding (`pre_process` upstream).
    pub embedding: bool,
    /// With final norm, output projection and loss (`post_process` upstream).
    pub head: bool,
}

impl Stage {
    /// The whole model.
    pub fn whole(num_layers: usize) -> Self {
        Self { layers: 0..num_layers, embedding: true, head: true }
    }
}

/// What a builder is given.
#[derive(Clone, Debug)]
pub struct BuildContext {
    /// Device with autodiff on; parameters are created there.
    pub device: Device,
    /// Base seed: a parameter's initial values depend on it, on the parameter's name and on nothing else.
    pub seed: u64,
    /// dtype of the parameters.
    pub params_dtype: FloatDType,
    /// Size of the vocabulary including padding.
    pub padded_vocab_size: usize,
    /// The ranks the model is spread over.
    pub parallel: Parallel,
    /// Set where this rank keeps a part of each parameter only. A builder may then leave initial values here, and make the parameters
    /// [`released`](super::released); one that does not needs the memory for the whole model.
    pub deferred: Option<DeferredParameters>,
}

/// Why a model could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ModelBuildError {
    /// No such kind in the registry.
    #[error("model.kind: expected one of {known}, found `{found}`")]
    UnknownKind {
        /// The kind asked for.
        found: String,
        /// The kinds there are.
        known: String,
    },
    /// The configuration cannot be built.
    #[error("{key}: {message}")]
    Invalid {
        /// Key path of the offending field.
        key: String,
        /// What is wrong, and what was expected.
        message: String,
    },
}

/// A model configuration: pure data that names its builder.
pub trait ModelConfig: fmt::Debug + Send + Sync {
    /// The kind under which the configuration is registered and serialised (`model.kind`).
    fn kind(&self) -> &str;

    /// The fields all models share.
    fn transformer(&self) -> &TransformerConfig;

    /// The builder for this configuration.
    fn builder(&self) -> Box<dyn ModelBuilder>;

    /// Runs, in order, on the chunks before they are prepared for training (PEFT, weight import). Empty by default.
    fn pre_wrap_hooks(&self) -> Vec<ModelHook> {
        Vec::new()
    }

    /// Runs, in order, after the chunks are complete. Empty by default.
    fn post_wrap_hooks(&self) -> Vec<ModelHook> {
        Vec::new()
    }
}

/// Makes model chunks from a configuration.
pub trait ModelBuilder {
    /// Builds one stage.
    ///
    /// # Errors
    /// If the configuration asks for what the model cannot do.
    fn build_model(&self, context: &BuildContext, stage: &Stage) -> Result<Box<dyn ModelChunk>, ModelBuildError>;

    /// Builds the stages of this rank and runs the hooks around them.
    ///
    /// # Errors
    /// Those of [`ModelBuilder::build_model`] and of the hooks.
    fn build_models(
        &self,
        config: &dyn ModelConfig,
        context: &BuildContext,
        stages: &[Stage],
    ) -> Result<Vec<Box<dyn ModelChunk>>, ModelBuildError> {
        let chunks = stages.iter().map(|stage| self.build_model(context, stage)).collect::<Result<Vec<_>, _>>()?;
        let chunks = compose_hooks(config.pre_wrap_hooks())(chunks)?;
        compose_hooks(config.post_wrap_hooks())(chunks)
    }
}

/// A function from chunks to chunks.
pub type ModelHook =
    Arc<dyn Fn(Vec<Box<dyn ModelChunk>>) -> Result<Vec<Box<dyn ModelChunk>>, ModelBuildError> + Send + Sync>;

/// One hook that runs `hooks` from left to right; the identity for none.
pub fn compose_hooks(hooks: Vec<ModelHook>) -> ModelHook {
    Arc::new(move |chunks| hooks.iter().try_fold(chunks, |chunks, hook| hook(chunks)))
}

type Factory = Arc<dyn Fn(&crate::config::FinalModel) -> Result<Box<dyn ModelConfig>, ModelBuildError> + Send + Sync>;

/// Model kinds by name. A value, not a global: part of the [`Registry`](crate::train::Registry) that a run is given.
#[derive(Clone)]
pub struct ModelRegistry {
    kinds: KindRegistry,
    factories: BTreeMap<String, Factory>,
}

impl Default for ModelRegistry {
    /// No kind that could be built; recipes may name those that model crates are known to register.
    fn default() -> Self {
        Self { kinds: Kinds::builtin().model, factories: BTreeMap::new() }
    }
}

impl ModelRegistry {
    /// Adds a kind with settings of its own, or replaces the one of the same name.
    pub fn register(
        &mut self,
        kind: &str,
        settings: impl IntoIterator<Item = ExtraField>,
        factory: impl Fn(&crate::config::FinalModel) -> Result<Box<dyn ModelConfig>, ModelBuildError>
        + Send
        + Sync
        + 'static,
    ) {
        self.kinds.register(kind, settings);
        self.factories.insert(kind.to_owned(), Arc::new(factory));
    }

    /// Names and settings, for reading recipes.
    pub fn kinds(&self) -> &KindRegistry {
        &self.kinds
    }

    /// The configuration object for a model section.
    ///
    /// # Errors
    /// If the kind is unknown or its factory refuses the section.
    pub fn config(&self, section: &crate::config::FinalModel) -> Result<Box<dyn ModelConfig>, ModelBuildError> {
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
