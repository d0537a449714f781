//! What a program adds to Bridge: kinds of model and of dataset, each registered in one place with its name, its settings and its factory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_data::tokenizer::Tokenizer;
use bridge_data::{DataError, DatasetProvider};

use super::gpt_data::gpt_provider;
use super::sft_data::sft_provider;
use crate::checkpoint::Snapshot;
use crate::config::{ExtraField, FinalDataset, FinalValidation, Kind, KindRegistry, Kinds};
use crate::model::ModelRegistry;

/// The kinds of model and of dataset that recipes may choose. A value, not a global.
///
/// `bridge_models::registry()` has the built-in ones. What is registered here is known both to whoever reads recipes (by
/// [`Registry::kinds`]) and to the runs that are given it.
#[derive(Clone, Debug)]
pub struct Registry {
    /// Kinds of model.
    pub models: ModelRegistry,
    /// Kinds of dataset.
    pub datasets: DatasetRegistry,
    /// Sorts of weights, besides Bridge's own checkpoints, that `checkpoint.pretrained_checkpoint` may name.
    pub weights: Vec<Weights>,
}

/// A sort of folder or file of another program with the weights of a model.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// What tells a folder or file of this sort from others, and from itself before a change; nothing of another sort.
    pub fingerprint: fn(&Path) -> Option<String>,
    /// Opens it as a checkpoint that is yet to be written.
    pub open: fn(&Path) -> Result<Snapshot, Box<dyn std::error::Error + Send + Sync>>,
}

impl Registry {
    /// The given kinds of model, and the built-in kinds of dataset.
    pub fn new(models: ModelRegistry) -> Self {
        Self { models, datasets: DatasetRegistry::builtin(), weights: Vec::new() }
    }

    /// Names and settings of all kinds, for reading recipes.
    pub fn kinds(&self) -> Kinds {
        Kinds { model: self.models.kinds().clone(), dataset: self.datasets.kinds().clone() }
    }
}

/// What a dataset factory is given.
#[derive(Clone)]
pub struct DatasetFactoryContext<'a> {
    /// The `dataset` section. `source` has been packed already; `text_prefix` says where.
    pub section: &'a FinalDataset,
    /// The tokenizer, if the recipe has one.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Prefix of the `.bin`/`.idx` pair made from `dataset.source`.
    pub text_prefix: Option<PathBuf>,
    /// Tokens of the sequences of a decoder behind an encoder.
    pub target_length: usize,
    /// The token that such a decoder begins with.
    pub start_token: i64,
    /// Tokens of a sequence are divisible by this: the ranks that share one each have a part.
    pub sequence_parts: usize,
    /// Whether samples are pairs of a preferred answer and another one: their tokens in turn.
    pub preferences: bool,
    /// The `validation` section: how much of the validation split is read.
    pub validation: &'a FinalValidation,
}

type Factory = Arc<dyn Fn(&DatasetFactoryContext) -> Result<Box<dyn DatasetProvider>, DataError> + Send + Sync>;

/// Kinds of dataset by name.
#[derive(Clone)]
pub struct DatasetRegistry {
    kinds: KindRegistry,
    factories: BTreeMap<String, Factory>,
}

impl DatasetRegistry {
    /// The kinds that are built in.
    pub fn builtin() -> Self {
        let mut registry = Self { kinds: Kinds::builtin().dataset, factories: BTreeMap::new() };
        for kind in ["gpt", "fim", "mock", "t5", "mock_t5"] {
            registry.factories.insert(kind.to_owned(), Arc::new(gpt_provider));
        }
        registry.factories.insert("finetuning".to_owned(), Arc::new(sft_provider));
        registry
    }

    /// Adds a kind with settings of its own, or replaces the one of the same name.
    pub fn register(
        &mut self,
        kind: &str,
        settings: impl IntoIterator<Item = ExtraField>,
        factory: impl Fn(&DatasetFactoryContext) -> Result<Box<dyn DatasetProvider>, DataError> + Send + Sync + 'static,
    ) {
        self.kinds.register(kind, Kind::default().with(settings));
        self.factories.insert(kind.to_owned(), Arc::new(factory));
    }

    /// Names and settings, for reading recipes.
    pub fn kinds(&self) -> &KindRegistry {
        &self.kinds
    }

    pub(super) fn provider(&self, context: &DatasetFactoryContext) -> Result<Box<dyn DatasetProvider>, DataError> {
        let kind = &context.section.kind;
        let Some(factory) = self.factories.get(kind) else {
            let known = self.factories.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(DataError::Parameter(format!("dataset.kind: expected one of {known}, found `{kind}`")));
        };
        factory(context)
    }
}

impl std::fmt::Debug for DatasetRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.factories.keys()).finish()
    }
}
