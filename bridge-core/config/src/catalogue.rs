//! Every setting of a recipe by its dotted key, from the tables of the sections: the rows that
//! checks go through, and what this release says to using each.

use std::collections::HashMap;
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

/// All rows, those of outer tables first.
pub(super) static SETTINGS: LazyLock<Vec<&Row>> = LazyLock::new(|| {
    let mut settings: Vec<_> = ROWS.iter().collect();
    settings.sort_by_key(|row| row.key.matches('.').count());
    settings
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

    /// Why the setting cannot be used in a recipe of these values, whatever its own: because of the
    /// kind of model, or in any.
    pub fn refused(&self, kinds: &Kinds, root: &Node) -> Option<String> {
        let model = root.get_path("model.kind").map_or_else(|| "gpt".into(), Node::to_inline);
        let model = model.trim_matches(['"', '\'']);
        if let (Some(name), Some(kind)) = (self.key.strip_prefix("model."), kinds.model.get(model))
            && let Some(listed) = &kind.settings
        {
            let is_listed = self.is_of_every_kind() || listed.iter().any(|listed| listed == name);
            return (!is_listed).then(|| format!("model.kind = {model:?} does not have this setting"));
        }
        self.field.refusal.as_ref().filter(|refusal| refusal.is_whole()).map(super::Refusal::message)
    }
}
