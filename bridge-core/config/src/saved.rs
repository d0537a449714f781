//! Recipes in checkpoints: where to search, and the result. The function that searches is
//! registered with the kinds of models.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The places of checkpoints that a run would start from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Folder of the checkpoints to go on from.
    pub load: Option<PathBuf>,
    /// Step of the checkpoint; the newest intact one by default.
    pub step: Option<u64>,
    /// Folder or file of the weights to begin with, where `load` has nothing.
    pub pretrained: Option<PathBuf>,
}

/// The recipe of the checkpoint that a run would start from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedRecipe {
    /// Text of the recipe, as TOML.
    pub text: String,
    /// The checkpoint.
    pub path: PathBuf,
    /// The folder of the checkpoint's tokenizer files, used if the text names no tokenizer file, or
    /// the file is gone.
    pub tokenizer: Option<PathBuf>,
}

/// The recipe at one of the places, or the setting whose place cannot be read, and why.
pub type FoundRecipe = Result<Option<SavedRecipe>, (&'static str, String)>;

/// Looks for the recipe of a checkpoint.
#[derive(Clone)]
pub struct FindRecipe(Arc<dyn Fn(&Places) -> FoundRecipe + Send + Sync>);

impl FindRecipe {
    /// Looks by `find`.
    pub fn new(find: impl Fn(&Places) -> FoundRecipe + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }

    /// Recipe at one of the places.
    pub fn at(&self, places: &Places) -> FoundRecipe {
        (self.0)(places)
    }
}

impl fmt::Debug for FindRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FindRecipe")
    }
}
