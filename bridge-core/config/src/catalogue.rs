//! Every setting of a recipe by its dotted key, from the tables of the sections: the rows that
//! checks go through, and what this release says to using each.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::LazyLock;

use super::kinds::Kinds;
use super::node::Node;
use super::section::Section;
use super::sections::RecipeConfig;
use super::spec::{FieldSpec, Group};

/// Row of one setting, or of one section.
pub(super) struct Row {
    /// Dotted key.
    pub key: String,
    /// Row of the section's table.
    pub field: FieldSpec,
    /// True if this is a table of settings.
    pub is_section: bool,
}

/// All rows in the order of their declaration; a section follows its settings.
pub(super) static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let mut rows = Vec::new();
    add(RecipeConfig::fields(), "", &mut rows);
    rows
});

static BY_KEY: LazyLock<HashMap<&str, &Row>> =
    LazyLock::new(|| ROWS.iter().map(|row| (row.key.as_str(), row)).collect());

fn add(fields: Vec<FieldSpec>, prefix: &str, rows: &mut Vec<Row>) {
    for field in fields {
        let key = format!("{prefix}{}", field.name);
        let inner = (field.spec)().section_fields();
        let is_section = inner.is_some();
        add(inner.unwrap_or_default(), &format!("{key}."), rows);
        rows.push(Row { key, field, is_section });
    }
}

/// The row of a key.
pub(super) fn row(key: &str) -> Option<&'static Row> {
    BY_KEY.get(key).copied()
}

/// A row, for a recipe that chose its kinds of model and dataset.
pub(super) struct Setting {
    row: &'static Row,
    /// Why it cannot be used with the chosen kinds, whatever its value.
    pub refused: Option<String>,
}

impl Deref for Setting {
    type Target = Row;

    fn deref(&self) -> &Row {
        self.row
    }
}

impl Row {
    /// Last component of the key.
    pub fn name(&self) -> &'static str {
        self.field.name
    }

    /// True if this is a setting of `[model]` that every kind of model has.
    pub fn is_of_every_kind(&self) -> bool {
        self.field.groups.contains(&Group::EveryKind)
    }

    /// The section that it is in; empty at the top level.
    pub fn section(&self) -> &str {
        self.key.rsplit_once('.').map_or("", |(section, _)| section)
    }
}

/// All settings and sections, the outer ones first, for a recipe that chose these kinds of model
/// and dataset.
pub(super) fn settings(kinds: &Kinds, root: &Node) -> Vec<Setting> {
    let chosen = |key: &str| root.get_path(key).map(|node| node.to_inline().trim_matches(['"', '\'']).to_owned());
    let model = chosen("model.kind").unwrap_or_else(|| "gpt".into());
    let setting = |row| Setting { row, refused: refusal(kinds, &model, row) };
    let mut all: Vec<Setting> = ROWS.iter().map(setting).collect();
    all.sort_by_key(|setting| setting.key.matches('.').count());
    all
}

/// Why a setting cannot be used with a kind of model, whatever its value.
fn refusal(kinds: &Kinds, model: &str, row: &Row) -> Option<String> {
    if let (Some(name), Some(kind)) = (row.key.strip_prefix("model."), kinds.model.get(model))
        && let Some(listed) = &kind.settings
    {
        let is_listed = row.is_of_every_kind() || listed.iter().any(|listed| listed == name);
        return (!is_listed).then(|| format!("model.kind = {model:?} does not have this setting"));
    }
    row.field.refusal.as_ref().filter(|refusal| refusal.is_whole()).map(super::Refusal::message)
}
