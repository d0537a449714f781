//! `RawConfig`: the user's settings with their locations. This file only reads; `finalize` checks.

use std::ops::{Deref, DerefMut};
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::advice::advise;
use super::catalogue::row;
use super::error::ConfigErrors;
use super::kinds::Kinds;
use super::node::{Location, Node};
use super::reader::{Origins, Reader, locate};
use super::section::Section;
use super::sections::RecipeConfig;
use super::source::{self, Format};
use super::{overrides, upstream};

/// A recipe before it is checked: every setting may be changed, in any order.
///
/// Dereferences to [`RecipeConfig`], so `raw.train.global_batch_size = Some(8)` sets a value.
///
/// A setting counts as explicit if it was written in a file or on the command line (even with its
/// default value), if it differs from its default, or after [`RawConfig::mark_explicit`]. Presets
/// never overwrite an explicit setting.
#[derive(Debug, Clone, Default)]
pub struct RawConfig {
    recipe: RecipeConfig,
    /// Place of each explicit setting.
    pub(super) origins: Origins,
    kinds: Kinds,
    pub(super) remarks: Vec<String>,
    /// True if the recipe has taken its settings from a checkpoint.
    pub(super) has_taken: bool,
}

/// Two raw configurations are equal if their settings are; where these were written does not
/// matter.
impl PartialEq for RawConfig {
    fn eq(&self, other: &Self) -> bool {
        self.recipe == other.recipe
    }
}

impl Deref for RawConfig {
    type Target = RecipeConfig;

    fn deref(&self) -> &RecipeConfig {
        &self.recipe
    }
}

impl DerefMut for RawConfig {
    fn deref_mut(&mut self) -> &mut RecipeConfig {
        &mut self.recipe
    }
}

impl From<RecipeConfig> for RawConfig {
    fn from(recipe: RecipeConfig) -> Self {
        Self { recipe, ..Self::default() }
    }
}

impl RawConfig {
    /// All defaults, with the given kinds of model and dataset to choose from.
    pub fn with_kinds(kinds: Kinds) -> Self {
        Self { kinds, ..Self::default() }
    }

    /// Reads a recipe file and lays `key=value` overrides over it.
    ///
    /// # Errors
    /// Every problem of syntax, names and types, of the file and of the overrides.
    pub fn from_file(path: &Path, overrides: &[String], kinds: &Kinds) -> Result<Self, ConfigErrors> {
        let (raw, errors) = Self::read_file(path, overrides, kinds);
        errors.into_result(raw)
    }

    /// Reads the settings of a file that determine a model's function: from a configuration that
    /// Megatron Bridge saved, the architecture and the vocabulary in its `model`; from a recipe,
    /// all settings. Returns a list of omitted settings.
    ///
    /// # Errors
    /// Syntax, and every setting of the model that changes its function and has no counterpart
    /// here.
    pub fn model_from_file(path: &Path, kinds: &Kinds) -> Result<(Self, Vec<String>), ConfigErrors> {
        let mut root = source::parse_file(path)?;
        let left_out = upstream::keep_function(&mut root);
        let (raw, errors) = Self::read(Ok(root), &[], kinds);
        errors.into_result((raw, left_out))
    }

    /// Reads a recipe from text and lays `key=value` overrides over it.
    ///
    /// # Errors
    /// Every problem of syntax, names and types, of the text and of the overrides.
    pub fn from_text(text: &str, format: Format, overrides: &[String], kinds: &Kinds) -> Result<Self, ConfigErrors> {
        let (raw, errors) = Self::read(source::parse(text, format, "recipe"), overrides, kinds);
        errors.into_result(raw)
    }

    /// Reads as much as possible; `name` defaults to the file's name.
    pub(super) fn read_file(path: &Path, overrides: &[String], kinds: &Kinds) -> (Self, ConfigErrors) {
        let (mut raw, errors) = Self::read(source::parse_file(path), overrides, kinds);
        if raw.name.is_none() {
            raw.name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        }
        (raw, errors)
    }

    /// Reads as much as possible of a parsed recipe.
    pub(super) fn read(
        parsed: Result<Node, ConfigErrors>,
        overrides: &[String],
        kinds: &Kinds,
    ) -> (Self, ConfigErrors) {
        let (mut root, mut errors) = match parsed {
            Ok(root) => (root, ConfigErrors::default()),
            Err(errors) => (Node::null(), errors),
        };
        let is_readable = errors.is_empty();
        errors.extend(overrides::apply(&mut root, overrides));
        let translated = upstream::translate(&mut root);
        errors.extend(translated.errors);
        let remarks = translated.remarks.into_iter().chain(overrides::repeated(overrides)).collect();
        let mut raw = Self { remarks, ..Self::with_kinds(kinds.clone()) };
        if !is_readable && root.is_null() {
            return (raw, errors);
        }
        let mut reader = Reader::new(kinds);
        raw.recipe.assign_all(&root, &mut reader);
        let (origins, read_errors) = reader.finish();
        raw.origins = origins;
        errors.extend(advise(read_errors, kinds, &root));
        (raw, errors)
    }

    /// Protects a setting from presets even if it has its default value.
    pub fn mark_explicit(&mut self, key: impl Into<String>) {
        self.origins.entry(key.into()).or_insert(None);
    }

    /// True if the user chose the value of a setting; see [`RawConfig`].
    pub fn is_explicit(&self, key: &str) -> bool {
        if self.origins.contains_key(key) {
            return true;
        }
        let default = row(key).map(|row| &row.field.default);
        self.recipe.to_node().get_path(key).is_some_and(|value| Some(value) != default)
    }

    /// Place of a setting, or of the closest table around it.
    pub fn location(&self, key: &str) -> Option<Location> {
        locate(&self.origins, key)
    }

    /// Remarks about how the recipe was read.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// The kinds of model and dataset that this configuration may choose.
    pub fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// The settings alone.
    pub fn recipe(&self) -> &RecipeConfig {
        &self.recipe
    }
}

impl Serialize for RawConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.recipe.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawConfig {
    /// With the built-in kinds; all problems are in the one error's text.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let node = Node::deserialize(deserializer)?;
        let (raw, errors) = Self::read(Ok(node), &[], &Kinds::builtin());
        errors.into_result(raw).map_err(serde::de::Error::custom)
    }
}
