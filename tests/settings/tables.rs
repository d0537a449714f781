//! Compares the rows with the tables of the configuration: accepted settings have rows for all
//! their values, refused settings have none, and values that the tables call inert have no effect.

use std::collections::{BTreeMap, BTreeSet};

use bridge_core::config::{FieldSpec, Node, RawConfig, RecipeConfig, Section, TypeSpec};
use bridge_models::registry;

use super::contexts::tiny;
use super::row::Row;
use super::rows;

/// A setting of the tables with its dotted key.
struct Setting {
    key: String,
    field: FieldSpec,
}

/// Every setting, without those of sections that are refused as a whole.
fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    walk(RecipeConfig::fields(), "", &mut settings);
    settings
}

fn walk(fields: Vec<FieldSpec>, path: &str, settings: &mut Vec<Setting>) {
    for field in fields {
        let key = if path.is_empty() { field.name.to_owned() } else { format!("{path}.{}", field.name) };
        let spec = (field.spec)();
        let inner = if field.refusal.is_none() { spec.section_fields() } else { None };
        let is_setting = inner.is_none() || has_word(&spec);
        if let Some(inner) = inner {
            walk(inner, &key, settings);
        }
        if is_setting {
            settings.push(Setting { key, field });
        }
    }
}

/// True if a section can be written as a word as well.
fn has_word(spec: &TypeSpec) -> bool {
    match spec {
        TypeSpec::String => true,
        TypeSpec::Nullable(inner) => has_word(inner),
        TypeSpec::OneOf(options) => options.iter().any(has_word),
        _ => false,
    }
}

impl Setting {
    /// True if some value besides the default has an effect.
    fn is_accepted(&self) -> bool {
        self.field.refusal.as_ref().is_none_or(|refusal| !refusal.is_whole())
    }

    /// True if no value has an effect and none is refused.
    fn is_inert(&self) -> bool {
        self.field.refusal.as_ref().is_some_and(|refusal| refusal.is_inert(&self.field))
    }

    /// Values that rows must try, as overrides write them: both values of a switch, every accepted
    /// choice.
    fn values(&self) -> BTreeSet<String> {
        let names = names_of(&(self.field.spec)());
        match &self.field.refusal {
            None => names.into_iter().collect(),
            Some(refusal) => {
                let built = refusal.built.iter().map(|value| (*value).to_owned());
                let default = self.field.default.to_inline().trim_matches('"').to_owned();
                built.chain(names.into_iter().filter(|name| *name == default)).collect()
            }
        }
    }
}

/// Settings that the table of `[model]` refuses and that a built-in kind of model supports: the
/// kind and the key.
fn lifted(settings: &[Setting]) -> BTreeSet<(String, String)> {
    let kinds = registry().kinds().model;
    let mut lifted = BTreeSet::new();
    for name in kinds.names() {
        let listed = kinds.get(name).and_then(|kind| kind.settings.clone()).unwrap_or_default();
        let keys = listed.into_iter().map(|setting| format!("model.{setting}"));
        let is_refused =
            |key: &String| settings.iter().any(|s| s.key == *key && s.field.refusal.is_some() && !s.is_inert());
        lifted.extend(keys.filter(is_refused).map(|key| (name.to_owned(), key)));
    }
    lifted
}

/// The kind of model that a row runs.
fn kind_of(row: &Row) -> String {
    let run = row.run_of(0);
    let settings: Vec<String> = run.overrides().iter().filter(|text| !text.starts_with("--")).cloned().collect();
    let raw = RawConfig::from_file(&run.recipe(), &settings, &registry().kinds()).expect("rows can be read");
    raw.recipe().model.kind.clone()
}

/// The values of a type that has few.
fn names_of(spec: &TypeSpec) -> Vec<String> {
    match spec {
        TypeSpec::Bool => vec!["false".into(), "true".into()],
        TypeSpec::Choice(names) => names.iter().map(|name| (*name).to_owned()).collect(),
        TypeSpec::Nullable(inner) => names_of(inner),
        _ => Vec::new(),
    }
}

/// The value that a row tries at a place, in the words of the tables.
fn tried(row: &Row, place: usize) -> String {
    let run = row.run_of(place);
    // The rest are options of the command.
    let settings: Vec<String> = run.overrides().iter().filter(|text| !text.starts_with("--")).cloned().collect();
    let raw = RawConfig::from_file(&run.recipe(), &settings, &registry().kinds()).expect("rows can be read");
    let root = raw.recipe().to_node();
    let value = root.get_path(row.key).cloned().unwrap_or_else(Node::null);
    value.to_inline().trim_matches('"').to_owned()
}

#[test]
fn rows_and_tables_agree() {
    let rows = rows::all();
    let mut tried_of: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for row in &rows {
        tried_of.entry(row.key).or_default().extend((0..row.values.len()).map(|place| tried(row, place)));
    }
    let mut problems = Vec::new();
    let settings = settings();
    for setting in settings.iter().filter(|setting| setting.is_accepted()) {
        match tried_of.get(setting.key.as_str()) {
            None => problems.push(format!("{}: accepted, and no row shows that it does anything", setting.key)),
            Some(tried) => {
                let missing: Vec<_> = setting.values().difference(tried).cloned().collect();
                if !missing.is_empty() {
                    problems.push(format!("{}: no row tries {}", setting.key, missing.join(", ")));
                }
            }
        }
    }
    let lifted = lifted(&settings);
    assert!(lifted.len() > 5, "t5 has settings of its own: {lifted:?}");
    for (kind, key) in &lifted {
        if !rows.iter().any(|row| row.key == key && kind_of(row) == *kind) {
            problems.push(format!("{key}: of kind {kind}, and no row of that kind shows that it does anything"));
        }
    }
    let is_lifted = |key: &str| lifted.iter().any(|(_, lifted)| lifted == key);
    for key in tried_of.keys() {
        match settings.iter().find(|setting| setting.key == *key) {
            None => problems.push(format!("{key}: has a row, and is no setting")),
            Some(setting) if !setting.is_accepted() && !is_lifted(key) => {
                problems.push(format!("{key}: has a row, and is refused or inert"))
            }
            Some(_) => {}
        }
    }
    assert!(settings.len() > 400, "the walk finds {} settings", settings.len());
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn what_is_called_inert_moves_nothing() {
    let seen = tiny().observe();
    for setting in settings().iter().filter(|setting| setting.is_inert()) {
        for value in names_of(&(setting.field.spec)()) {
            let other = tiny().with(&[&format!("{}={value}", setting.key)]).observe();
            let moved: Vec<_> = seen.names().filter(|name| seen.get(name) != other.get(name)).collect();
            assert!(moved.is_empty(), "{} = {value} moves {moved:?}", setting.key);
        }
    }
}
