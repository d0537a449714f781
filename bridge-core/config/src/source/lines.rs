//! Code that the parsers of all formats share: the locations of a text, and the limit of nesting.

use std::sync::Arc;

use super::super::error::{ConfigError, ErrorKind};
use super::super::node::Location;

/// No recipe is nested deeper than this; the limit prevents a stack overflow by recursion.
pub(in super::super) const MAX_DEPTH: usize = 64;

/// Turns offsets of a text into locations.
pub(super) struct Lines {
    source: Arc<str>,
    text: Box<str>,
    starts: Vec<usize>,
}

impl Lines {
    pub fn new(text: &str, name: &str) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let starts = std::iter::once(0).chain(newlines.map(|(index, _)| index + 1));
        Self { source: name.into(), text: text.into(), starts: starts.collect() }
    }

    /// The location of a byte offset.
    pub fn at_byte(&self, offset: usize) -> Location {
        let line = self.starts.partition_point(|start| *start <= offset).max(1);
        let start = self.starts[line - 1];
        let before = self.text.get(start..offset).unwrap_or("");
        self.at(line, before.chars().count() + 1)
    }

    /// The location of a 1-based line and column.
    pub fn at(&self, line: usize, column: usize) -> Location {
        Location { source: self.source.clone(), line: Some(line), column: Some(column) }
    }

    pub fn syntax_error(&self, message: impl Into<String>, location: Location) -> ConfigError {
        ConfigError::new(ErrorKind::Syntax, "", message).with_location(Some(location))
    }
}
