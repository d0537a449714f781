//! The reader of a value tree, which collects every problem and where each setting was given. The
//! values of one type belong to `field`, those of a table to `section`.

use std::collections::BTreeMap;

use super::error::{ConfigError, ConfigErrors, ErrorKind};
use super::kinds::Kinds;
use super::node::{Data, Entry, Location, Node};
use super::spec::TypeSpec;

/// Unknown names of a recipe that get advice. A text with more of them is not a recipe.
pub(super) const MOST_ADVISED: usize = 1000;

/// Explicit settings and their places: dotted path to location.
pub type Origins = BTreeMap<String, Option<Location>>;

/// Place of a setting, or of the closest table around it.
pub(crate) fn locate(origins: &Origins, key: &str) -> Option<Location> {
    let mut key = key;
    loop {
        if let Some(location) = origins.get(key) {
            return location.clone();
        }
        key = key.rsplit_once('.')?.0;
    }
}

/// Reads settings from a value tree: knows its current path, and collects problems and origins.
#[derive(Debug)]
pub struct Reader<'k> {
    /// The kinds of model and dataset that may be chosen.
    pub(crate) kinds: &'k Kinds,
    path: Vec<String>,
    errors: ConfigErrors,
    origins: Origins,
    /// Unknown names so far.
    num_unknown: usize,
}

impl<'k> Reader<'k> {
    /// A reader at the root.
    pub fn new(kinds: &'k Kinds) -> Self {
        Self { kinds, path: Vec::new(), errors: ConfigErrors::default(), origins: Origins::new(), num_unknown: 0 }
    }

    /// Collected origins and errors.
    pub(crate) fn finish(self) -> (Origins, ConfigErrors) {
        (self.origins, self.errors)
    }

    /// Runs `read` one level deeper.
    pub(crate) fn inside<T>(&mut self, key: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(key.to_owned());
        let result = read(self);
        self.path.pop();
        result
    }

    /// Runs `read` for one entry of a section and notes where the setting was given.
    pub(crate) fn field(&mut self, entry: &Entry, name: &str, read: impl FnOnce(&mut Self) -> bool) -> bool {
        self.inside(name, |reader| {
            let known = read(reader);
            let is_given = !matches!(entry.node.data, Data::Unset);
            if known && is_given {
                let location = entry.node.location.clone();
                reader.origins.insert(reader.path.join("."), location);
            }
            known
        })
    }

    /// Reports a value of the wrong type. Unsetting on the command line is not a problem.
    pub(crate) fn wrong_type<T>(&mut self, node: &Node, expected: &TypeSpec) -> Option<T> {
        if matches!(node.data, Data::Unset) {
            return None;
        }
        let mut error = self.error(ErrorKind::WrongType, "wrong type", node).with_expected(expected.to_string());
        error.written = Some(node.clone());
        if let (Data::String(text), TypeSpec::Choice(names)) = (&node.data, expected) {
            error.message = "unknown name".into();
            error = error.with_nearest(text, names.iter().copied());
        }
        self.errors.push(error);
        None
    }

    /// Reports a number that the type cannot hold.
    pub(crate) fn out_of_range<T>(&mut self, node: &Node, expected: &str) -> Option<T> {
        let mut error = self.error(ErrorKind::OutOfRange, "out of range", node).with_expected(expected);
        error.written = Some(node.clone());
        self.errors.push(error);
        None
    }

    /// Reports a name that does not exist.
    pub(crate) fn unknown<'a>(&mut self, entry: &Entry, names: impl IntoIterator<Item = &'a str>) {
        let error = self.inside(&entry.key, |reader| {
            let mut error = reader.error(ErrorKind::UnknownKey, "unknown setting", &entry.node);
            error.location = entry.key_location.clone().or(error.location);
            error.found = None;
            error.written = Some(entry.node.clone());
            reader.num_unknown += 1;
            if reader.num_unknown > MOST_ADVISED { error } else { error.with_nearest(&entry.key, names) }
        });
        let meant = self.meant(&error, entry);
        self.errors.push(ConfigError { meant, ..error });
    }

    /// The settings that an unknown name probably means: its nearest name, or the content of a
    /// misspelt table.
    fn meant(&self, error: &ConfigError, entry: &Entry) -> Vec<String> {
        let Some(nearest) = &error.nearest else { return Vec::new() };
        let path = self.path.iter().chain([nearest]).map(String::as_str).collect::<Vec<_>>().join(".");
        match entry.node.entries() {
            Some(entries) => entries.iter().map(|entry| format!("{path}.{}", entry.key)).collect(),
            None => vec![path],
        }
    }

    pub(crate) fn repeated(&mut self, entry: &Entry) {
        let error =
            self.inside(&entry.key, |reader| reader.error(ErrorKind::Conflict, "given more than once", &entry.node));
        self.errors.push(error);
    }

    /// Adds a problem that the caller described.
    pub(crate) fn push(&mut self, error: ConfigError) {
        self.errors.push(error);
    }

    /// A problem at the current path, not yet added.
    pub(crate) fn error(&self, kind: ErrorKind, message: &str, node: &Node) -> ConfigError {
        ConfigError::new(kind, self.path.join("."), message).with_found_node(node).with_location(node.location.clone())
    }
}
