//! The table of other programs' names for settings (`aliases.toml`), and its search.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde::Deserialize;

/// Name of a thing in Bridge.
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
    /// True if the names say the opposite of the setting.
    #[serde(default, rename = "opposite")]
    pub is_opposite: bool,
    /// Difference in meaning or unit, or the reason that there is no counterpart.
    #[serde(default)]
    pub note: String,
    /// Advice on false, null and other values that turn it off, if leaving it out does not.
    #[serde(default)]
    pub off: String,
    /// True for names of tables whose settings have no counterparts of their own.
    #[serde(default, rename = "table")]
    pub is_table: bool,
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
    /// Sections, by the corresponding tables of other programs.
    pub tables: BTreeMap<String, String>,
    /// Words before a name that say only which program it is of.
    pub programs: String,
    /// Places in `names` by each name that a row lists; the first row wins.
    #[serde(skip)]
    by_name: HashMap<String, usize>,
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
    for (place, row) in table.names.iter().enumerate() {
        for name in row.names() {
            table.by_name.entry(name.to_owned()).or_insert(place);
        }
    }
    table
});

impl Aliases {
    /// The row of the longest end of a path, of two parts at least, that the table has.
    pub fn path(&self, path: &[String]) -> Option<&Row> {
        (0..path.len().saturating_sub(1)).find_map(|start| self.name(&path[start..].join(".")))
    }

    /// The row of a name.
    pub fn name(&self, name: &str) -> Option<&Row> {
        self.by_name.get(name).map(|place| &self.names[*place])
    }

    /// The row of the family that a name belongs to: `hub_*` for all that begins so.
    pub fn family(&self, name: &str) -> Option<&Row> {
        self.names.iter().find(|row| row.names().any(|form| has_form(name, form)))
    }

    /// The row of a setting's value: by the value itself, by a form that it has, or the row of all
    /// values.
    pub fn value(&self, key: &str, value: &str) -> Option<&Row> {
        let lowered = value.trim().to_lowercase();
        let underscored = lowered.replace('-', "_");
        let rows = || self.values.iter().filter(move |row| row.key == key);
        let has_value_form = |form: &str| has_form(&lowered, form) || has_form(&underscored, form);
        let of_form = || rows().find(|row| row.names().any(has_value_form));
        self.exact_value(key, value).or_else(of_form).or_else(|| rows().find(|row| row.of == "*"))
    }

    /// The row that lists a setting's value.
    pub fn exact_value(&self, key: &str, value: &str) -> Option<&Row> {
        let lowered = value.trim().to_lowercase();
        let underscored = lowered.replace('-', "_");
        let mut rows = self.values.iter().filter(|row| row.key == key);
        rows.find(|row| row.of != "*" && row.names().any(|name| name == lowered || name == underscored))
    }
}

/// True if a text has a form such as `hub_*`, `*_8bit` or `*adam*`, where `*` is any text; a form
/// without `*` never matches.
fn has_form(text: &str, form: &str) -> bool {
    match (form.strip_prefix('*'), form.strip_suffix('*')) {
        _ if form == "*" => false,
        (Some(_), Some(_)) => text.contains(form.trim_matches('*')),
        (Some(end), None) => text.ends_with(end),
        (None, Some(start)) => text.starts_with(start),
        (None, None) => false,
    }
}

impl Row {
    /// Names of the row.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.of.split(' ')
    }

    /// Replacements, split into setting and value.
    pub fn targets(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.keys.iter().map(|target| target.split_once('=').map_or((target.as_str(), None), |(k, v)| (k, Some(v))))
    }
}
