//! Output style of commands: verbosity (`-q`, `-v`), and the form of errors (`--json`).

use std::ffi::OsString;

use bridge_core::logging::Verbosity;
use clap::Args;
use serde_json::Value;

use crate::output::line;

/// The options that every command has.
#[derive(Clone, Copy, Debug, Args)]
pub struct Speech {
    /// Say less: no notes and no progress, only results, warnings and errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Say more: while training, the configuration and lines with all figures.
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Print JSON: results and errors.
    #[arg(long, global = true)]
    json: bool,
}

/// Form of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorForm {
    /// Text on standard error.
    Text,
    /// One JSON object on standard output, where programs read results.
    Json,
}

impl Speech {
    /// Verbosity of the command.
    pub fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        }
    }

    /// Prints the result of a command, for people or for programs.
    pub fn result(&self, text: impl FnOnce() -> String, json: impl FnOnce() -> Value) {
        line(&if self.json { json().to_string() } else { text() });
    }

    /// Form of errors.
    pub fn error_form(&self) -> ErrorForm {
        if self.json { ErrorForm::Json } else { ErrorForm::Text }
    }
}

impl ErrorForm {
    /// Form of errors for a command line that could not be parsed.
    pub fn from_arguments(mut arguments: impl Iterator<Item = OsString>) -> Self {
        if arguments.any(|argument| argument == "--json") { Self::Json } else { Self::Text }
    }
}
