//! Registry of a program's additions to Bridge: kinds of model and of dataset, each registered in
//! one place with its name, its settings and its factory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bridge_data::tokenizer::Tokenizer;
use bridge_data::{DataError, DatasetProvider};

use crate::checkpoint::{
    CheckpointError, CheckpointStore, LoadRequest, Resolution, Snapshot, TOKENIZER_FILE, Verification,
};
use crate::config::{
    ExtraField, FINETUNING, FinalDataset, FinalValidation, FindRecipe, FoundRecipe, Kind, KindRegistry, Kinds, Places,
    SavedRecipe,
};
use crate::model::ModelRegistry;
use crate::train::data::gpt_data::gpt_provider;
use crate::train::data::sft_data::sft_provider;

/// The kinds of model and of dataset that recipes may choose. A value, not a global.
///
/// `bridge_models::registry()` has the built-in ones. Registered kinds are known both to readers of
/// recipes (by [`Registry::kinds`]) and to runs with this registry.
#[derive(Clone, Debug)]
pub struct Registry {
    /// Kinds of model.
    pub models: ModelRegistry,
    /// Kinds of dataset.
    pub datasets: DatasetRegistry,
    /// Sorts of weights, besides Bridge's own checkpoints, that `checkpoint.pretrained_checkpoint`
    /// may name.
    pub weights: Vec<WeightFormat>,
}

/// Format of another program for the weights of a model: a folder or a file.
#[derive(Clone, Copy, Debug)]
pub struct WeightFormat {
    /// Fingerprint of a folder or file of this format, which changes with its content; `None` for
    /// other formats.
    pub fingerprint: fn(&Path) -> Option<String>,
    /// Opens it as the snapshot of a checkpoint.
    pub open: fn(&Path) -> Result<Snapshot, Box<dyn std::error::Error + Send + Sync>>,
    /// Message for the user about it, if any.
    pub remark: fn(&Path) -> Option<String>,
}

impl Registry {
    /// The given kinds of model, and the built-in kinds of dataset.
    pub fn new(models: ModelRegistry) -> Self {
        Self { models, datasets: DatasetRegistry::builtin(), weights: Vec::new() }
    }

    /// Names and settings of all kinds, for reading recipes.
    pub fn kinds(&self) -> Kinds {
        let formats = self.weights.clone();
        let saved = Some(FindRecipe::new(move |places| find_recipe(places, &formats)));
        Kinds { model: self.models.kinds().clone(), dataset: self.datasets.kinds().clone(), saved }
    }
}

/// The recipe of the checkpoint that a run of these places would start from. Weights of other
/// programs bring their model's.
fn find_recipe(places: &Places, formats: &[WeightFormat]) -> FoundRecipe {
    const LOAD: &str = "checkpoint.load";
    const PRETRAINED: &str = "checkpoint.pretrained_checkpoint";
    if let Some(load) = &places.load
        && let Some(found) = recipe_in(load, places.step).map_err(|error| (LOAD, error.to_string()))?
    {
        return Ok(Some(found));
    }
    let Some(path) = places.pretrained.as_deref() else { return Ok(None) };
    match formats.iter().find(|format| (format.fingerprint)(path).is_some()) {
        Some(format) => {
            let run = (format.open)(path).map_err(|error| (PRETRAINED, error.to_string()))?.run;
            let has_files = run.files.contains_key(TOKENIZER_FILE) && path.is_dir();
            let tokenizer = has_files.then(|| tokenizer_beside(&run.run_config, path)).flatten();
            Ok(Some(SavedRecipe { text: run.run_config, path: path.to_owned(), tokenizer }))
        }
        None => recipe_in(path, None).map_err(|error| (PRETRAINED, error.to_string())),
    }
}

/// The recipe of the newest checkpoint of a folder whose files are all there, or of the one of a
/// step.
fn recipe_in(folder: &Path, step: Option<u64>) -> Result<Option<SavedRecipe>, CheckpointError> {
    // The run verifies the checkpoint when it loads it.
    let request = LoadRequest { ckpt_step: step, fallback: true, verification: Verification::Sizes };
    let Resolution::Found(found) = CheckpointStore::open(folder)?.resolve(&request)? else { return Ok(None) };
    let checkpoint = &found.checkpoint;
    let (text, path) = (checkpoint.run_config()?, checkpoint.path().to_owned());
    let has_files = checkpoint.file_names().any(|name| name == TOKENIZER_FILE);
    let tokenizer = has_files.then(|| tokenizer_beside(&text, &path)).flatten();
    Ok(Some(SavedRecipe { text, path, tokenizer }))
}

/// The folder of a tokenizer's files, if the recipe beside them does not say which tokenizer it is,
/// or that is gone.
fn tokenizer_beside(recipe: &str, folder: &Path) -> Option<PathBuf> {
    let recipe = recipe.parse::<toml::Table>().ok()?;
    let setting = |name: &str| recipe.get("tokenizer")?.get(name)?.as_str().filter(|value| *value != "null");
    let stands = match setting("tokenizer_model") {
        Some(path) => !Path::new(path).exists(),
        None => setting("tokenizer_type").is_none(),
    };
    stands.then(|| folder.to_owned())
}

/// Arguments of a dataset factory.
#[derive(Clone)]
pub struct DatasetFactoryContext<'a> {
    /// The `dataset` section. `source` has been packed already; `text_prefix` says where.
    pub section: &'a FinalDataset,
    /// The tokenizer, if the recipe has one.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Prefix of the `.bin`/`.idx` pair made from `dataset.source`.
    pub text_prefix: Option<PathBuf>,
    /// Folder of the examples made from `dataset.source`, if its format makes examples.
    pub examples: Option<PathBuf>,
    /// Tokens of the sequences of a decoder that has an encoder.
    pub target_length: usize,
    /// The token that such a decoder begins with.
    pub start_token: i64,
    /// Tokens of a sequence are divisible by this: the ranks that share one each have a part.
    pub sequence_parts: usize,
    /// True if samples are pairs of a preferred answer and another one: their tokens in turn.
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
        registry.factories.insert(FINETUNING.to_owned(), Arc::new(sft_provider));
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

    pub(in crate::train) fn provider(
        &self,
        context: &DatasetFactoryContext,
    ) -> Result<Box<dyn DatasetProvider>, DataError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokenizer_beside_a_recipe_stands_for_one_that_is_not_named_or_gone() {
        let folder = tempfile::tempdir().unwrap();
        let beside = |recipe: &str| tokenizer_beside(recipe, folder.path()).is_some();
        assert!(beside("[model]\nnum_layers = 2"));
        assert!(beside(
            "[tokenizer]\ntokenizer_type = \"HuggingFaceTokenizer\"\ntokenizer_model = \"/nowhere/at/all\""
        ));
        assert!(!beside(&format!("[tokenizer]\ntokenizer_model = {:?}", folder.path())));
        assert!(!beside("[tokenizer]\ntokenizer_type = \"NullTokenizer\"\nvocab_size = 9"));
    }
}
