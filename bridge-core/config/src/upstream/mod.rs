//! Configurations that Megatron Bridge saves (`run_config.yaml`): every field of every class, each
//! class with a `_target_`. They are converted to a recipe before it is read: objects become
//! values, classes become kinds, derived values are left out, and values without a counterpart here
//! are left out and listed. All other values are read and checked as in a recipe.

mod adapters;
mod classes;
mod datasets;
mod entries;
mod fields;
mod models;
mod values;
mod vocabulary;

use super::catalogue::row;
use super::error::{ConfigError, ConfigErrors, ErrorKind};
use super::node::{Data, Entry, Node};
use super::overrides;
use super::refusal::Refusal;
use super::section::Section;
use super::sections::RecipeConfig;
use super::spec::{Concerns, FieldSpec};
pub(super) use classes::classes_of;
use entries::{TARGET, fields_of, is_given};
use fields::Fate;
use values::Plain;

/// The outcome of a conversion besides the recipe.
#[derive(Debug, Default)]
pub(super) struct Translated {
    /// Problems: values that cannot be part of a recipe.
    pub errors: ConfigErrors,
    /// Remarks about omitted values.
    pub remarks: Vec<String>,
}

/// Settings of training that a model without a run needs too: its vocabulary and the length of its
/// sequences.
const OF_MODEL: [&str; 4] = ["vocab_size", "make_vocab_size_divisible_by", "should_pad_vocab", "seq_length"];

/// True for Sinkhorn balancing of experts, which also decides the weights of experts.
fn is_sinkhorn(entry: &Entry) -> bool {
    entry.key == "moe_router_load_balancing_type" && entry.node == Node::string("sinkhorn")
}

/// Leaves out the settings of an upstream configuration that do not determine the function of the
/// model; a recipe stays as it is. Returns `key = value` of settings that were left out and differ
/// from their default.
pub(super) fn keep_function(root: &mut Node) -> Vec<String> {
    let is_target = root.get(TARGET).is_some() || root.get("model").is_some_and(|model| model.get(TARGET).is_some());
    let Data::Table(sections) = &mut root.data else { return Vec::new() };
    if !is_target {
        return Vec::new();
    }
    let known = RecipeConfig::names();
    let mut left_out: Vec<String> = Vec::new();
    for section in sections.iter().filter(|section| section.key != "model" && known.contains(&section.key.as_str())) {
        if section.node.entries().is_some_and(|entries| !entries.is_empty()) {
            left_out.push(format!("[{}]", section.key));
        }
    }
    sections.retain(|section| section.key == "model" || section.key == TARGET);
    let Some(entries) = fields_of(sections, "model") else { return left_out };
    values::flatten(entries, "transformer");
    entries.retain(|entry| {
        let row = row(&format!("model.{}", entry.key)).map(|row| &row.field);
        let is_kept = match row.map(|row| row.concerns) {
            None | Some(Concerns::Function) => {
                row.is_none_or(|row| !row.refusal.as_ref().is_some_and(Refusal::is_optional))
            }
            Some(Concerns::Training) => OF_MODEL.contains(&entry.key.as_str()) || is_sinkhorn(entry),
            Some(Concerns::Execution) => false,
        };
        if !is_kept && row.is_some_and(|row| !fields::is_same(&entry.node, &row.default)) && !entry.node.is_null() {
            left_out.push(format!("model.{} = {}", entry.key, entry.node.to_inline()));
        }
        is_kept
    });
    left_out
}

/// Converts an upstream configuration to a recipe, in place; a recipe stays as it is. Command-line
/// values are settings of a recipe.
pub(super) fn translate(root: &mut Node) -> Translated {
    let sections = root.entries().unwrap_or_default();
    let is_upstream = root.get(TARGET).is_some() || sections.iter().any(|section| section.node.get(TARGET).is_some());
    let Data::Table(sections) = &mut root.data else { return Translated::default() };
    if !is_upstream {
        return Translated::default();
    }
    let mut translation = Translation::default();
    translation.container(sections);
    vocabulary::settings_of(sections);
    if let Err(error) = adapters::share_expert_adapters(sections) {
        translation.errors.push(*error);
    }
    for name in RecipeConfig::names() {
        if let Some(entries) = fields_of(sections, name) {
            translation.section(name, entries);
        }
    }
    fields::move_overlap(sections);
    translation.execution.extend(fields::drop_code_gathers(sections));
    fields::drop_derived(sections);
    translation.drop_defaults(sections);
    translation.finish()
}

#[derive(Default)]
struct Translation {
    errors: ConfigErrors,
    /// `key = value (place): reason` of each value that was left out.
    dropped: Vec<String>,
    /// `key = value` of each value that only asks for speed or memory.
    execution: Vec<String>,
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
        let nullable = |name: &str| row(name).is_some_and(|row| row.field.default.is_null());
        sections.retain(|entry| is_given(&entry.node) || !entry.node.is_null() || nullable(&entry.key));
    }

    fn section(&mut self, name: &str, entries: &mut Vec<Entry>) {
        if name == "model" {
            values::flatten(entries, "transformer");
        }
        fields::rename(name, entries);
        let class = self.class(name, entries);
        if let Some(class) = class {
            self.derive(name, &class, entries);
        }
        let mut kept = Vec::new();
        for mut entry in std::mem::take(entries) {
            let row = fields::row_of(name, &entry.key);
            let key = format!("{name}.{}", entry.key);
            if let (true, Data::Table(entries)) = (row.is_some_and(|row| row.is_section), &mut entry.node.data) {
                self.section(&key, entries);
                kept.push(entry);
                continue;
            }
            let is_kept = is_given(&entry.node)
                || match row {
                    Some(row) => self.value(&key, &row.field, &mut entry.node),
                    None => self.keeps_unknown(name, &entry),
                };
            if is_kept {
                kept.push(entry);
            }
        }
        *entries = kept;
    }

    /// Removes the class of a table, adds the class's settings, and returns its name.
    fn class(&mut self, section: &str, entries: &mut Vec<Entry>) -> Option<String> {
        let index = entries.iter().position(|entry| entry.key == TARGET)?;
        let target = entries.remove(index).node;
        let key = if section.is_empty() { TARGET.to_owned() } else { format!("{section}.{TARGET}") };
        let name = target.text().unwrap_or_default();
        match classes::find(section, name) {
            Err(expected) => {
                let error = ConfigError::new(ErrorKind::NotImplemented, key, classes::refusal(name))
                    .with_found_node(&target)
                    .with_expected(expected)
                    .with_location(target.location);
                self.errors.push(error);
                None
            }
            Ok(class) => {
                let filled = classes::fill(&class, entries, target.location.as_ref());
                if !filled.is_empty() {
                    self.dropped.push(format!("{key}: {filled}"));
                }
                Some(class.name)
            }
        }
    }

    /// Applies the rules that upstream keeps in the code of a class instead of in its fields.
    fn derive(&mut self, section: &str, class: &str, entries: &mut Vec<Entry>) {
        match section {
            "model" => match models::settings_of(class, entries) {
                Ok(remarks) => self.dropped.extend(remarks),
                Err(error) => self.errors.push(*error),
            },
            "dataset" => match datasets::settings_of(class, entries) {
                Ok(remarks) => self.dropped.extend(remarks),
                Err(error) => {
                    self.errors.push(*error);
                    // The other fields are about the data that was refused.
                    datasets::keep_shared(entries);
                }
            },
            "peft" => adapters::settings_of(class, entries),
            _ => {}
        }
    }

    /// Converts an object to a value; false to omit the entry.
    fn value(&mut self, key: &str, field: &FieldSpec, node: &mut Node) -> bool {
        match values::plain(key, node) {
            // Any value of this setting is omitted afterwards.
            Plain::Unknown(_) if field.refusal.as_ref().is_some_and(Refusal::is_optional) => {}
            Plain::Same => {}
            Plain::Value(data) => node.data = data,
            Plain::Unknown(target) if field.concerns == Concerns::Execution => {
                self.execution.push(format!("{key} = {target}"));
                return false;
            }
            Plain::Unknown(target) => {
                let error = ConfigError::new(ErrorKind::WrongType, key, "an object that stands for no value here")
                    .with_found(target)
                    .with_expected((field.spec)().to_string())
                    .with_location(node.location.clone());
                self.errors.push(error);
                return false;
            }
        }
        // Python's None means the default of a setting that cannot be null here.
        !node.is_null() || (field.spec)().accepts(node)
    }

    /// True if a field that is not a setting stays and becomes an unknown name.
    fn keeps_unknown(&mut self, section: &str, entry: &Entry) -> bool {
        let key = if section.is_empty() { entry.key.clone() } else { format!("{section}.{}", entry.key) };
        if is_given(&entry.node) {
            return !entry.node.is_null();
        }
        match fields::fate(section, entry) {
            Fate::Handle => {}
            Fate::Default => self.unknown.push(key),
            Fate::Execution => self.execution.push(format!("{key} = {}", entry.node.to_inline())),
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

    /// Leaves out settings with their default, and values that control something that Bridge does
    /// not have.
    fn drop_defaults(&mut self, sections: &mut [Entry]) {
        for name in RecipeConfig::names() {
            fields_of(sections, name).into_iter().for_each(|entries| self.drop_defaults_of(name, entries));
        }
    }

    /// Leaves them out of the section `name` and of the tables in it.
    fn drop_defaults_of(&mut self, name: &str, entries: &mut Vec<Entry>) {
        entries.retain_mut(|entry| {
            let Some(row) = fields::row_of(name, &entry.key).filter(|_| !is_given(&entry.node)) else { return true };
            if let (true, Data::Table(entries)) = (row.is_section, &mut entry.node.data) {
                self.drop_defaults_of(&format!("{name}.{}", entry.key), entries);
                return true;
            }
            self.keeps(name, &row.field, entry)
        });
    }

    fn keeps(&mut self, section: &str, field: &FieldSpec, entry: &Entry) -> bool {
        if fields::is_same(&entry.node, &field.default) {
            return false;
        }
        let Some(refusal) = &field.refusal else { return true };
        let is_accepted = refusal.accepted(&field.default).iter().any(|value| fields::is_same(&entry.node, value));
        if is_accepted || !is_dropped(refusal, &entry.node) {
            return true;
        }
        if refusal.is_execution_only() {
            self.execution.push(format!("{section}.{} = {}", entry.key, entry.node.to_inline()));
            return false;
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
        if !self.execution.is_empty() {
            let head =
                "fields of Megatron Bridge that only ask for speed or memory and are left out; results are the same:";
            remarks.push(format!("{head} {}", self.execution.join(", ")));
        }
        if !self.unknown.is_empty() {
            let head = "fields of Megatron Bridge without a setting here, each at its default or empty:";
            remarks.push(format!("{head} {}", self.unknown.join(", ")));
        }
        Translated { errors: self.errors, remarks }
    }
}

/// True if a refused value may be left out: it controls something that Bridge does not have, or it
/// is a default.
fn is_dropped(refusal: &Refusal, value: &Node) -> bool {
    let is_upstreams = refusal.upstream.iter().any(|text| fields::is_same(value, &overrides::value_of(text)));
    refusal.is_optional() || is_upstreams
}
