//! Reading text: one value tree from TOML, YAML or JSON, with line and column of every value.
//! The meaning of the values does not belong here.

mod json;
mod lines;
mod toml;
mod yaml;

use std::path::Path;

pub(super) use lines::MAX_DEPTH;
pub(super) use toml::parse_value as parse_toml_value;

use bridge_data::untrusted_io;

use super::error::{ConfigError, ConfigErrors, ErrorKind};
use super::node::{Data, Location, Node};
use lines::Lines;

/// The notation of a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// TOML 1.0.
    Toml,
    /// YAML 1.2, one document.
    Yaml,
    /// JSON.
    Json,
}

impl Format {
    /// The format of a file, from its extension: `.toml`, `.yaml`, `.yml`, `.json`.
    pub fn of_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "toml" => Some(Self::Toml),
            "yaml" | "yml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Reads text into a tree; locations use `name`.
///
/// # Errors
/// The parser's messages with line and column, or that the text is not a table.
pub(super) fn parse(text: &str, format: Format, name: &str) -> Result<Node, ConfigErrors> {
    // Editors on Windows often put a byte-order mark first; no format counts it as content.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = Lines::new(text, name);
    let node = match format {
        Format::Toml => toml::parse(text, &lines),
        Format::Yaml => yaml::parse(text, &lines),
        Format::Json => json::parse(text, &lines),
    }?;
    match node.data {
        Data::Table(_) => Ok(node),
        _ => Err(ConfigError::new(ErrorKind::Syntax, "", "a recipe is a table of sections")
            .with_found_node(&node)
            .with_location(node.location)
            .into()),
    }
}

/// Reads a recipe file.
pub(super) fn parse_file(path: &Path) -> Result<Node, ConfigErrors> {
    let unreadable = |message: String| {
        let location = Location { source: path.display().to_string().into(), line: None, column: None };
        ConfigErrors::from(ConfigError::new(ErrorKind::Unreadable, "", message).with_location(Some(location)))
    };
    let format = Format::of_path(path)
        .ok_or_else(|| unreadable("a recipe's name ends in .toml, .yaml, .yml or .json".into()))?;
    let bytes = untrusted_io::read(path, untrusted_io::SETTINGS_BYTES)
        .map_err(|error| unreadable(format!("cannot be read: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        unreadable(format!("is not text: byte {offset} is not UTF-8"))
    })?;
    parse(&text, format, &path.display().to_string())
}
