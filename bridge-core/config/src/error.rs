//! Configuration errors: one record per problem, and the collection that every operation returns.
//!
//! Errors state key, place, found and expected value, and the nearest name. Sections and rules do
//! not belong here.

use std::fmt;

use serde::Serialize;

use super::node::{Location, Node};
use super::secrets::{REDACTED, is_secret_name, redacted};

/// The kind of problem that a [`ConfigError`] reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The file could not be read.
    Unreadable,
    /// The text is not valid TOML, YAML, JSON or `key=value`.
    Syntax,
    /// The key does not exist.
    UnknownKey,
    /// The value has the wrong type or is not one of the allowed names.
    WrongType,
    /// The value has the right type but is outside the allowed range.
    OutOfRange,
    /// A required value is missing.
    Missing,
    /// Two settings contradict each other.
    Conflict,
    /// The setting is understood, but this release does not implement it.
    NotImplemented,
}

/// One problem of a configuration.
#[derive(Clone, PartialEq, Serialize)]
pub struct ConfigError {
    /// Kind of the problem.
    pub kind: ErrorKind,
    /// Dotted path of the setting, such as `train.micro_batch_size`; empty for a problem of a whole
    /// file.
    pub key: String,
    /// Description of the problem in one sentence.
    pub message: String,
    /// Found value.
    pub found: Option<String>,
    /// Accepted values.
    pub expected: Option<String>,
    /// The file (or command-line argument), line and column.
    pub location: Option<Location>,
    /// The existing name closest to an unknown one.
    pub nearest: Option<String>,
    /// Remedy, if it is not obvious.
    pub hint: Option<String>,
    /// Dotted paths of the settings that an unknown name probably means.
    #[serde(skip)]
    pub(super) meant: Vec<String>,
    /// Written value, until advice has been given on it.
    #[serde(skip)]
    pub(super) written: Option<Node>,
}

impl ConfigError {
    /// A problem of `key`; the remaining fields are filled in by the `with_*` methods.
    pub fn new(kind: ErrorKind, key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind,
            key: key.into(),
            message: message.into(),
            found: None,
            expected: None,
            location: None,
            nearest: None,
            hint: None,
            meant: Vec::new(),
            written: None,
        }
    }

    /// Sets the found value.
    #[must_use]
    pub fn with_found(mut self, found: impl Into<String>) -> Self {
        let found = found.into();
        self.found = Some(if is_secret_name(&self.key) { REDACTED.into() } else { redacted(&found).into_owned() });
        self
    }

    /// Says which value was found, by its type and (shortened) text.
    #[must_use]
    pub fn with_found_node(self, node: &Node) -> Self {
        let found = node.describe();
        self.with_found(found)
    }

    /// Sets the accepted values.
    #[must_use]
    pub fn with_expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    /// Says where the setting was given.
    #[must_use]
    pub fn with_location(mut self, location: Option<Location>) -> Self {
        self.location = location.or(self.location);
        self
    }

    /// Sets the advice.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Names the candidate closest to `name`, if one is close enough to be a likely typing error.
    #[must_use]
    pub fn with_nearest<'a>(mut self, name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Self {
        self.nearest = nearest_name(name, candidates).map(str::to_owned);
        self
    }
}

impl ConfigError {
    /// An object with the fields of this type, `file` and `line` of the location, and in `hint`
    /// also the suggestion for an unknown name.
    pub fn to_json(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["file"] = serde_json::json!(self.location.as_ref().map(|at| at.source.as_ref()));
        value["line"] = serde_json::json!(self.location.as_ref().and_then(|at| at.line));
        value["hint"] = serde_json::json!(self.hint.clone().or_else(|| self.offer()));
        value
    }

    /// The problem in one sentence, for a line of its own.
    pub fn sentence(&self) -> String {
        let found = self.found.as_ref().map(|found| format!(" = {found}")).unwrap_or_default();
        let location = self.location.as_ref().map(|at| format!(" ({at})")).unwrap_or_default();
        format!("{}{found}: {}{location}", self.key, self.message)
    }

    /// Offer for an unknown name.
    fn offer(&self) -> Option<String> {
        let nearest = self.nearest.as_ref()?;
        match self.meant.as_slice() {
            [key] if key != nearest => Some(format!("did you mean `{nearest}`: {key}?")),
            _ => Some(format!("did you mean `{nearest}`?")),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            write!(f, "error: {}", self.message)?;
        } else {
            write!(f, "error: {}: {}", self.key, self.message)?;
        }
        if let Some(location) = &self.location {
            write!(f, "\n  --> {location}")?;
        }
        if let Some(found) = &self.found {
            write!(f, "\n  found:    {found}")?;
        }
        if let Some(expected) = &self.expected {
            write!(f, "\n  expected: {expected}")?;
        }
        if let Some(offer) = self.offer() {
            write!(f, "\n  {offer}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint:     {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Every problem found in one run over a configuration, in the order of discovery.
#[derive(Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ConfigErrors {
    errors: Vec<ConfigError>,
}

impl ConfigErrors {
    /// Adds one problem.
    pub fn push(&mut self, error: ConfigError) {
        self.errors.push(error);
    }

    /// `value` when nothing was collected, the problems otherwise.
    ///
    /// # Errors
    /// The collected problems themselves.
    pub fn into_result<T>(self, value: T) -> Result<T, Self> {
        if self.errors.is_empty() { Ok(value) } else { Err(self) }
    }

    /// The problems, in the order of discovery.
    pub fn iter(&self) -> std::slice::Iter<'_, ConfigError> {
        self.errors.iter()
    }

    /// Number of problems.
    pub fn len(&self) -> usize {
        self.errors.len()
    }

    /// True if there is no problem.
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// True if some problem is about `key` itself.
    pub fn names(&self, key: &str) -> bool {
        self.errors.iter().any(|error| error.key == key)
    }

    /// The problems as a JSON array of objects, see [`ConfigError::to_json`].
    pub fn to_json(&self) -> serde_json::Value {
        self.errors.iter().map(ConfigError::to_json).collect()
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self { errors: vec![error] }
    }
}

impl Extend<ConfigError> for ConfigErrors {
    fn extend<I: IntoIterator<Item = ConfigError>>(&mut self, errors: I) {
        self.errors.extend(errors);
    }
}

impl FromIterator<ConfigError> for ConfigErrors {
    fn from_iter<I: IntoIterator<Item = ConfigError>>(errors: I) -> Self {
        Self { errors: errors.into_iter().collect() }
    }
}

impl IntoIterator for ConfigErrors {
    type Item = ConfigError;
    type IntoIter = std::vec::IntoIter<ConfigError>;

    fn into_iter(self) -> Self::IntoIter {
        self.errors.into_iter()
    }
}

impl<'a> IntoIterator for &'a ConfigErrors {
    type Item = &'a ConfigError;
    type IntoIter = std::slice::Iter<'a, ConfigError>;

    fn into_iter(self) -> Self::IntoIter {
        self.errors.iter()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in &self.errors {
            writeln!(f, "{error}\n")?;
        }
        let plural = if self.errors.len() == 1 { "" } else { "s" };
        write!(f, "{} configuration error{plural}", self.errors.len())
    }
}

impl std::error::Error for ConfigErrors {}

/// The candidate most like `name`, unless none is similar enough to be the intended name.
pub(crate) fn nearest_name<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A name of several kilobytes is not a typing error, and comparing it would take quadratic
    // time. One letter is the beginning of too many.
    if name.len() > 100 || name.len() < 2 {
        return None;
    }
    let name = name.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            let lowered = candidate.to_lowercase();
            // The first measure favours common beginnings, the second sees swapped letters.
            let similarity = strsim::jaro_winkler(&name, &lowered)
                .max(strsim::normalized_damerau_levenshtein(&name, &lowered) + 0.1);
            (similarity, candidate)
        })
        .filter(|(similarity, _)| *similarity > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}
