//! The working copy that the stages of `finalize` fill in, and how they report problems.

use super::super::advice::advice_on_value;
use super::super::catalogue::{Row, row};
use super::super::error::{ConfigError, ConfigErrors, ErrorKind};
use super::super::kinded::{Kinded, KindedConfig};
use super::super::kinds::Kind;
use super::super::node::Node;
use super::super::raw::RawConfig;
use super::super::reader::Reader;
use super::super::run_config::{Resolved, RunConfig, World};
use super::super::section::Section;
use super::super::sections::{Precision, RecipeConfig};
use super::presets::COPIES;

/// Purpose of resolving a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Training.
    Train,
    /// `bridge plan`: data and tokenizer may be missing.
    Plan,
}

/// A copy of the recipe that is being resolved, with everything collected so far.
pub(super) struct Draft<'r> {
    /// Configuration that the user wrote.
    pub raw: &'r RawConfig,
    /// The copy into which defaults and presets are filled.
    pub recipe: RecipeConfig,
    /// The ranks of the run.
    pub world: World,
    /// Purpose of resolving it.
    pub purpose: Purpose,
    /// Problems so far.
    pub errors: ConfigErrors,
    /// Warnings so far.
    pub warnings: Vec<String>,
    /// Settings that have no effect, so far.
    pub idle: ConfigErrors,
}

impl<'r> Draft<'r> {
    pub fn new(raw: &'r RawConfig, world: &World, purpose: Purpose) -> Self {
        Self {
            raw,
            recipe: raw.recipe().clone(),
            world: *world,
            purpose,
            errors: ConfigErrors::default(),
            warnings: raw.remarks().to_vec(),
            idle: ConfigErrors::default(),
        }
    }

    /// Reports a problem of `key`, with its current value and where it was given.
    pub fn error(&mut self, kind: ErrorKind, key: &str, message: impl Into<String>) {
        let error = self.problem(kind, key, message);
        self.errors.push(error);
    }

    fn problem(&self, kind: ErrorKind, key: &str, message: impl Into<String>) -> ConfigError {
        let error = ConfigError::new(kind, key, message).with_location(self.raw.location(key));
        match self.value(key).filter(|node| !node.is_null()) {
            Some(node) => error.with_found(node.to_inline()),
            None => error,
        }
    }

    /// Reports a text, of which `name` is the part that should be one of `names`; `more` stands
    /// behind the names.
    pub fn unknown_name(&mut self, key: &str, message: &str, (text, name): (&str, &str), names: &[&str], more: &str) {
        let mut error = ConfigError::new(ErrorKind::WrongType, key, message)
            .with_found(format!("{text:?}"))
            .with_expected(format!("one of {}{more}", names.join(", ")))
            .with_nearest(name, names.iter().copied())
            .with_location(self.raw.location(key));
        error.hint = advice_on_value(key, text, self.raw.kinds());
        self.errors.push(error);
    }

    /// True if a module's name is known; reports one that is not.
    pub fn knows_module(&mut self, key: &str, module: &str, known: &[&str]) -> bool {
        let is_known = known.contains(&module);
        if !is_known {
            let message = format!("unknown module {module:?}; known are {}", known.join(", "));
            self.error(ErrorKind::WrongType, key, message);
        }
        is_known
    }

    /// Reports a setting that contradicts another one.
    pub fn conflict(&mut self, key: &str, message: impl Into<String>) {
        self.error(ErrorKind::Conflict, key, message);
    }

    /// Reports a setting without default that was not given.
    pub fn missing(&mut self, key: &str, message: impl Into<String>) {
        self.error(ErrorKind::Missing, key, message);
    }

    /// Reports a violated condition.
    pub fn require(&mut self, is_met: bool, key: &str, message: impl Into<String>) {
        if !is_met {
            self.conflict(key, message);
        }
    }

    /// Reports a condition that must not hold; comparisons with NaN, which the range checks report,
    /// do not hold.
    pub fn forbid(&mut self, is_violated: bool, key: &str, message: impl Into<String>) {
        self.require(!is_violated, key, message);
    }

    /// Reports a setting that has no effect because of others, unless `is_used`: a warning that
    /// says why, or with `--strict` an error.
    pub fn idle_unless(&mut self, is_used: bool, key: &str, reason: impl Into<String>) {
        self.idle_if(!is_used, key, reason);
    }

    /// As [`idle_unless`](Self::idle_unless), of a condition in which the setting is idle.
    pub fn idle_if(&mut self, is_idle: bool, key: &str, reason: impl Into<String>) {
        if is_idle {
            let problem = self.problem(ErrorKind::Conflict, key, reason);
            self.idle.push(problem);
        }
    }

    /// Reports settings with the same meaning of which one is true and another was set to false.
    pub fn refuse_contradictions(&mut self, names: &[&str]) {
        let values = self.recipe.to_node();
        let is_on = |name: &&&str| values.get_path(name).is_some_and(|value| value.to_inline() == "true");
        let Some(on) = names.iter().find(is_on) else { return };
        for off in names.iter().filter(|name| !is_on(name)) {
            let is_explicit = self.is_explicit(off);
            self.require(!is_explicit, off, format!("means the same as {on}, which is true"));
        }
    }

    /// True if the value of `key` was refused for another reason than a conflict.
    pub fn is_refused(&self, key: &str) -> bool {
        self.errors.iter().any(|error| error.key == key && error.kind != ErrorKind::Conflict)
    }

    /// True if the user chose this setting; see [`RawConfig`].
    pub fn is_explicit(&self, key: &str) -> bool {
        self.raw.is_explicit(key)
    }

    /// True if the user wrote the setting `name` of `table`.
    pub fn is_stated(&self, table: &str, name: &str) -> bool {
        self.is_explicit(&format!("{table}.{name}"))
    }

    /// The key that the user wrote to set `key`: `key` itself, the setting of a preset table that
    /// is copied to it, or that table. `key` if the user wrote neither.
    pub fn written(&self, key: &str) -> String {
        let (section, name) = key.split_once('.').unwrap_or(("", key));
        let copy = COPIES.iter().find(|(to, _, names)| *to == section && names.contains(&name));
        let table = copy.map(|(_, table, _)| [key.to_owned(), format!("{table}.{name}"), (*table).to_owned()]);
        table.into_iter().flatten().find(|key| self.is_explicit(key)).unwrap_or_else(|| key.to_owned())
    }

    /// The current value of `key`, a setting with a section (`section.name`) or without.
    pub fn value(&self, key: &str) -> Option<Node> {
        self.recipe.to_node().get_path(key).cloned()
    }

    /// Sets `key` in one of the sections that presets and old names write to.
    pub fn set(&mut self, key: &str, value: &Node) {
        let (section, name) = key.split_once('.').unwrap_or(("", key));
        let mut reader = Reader::new(self.raw.kinds());
        let is_set = match (section, &mut self.recipe.mixed_precision) {
            ("model", _) => self.recipe.model.assign(name, value, &mut reader),
            ("ddp", _) => self.recipe.ddp.assign(name, value, &mut reader),
            ("optimizer", _) => self.recipe.optimizer.assign(name, value, &mut reader),
            ("train", _) => self.recipe.train.assign(name, value, &mut reader),
            ("validation", _) => self.recipe.validation.assign(name, value, &mut reader),
            ("mixed_precision", Some(Precision::Custom(config))) => config.assign(name, value, &mut reader),
            _ => false,
        };
        debug_assert!(is_set, "{key} is a setting");
    }

    /// Setting that the user chose among settings that are copied onto each other; the first one if
    /// none was chosen.
    pub fn chosen<'k>(&self, keys: &[&'k str]) -> &'k str {
        keys.iter().find(|key| self.is_explicit(key)).unwrap_or(&keys[0])
    }

    /// True if a setting now differs from its default, changed by the user or by a rule.
    pub fn recipe_differs(&self, key: &str) -> bool {
        self.value(key).as_ref() != row(key).map(|row| &row.field.default)
    }

    /// The kind of model, if that name is registered.
    pub fn model_kind(&self) -> Option<&'r Kind> {
        self.raw.kinds().model.get(&self.recipe.model.kind)
    }

    /// The kind of dataset, if that name is registered.
    pub fn dataset_kind(&self) -> Option<&'r Kind> {
        self.raw.kinds().dataset.get(&self.recipe.dataset.kind)
    }

    /// True if the kind of model supports a setting of `[model]`.
    pub fn supports(&self, setting: &str) -> bool {
        let listed = self.model_kind().and_then(|kind| kind.settings.as_ref());
        let is_listed = listed.is_none_or(|listed| listed.iter().any(|name| name == setting));
        is_listed || row(&format!("model.{setting}")).is_some_and(Row::is_of_every_kind)
    }

    /// The extra settings of a kind, with the registered defaults for those not given.
    pub fn extra_with_defaults<C: KindedConfig>(&self, config: &Kinded<C>) -> toml::Table {
        let mut extra = config.extra.clone();
        let kind = C::registry(self.raw.kinds()).get(&config.kind);
        for field in kind.into_iter().flat_map(|kind| &kind.extra) {
            if let Some(default) = &field.default {
                extra.entry(field.name.clone()).or_insert_with(|| default.clone());
            }
        }
        extra
    }

    /// Reports a kind that is not registered or cannot be used yet.
    pub fn check_kind<C: KindedConfig>(&mut self, key: &str, kind: &str) {
        let registry = C::registry(self.raw.kinds());
        match registry.get(kind) {
            None => {
                let names: Vec<_> = registry.usable_names().collect();
                self.unknown_name(key, "unknown kind", (kind, kind), &names, "");
            }
            Some(found) => {
                if let Some(reason) = &found.not_implemented {
                    let message = format!("not implemented yet: {reason}");
                    self.error(ErrorKind::NotImplemented, key, message);
                }
            }
        }
    }

    /// The run configuration, unless there were problems.
    pub fn finish(self, resolve: impl FnOnce(RecipeConfig) -> Resolved) -> Result<RunConfig, ConfigErrors> {
        let may_lack = |key: &str| key.starts_with("dataset.") || key.starts_with("tokenizer.");
        let errors = self.errors.into_iter().filter(|error| {
            let is_missing = error.kind == ErrorKind::Missing && may_lack(&error.key);
            !(self.purpose == Purpose::Plan && is_missing)
        });
        errors.collect::<ConfigErrors>().into_result(())?;
        Ok(RunConfig::new(resolve(self.recipe), self.warnings, self.idle, self.raw.origins.clone()))
    }
}
