//! Reading and finalizing in one go. The rules of either step do not belong here.

use std::path::Path;

use super::error::{ConfigError, ConfigErrors, ErrorKind};
use super::kinds::Kinds;
use super::raw::RawConfig;
use super::run_config::{RunConfig, World};
use super::source::{self, Format};
use super::unread::Unread;

/// Reads and finalizes a recipe file, and reports the problems of both steps together.
///
/// # Errors
/// Every problem of syntax, names and types, and every violated rule that reads none of these
/// settings.
pub fn load(path: &Path, overrides: &[String], kinds: &Kinds, world: &World) -> Result<RunConfig, ConfigErrors> {
    load_with(path, overrides, kinds, world, &|_| Vec::new())
}

/// Loads like [`load`], with further checks by the caller for facts that only the program knows,
/// such as the compiled devices. The checks run on the parts that could be read.
///
/// # Errors
/// As [`load`], and the errors that `further` finds.
pub fn load_with(
    path: &Path,
    overrides: &[String],
    kinds: &Kinds,
    world: &World,
    further: &dyn Fn(&RawConfig) -> Vec<ConfigError>,
) -> Result<RunConfig, ConfigErrors> {
    let (raw, errors) = RawConfig::read_file(path, overrides, kinds);
    finish(&raw, errors, world, further)
}

/// As [`load`], from text.
///
/// # Errors
/// As [`load`].
pub fn load_text(
    text: &str,
    format: Format,
    overrides: &[String],
    kinds: &Kinds,
    world: &World,
) -> Result<RunConfig, ConfigErrors> {
    let (raw, errors) = RawConfig::read(source::parse(text, format, "recipe"), overrides, kinds);
    finish(&raw, errors, world, &|_| Vec::new())
}

fn finish(
    raw: &RawConfig,
    mut errors: ConfigErrors,
    world: &World,
    further: &dyn Fn(&RawConfig) -> Vec<ConfigError>,
) -> Result<RunConfig, ConfigErrors> {
    // A file that could not be parsed has no settings to check.
    let is_unread = |error: &ConfigError| {
        let is_of_file = error.location.as_ref().is_none_or(|at| !at.is_command_line());
        matches!(error.kind, ErrorKind::Syntax | ErrorKind::Unreadable) && is_of_file
    };
    if errors.iter().any(is_unread) {
        return Err(errors);
    }
    let unread = Unread::new(&errors, raw);
    let (config, found) = match raw.finalize(world) {
        Ok(config) => (Some(config), ConfigErrors::default()),
        Err(found) => (None, found),
    };
    let further = further(raw).into_iter().filter(|error| !found.names(&error.key)).collect::<Vec<_>>();
    errors.extend(found.into_iter().chain(further).filter(|error| !unread.concerns(error)));
    match config {
        Some(config) => errors.into_result(config),
        None => Err(errors),
    }
}
