//! The table of what other programs call things: `aliases.toml`, and how it is searched.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

/// What something is called here.
#[derive(Clone, Debug, Default, Deserialize)]
pub(in super::super) struct Row {
    /// Names or values, separated by spaces.
    pub of: String,
    /// The setting, in rows of values.
    #[serde(default)]
    pub key: String,
    /// Settings, or assignments in the form of overrides; none if there is nothing like it.
    #[serde(default)]
    pub keys: Vec<String>,
    /// Whether the names say the opposite of the setting.
    #[serde(default, rename = "opposite")]
    pub is_opposite: bool,
    /// Where meaning or unit differ, or why there is nothing like it.
    #[serde(default)]
    pub note: String,
}

/// The whole table.
#[derive(Debug, Deserialize)]
pub(in super::super) struct Aliases {
    /// Rows of names.
    pub names: Vec<Row>,
    /// For one value in the place of a section: the setting that is meant.
    pub sections: BTreeMap<String, String>,
    /// Rows of values.
    pub values: Vec<Row>,
    /// Groups of words with one meaning; those of the last mean nothing.
    pub words: Vec<String>,
    /// Sections, by the tables that stand for them elsewhere.
    pub tables: BTreeMap<String, String>,
    /// Words before a name that say only which program it is of.
    pub programs: String,
}

/// Rows that are in a file of their own.
#[derive(Deserialize)]
struct More {
    names: Vec<Row>,
    values: Vec<Row>,
}

/// The table; it is part of the program.
pub(in super::super) static ALIASES: LazyLock<Aliases> = LazyLock::new(|| {
    let mut table: Aliases = toml::from_str(include_str!("aliases.toml")).expect("a test reads the table");
    let more: More = toml::from_str(include_str!("programs.toml")).expect("a test reads the table");
    table.names.extend(more.names);
    table.values.extend(more.values);
    table
});

impl Aliases {
    /// The row of the longest end of a path, of two parts at least, that the table has.
    pub fn path(&self, path: &[String]) -> Option<&Row> {
        (0..path.len().saturating_sub(1)).find_map(|start| self.name(&path[start..].join(".")))
    }

    /// The row of a name.
    pub fn name(&self, name: &str) -> Option<&Row> {
        self.names.iter().find(|row| row.names().any(|of_row| of_row == name))
    }

    /// The row of a setting's value.
    pub fn value(&self, key: &str, value: &str) -> Option<&Row> {
        let value = value.trim().to_lowercase();
        let mut rows = self.values.iter().filter(|row| row.key == key);
        rows.find(|row| row.of == "*" || row.names().any(|name| name == value || name == value.replace('-', "_")))
    }
}

impl Row {
    /// What it lists.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.of.split(' ')
    }

    /// What to write, split into setting and value.
    pub fn targets(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.keys.iter().map(|target| target.split_once('=').map_or((target.as_str(), None), |(k, v)| (k, Some(v))))
    }
}
