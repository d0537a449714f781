//! Settings that a recipe takes from the checkpoint that its run would start from:
//! `use_checkpoint_args`, `use_mp_args_from_checkpoint_args` and
//! `use_tokenizer_model_from_checkpoint_args`. A registered function finds the checkpoint.

use super::changes::{MODEL, changes, concerns};
use super::choice::TokenizerType;
use super::error::{ConfigError, ConfigErrors, ErrorKind};
use super::node::{Entry, Location, Node};
use super::raw::RawConfig;
use super::reader::Reader;
use super::saved::{Places, SavedRecipe};
use super::section::Section;
use super::sections::{RecipeConfig, TokenizerConfig, TransformerConfig};
use super::source::Format;
use super::spec::{Concerns, Group};

const ARCHITECTURE: &str = "checkpoint.use_checkpoint_args";
const SIZES: &str = "checkpoint.use_mp_args_from_checkpoint_args";

/// The precision of a run is its own: presets choose it, and parameters are cast as they are
/// loaded.
const OF_PRECISION: [&str; 3] = ["fp16", "bf16", "params_dtype"];

impl RawConfig {
    /// The recipe with the settings that it takes from the checkpoint that its run would start
    /// from. Returns it unchanged if it takes none, or has taken them before.
    /// [`finalize`](Self::finalize) does this first. Callers that change a recipe's checkpoints or
    /// layout before that must call this earlier.
    ///
    /// Settings of `[model]` that affect the computation are taken from the checkpoint, with a
    /// warning if the recipe has another value. Settings in `checkpoint.allow_model_changes` keep
    /// the recipe's value. Settings that only concern training are taken if the recipe does not set
    /// them. Parallel sizes and the tokenizer are taken as a whole, with a warning for each that
    /// the recipe sets differently. If there is no checkpoint yet, the recipe must be complete.
    ///
    /// # Errors
    /// A checkpoint that cannot be read or understood; a program that reads recipes with kinds of
    /// its own, which cannot look for one.
    pub fn with_checkpoint_args(&self) -> Result<Self, ConfigErrors> {
        let mut taken = self.clone();
        let settings = &self.checkpoint;
        if self.has_taken || !(settings.use_checkpoint_args || settings.use_mp_args_from_checkpoint_args) {
            return Ok(taken);
        }
        taken.has_taken = true;
        let places = Places {
            load: settings.load.clone().or_else(|| settings.save.clone()),
            step: settings.ckpt_step.map(|step| step as u64),
            pretrained: settings.pretrained_checkpoint.clone(),
        };
        let key = if settings.use_checkpoint_args { ARCHITECTURE } else { SIZES };
        if places.load.is_none() && places.pretrained.is_none() {
            return Ok(taken);
        }
        let problem = |key: &str, message: String| {
            ConfigErrors::from(ConfigError::new(ErrorKind::Conflict, key, message).with_location(self.location(key)))
        };
        let Some(finder) = &self.kinds().saved else {
            let message =
                "needs the kinds of a program's registry: those that are built in cannot look for a checkpoint";
            return Err(problem(key, message.into()));
        };
        let found = finder.at(&places).map_err(|(key, message)| problem(key, message))?;
        let Some(found) = found else {
            let searched = places.load.iter().chain(&places.pretrained).map(|path| path.display().to_string());
            let searched = searched.collect::<Vec<_>>().join(" and ");
            taken.remarks.push(format!("{key}: no checkpoint in {searched}; the recipe's own settings are used"));
            return Ok(taken);
        };
        let saved = Self::from_text(&found.text, Format::Toml, &[], self.kinds());
        let saved = saved.map_err(|errors| problem(key, format!("{}: {errors}", found.path.display())))?;
        let mut taking = Taking { recipe: self, taken, saved: saved.recipe(), found: &found, overruled: Vec::new() };
        if settings.use_checkpoint_args {
            taking.architecture();
            if settings.use_tokenizer_model_from_checkpoint_args {
                taking.tokenizer();
            }
        }
        if settings.use_mp_args_from_checkpoint_args {
            taking.layout();
        }
        Ok(taking.finish())
    }
}

/// The taking of settings.
struct Taking<'a> {
    /// The recipe as the user wrote it.
    recipe: &'a RawConfig,
    /// The recipe with the settings taken from the checkpoint.
    taken: RawConfig,
    /// Recipe of the checkpoint.
    saved: &'a RecipeConfig,
    found: &'a SavedRecipe,
    /// Settings of the recipe that are not used.
    overruled: Vec<String>,
}

impl Taking<'_> {
    /// Takes all of `[model]` but precision, layout and speed.
    fn architecture(&mut self) {
        let differing: Vec<String> =
            changes(self.saved, self.recipe.recipe()).into_iter().map(|change| change.key).collect();
        let saved = self.saved.model.to_node();
        for Entry { key: name, node, .. } in saved.entries().unwrap_or_default() {
            let key = format!("{MODEL}{name}");
            let is_said = self.recipe.is_explicit(&key);
            let is_kept = match concerns(&key) {
                Concerns::Execution => true,
                Concerns::Training => is_said || OF_PRECISION.contains(&name.as_str()),
                Concerns::Function => is_said && self.recipe.checkpoint.allow_model_changes.contains(name),
            };
            if !is_kept {
                self.take_of_model(name, node, is_said && differing.contains(&key));
            }
        }
        // Remove settings that only another kind of model has.
        let model = &mut self.taken.model;
        let extra = &self.saved.model.extra;
        let allowed = &self.recipe.checkpoint.allow_model_changes;
        model.extra.retain(|name, _| extra.contains_key(name) || allowed.iter().any(|other| other == name));
    }

    /// Takes the layout of ranks.
    fn layout(&mut self) {
        let fields = TransformerConfig::fields().into_iter().filter(|field| field.groups.contains(&Group::Layout));
        let (own, saved) = (self.recipe.recipe().model.to_node(), self.saved.model.to_node());
        for name in fields.map(|field| field.name) {
            let Some(value) = saved.get(name) else { continue };
            let is_explicit = self.recipe.is_explicit(&format!("{MODEL}{name}"));
            self.take_of_model(name, value, own.get(name) != Some(value) && is_explicit);
        }
    }

    /// Takes the checkpoint's value of one setting of `[model]`.
    fn take_of_model(&mut self, name: &str, value: &Node, is_overruled: bool) {
        let key = format!("{MODEL}{name}");
        if is_overruled {
            let own = self.recipe.recipe().model.value(name).map_or_else(|| "null".into(), |value| value.to_inline());
            self.overruled.push(format!("{key} = {own} (the checkpoint's is {})", value.to_inline()));
        }
        let kinds = self.taken.kinds().clone();
        // A value that was written by a recipe of the same table has its type.
        let mut reader = Reader::new(&kinds);
        self.taken.model.assign(name, value, &mut reader);
        self.taken.origins.insert(key, Some(self.location()));
    }

    /// Takes `[tokenizer]`. The files of a tokenizer that are gone are those in the checkpoint.
    fn tokenizer(&mut self) {
        let mut tokenizer = self.saved.tokenizer.clone();
        if let Some(folder) = &self.found.tokenizer {
            tokenizer.tokenizer_type.get_or_insert(TokenizerType::HuggingFace);
            tokenizer.tokenizer_model = Some(folder.clone());
        }
        if tokenizer == TokenizerConfig::default() {
            return;
        }
        for name in TokenizerConfig::names() {
            let key = format!("tokenizer.{name}");
            let (own, saved) = (self.recipe.tokenizer.value(name), tokenizer.value(name));
            if own != saved && self.recipe.is_explicit(&key) {
                let said = |value: Option<Node>| value.map_or_else(|| "null".into(), |v| v.to_inline());
                self.overruled.push(format!("{key} = {} (the checkpoint's is {})", said(own), said(saved)));
            }
            self.taken.origins.insert(key, Some(self.location()));
        }
        self.taken.tokenizer = tokenizer;
    }

    fn location(&self) -> Location {
        Location::of_file(&self.found.path.join("run_config.toml"))
    }

    fn finish(mut self) -> RawConfig {
        if !self.overruled.is_empty() {
            let text = format!(
                "settings are taken from the checkpoint {}, so these of the recipe are not used: {}",
                self.found.path.display(),
                self.overruled.join(", ")
            );
            self.taken.remarks.push(text);
        }
        self.taken
    }
}
