//! Configurations that Megatron Bridge saves (`run_config.yaml`): every field of every class, each class with a `_target_`.
//! They are converted to a recipe before it is read: objects become values, classes become kinds, derived values are left out,
//! and values without a counterpart here are left out and listed. Everything else is read and checked as in a recipe.

mod classes;
mod fields;
mod values;

use super::error::{ConfigError, ConfigErrors, ErrorKind};
use super::node::{Data, Entry, Location, Node};
use super::overrides;
use super::refusal::Refusal;
use super::section::Section;
use super::sections::RecipeConfig;
use super::spec::FieldSpec;
pub(super) use classes::classes_of;
use fields::Fate;
use values::Plain;

/// The key that names the class of a table.
const TARGET: &str = "_target_";

/// The outcome of a conversion besides the recipe.
#[derive(Debug, Default)]
pub(super) struct Translated {
    /// Problems: what cannot be part of a recipe.
    pub errors: ConfigErrors,
    /// Remarks about what was left out.
    pub remarks: Vec<String>,
}

/// Converts an upstream configuration to a recipe, in place; a recipe stays as it is. Command-line values are settings of a recipe.
pub(super) fn translate(root: &mut Node) -> Translated {
    let sections = root.entries().unwrap_or_default();
    let is_upstream = root.get(TARGET).is_some() || sections.iter().any(|section| section.node.get(TARGET).is_some());
    let Data::Table(sections) = &mut root.data else {
        return Translated::default();
    };
    if !is_upstream {
        return Translated::default();
    }
    let mut translation = Translation::default();
    translation.container(sections);
    for field in RecipeConfig::fields() {
        let Some(inner) = (field.spec)().section_fields() else {
            continue;
        };
        let Some(section) = sections.iter_mut().find(|entry| entry.key == field.name) else {
            continue;
        };
        if let Data::Table(entries) = &mut section.node.data {
            translation.section(field.name, &inner, entries);
        }
    }
    fields::move_overlap(sections);
    fields::drop_derived(sections);
    translation.drop_defaults(sections);
    translation.finish()
}

/// Whether a value was given on the command line, and so is a setting of Bridge.
fn is_given(node: &Node) -> bool {
    node.location.as_ref().is_some_and(Location::is_command_line)
}

#[derive(Default)]
struct Translation {
    errors: ConfigErrors,
    /// `key = value (place): reason` of each value that was left out.
    dropped: Vec<String>,
    /// Names of fields without a setting, at upstream's default or empty.
    unknown: Vec<String>,
}

impl Translation {
    /// The top level: its class, and fields that are not sections.
    fn container(&mut self, sections: &mut Vec<Entry>) {
        self.class("", sections);
        let known = RecipeConfig::names();
        sections.retain(|entry| known.contains(&entry.key.as_str()) || self.keeps_unknown("", entry));
        // A required section that is null has its defaults.
        let nullable = |name: &str| RecipeConfig::fields().iter().any(|f| f.name == name && f.default.is_null());
        sections.retain(|entry| is_given(&entry.node) || !entry.node.is_null() || nullable(&entry.key));
    }

    fn section(&mut self, name: &str, fields: &[FieldSpec], entries: &mut Vec<Entry>) {
        if name == "model" {
            values::flatten(entries, "transformer");
        }
        fields::rename(name, entries);
        self.class(name, entries);
        let mut kept = Vec::new();
        for mut entry in std::mem::take(entries) {
            let field = fields.iter().find(|field| field.name == fields::canonical(name, &entry.key));
            let is_kept = is_given(&entry.node)
                || match field {
                    Some(field) => self.value(&format!("{name}.{}", entry.key), field, &mut entry.node),
                    None => self.keeps_unknown(name, &entry),
                };
            if is_kept {
                kept.push(entry);
            }
        }
        *entries = kept;
    }

    /// Removes the class of a table and adds what it stands for.
    fn class(&mut self, section: &str, entries: &mut Vec<Entry>) {
        let Some(index) = entries.iter().position(|entry| entry.key == TARGET) else {
            return;
        };
        let target = entries.remove(index).node;
        let key = if section.is_empty() { TARGET.to_owned() } else { format!("{section}.{TARGET}") };
        let name = if let Data::String(name) = &target.data { name.as_str() } else { "" };
        match classes::find(section, name) {
            Err(expected) => {
                let error = ConfigError::new(ErrorKind::NotImplemented, key, "a class that has no counterpart here")
                    .with_found_node(&target)
                    .with_expected(expected)
                    .with_location(target.location);
                self.errors.push(error);
            }
            Ok(class) => {
                let filled = classes::fill(&class, entries, target.location.as_ref());
                if !filled.is_empty() {
                    self.dropped.push(format!("{key}: {filled}"));
                }
            }
        }
    }

    /// Converts an object to the value that it stands for; false to leave the entry out.
    fn value(&mut self, key: &str, field: &FieldSpec, node: &mut Node) -> bool {
        match values::plain(key, node) {
            Plain::Same => {}
            Plain::Value(data) => node.data = data,
            Plain::Unknown(target) => {
                let error = ConfigError::new(ErrorKind::WrongType, key, "an object that stands for no value here")
                    .with_found(target)
                    .with_expected((field.spec)().to_string())
                    .with_location(node.location.clone());
                self.errors.push(error);
                return false;
            }
        }
        // Python's None stands for the default of a setting that cannot be null here.
        !node.is_null() || (field.spec)().accepts(node)
    }

    /// Whether a field that is not a setting stays and becomes an unknown name.
    fn keeps_unknown(&mut self, section: &str, entry: &Entry) -> bool {
        let key = if section.is_empty() { entry.key.clone() } else { format!("{section}.{}", entry.key) };
        if is_given(&entry.node) {
            return !entry.node.is_null();
        }
        match fields::fate(section, entry) {
            Fate::Handle => {}
            Fate::Default => self.unknown.push(key),
            Fate::Asks(expected) => {
                let message = "a field of Megatron Bridge that has no setting here";
                let mut error = ConfigError::new(ErrorKind::UnknownKey, key, message)
                    .with_found_node(&entry.node)
                    .with_location(entry.node.location.clone())
                    .with_hint("remove the line if the run does not need it");
                error.expected = expected;
                self.errors.push(error);
            }
        }
        false
    }

    /// Leaves out settings with their default, and values that control something that Bridge does not have.
    fn drop_defaults(&mut self, sections: &mut [Entry]) {
        for field in RecipeConfig::fields() {
            let Some(inner) = (field.spec)().section_fields() else {
                continue;
            };
            let Some(section) = sections.iter_mut().find(|entry| entry.key == field.name) else {
                continue;
            };
            let name = section.key.clone();
            let Data::Table(entries) = &mut section.node.data else {
                continue;
            };
            entries.retain(|entry| {
                let field = inner.iter().find(|field| field.name == fields::canonical(&name, &entry.key));
                field.is_none_or(|field| is_given(&entry.node) || self.keeps(&name, field, entry))
            });
        }
    }

    fn keeps(&mut self, section: &str, field: &FieldSpec, entry: &Entry) -> bool {
        if fields::is_same(&entry.node, &field.default) {
            return false;
        }
        let Some(refusal) = &field.refusal else {
            return true;
        };
        let is_accepted = refusal.accepted(&field.default).iter().any(|value| fields::is_same(&entry.node, value));
        if is_accepted || !is_dropped(refusal, &entry.node) {
            return true;
        }
        let place = entry.node.location.as_ref().map_or_else(String::new, |place| format!(" ({place})"));
        let value = entry.node.to_inline();
        self.dropped.push(format!("{section}.{} = {value}{place}: {}", entry.key, refusal.message()));
        false
    }

    fn finish(self) -> Translated {
        let mut remarks = Vec::new();
        if !self.dropped.is_empty() {
            let head = "a configuration of Megatron Bridge; values that Bridge leaves out or handles differently:";
            remarks.push(format!("{head}\n  {}", self.dropped.join("\n  ")));
        }
        if !self.unknown.is_empty() {
            let head = "fields of Megatron Bridge without a setting here, each at its default or empty:";
            remarks.push(format!("{head} {}", self.unknown.join(", ")));
        }
        Translated { errors: self.errors, remarks }
    }
}

/// Whether a refused value may be left out: it controls something that Bridge does not have, or nobody asked for it.
fn is_dropped(refusal: &Refusal, value: &Node) -> bool {
    let is_upstreams = refusal.upstream.iter().any(|text| fields::is_same(value, &overrides::value_of(text)));
    refusal.is_without_counterpart() || is_upstreams
}
