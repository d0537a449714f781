//! Options of commands that read text.

use bridge_data::source::{SourceParams, TextFormat};
use clap::Args;

/// Which text is read.
#[derive(Debug, Args)]
pub struct TextInput {
    /// Text or JSON Lines files, globs, or `-` for standard input.
    #[arg(required = true)]
    inputs: Vec<String>,
    /// Globs of files to leave out.
    #[arg(long)]
    exclude: Vec<String>,
    /// Read files as JSON Lines and take the text from this key.
    #[arg(long)]
    jsonl_key: Option<String>,
    /// Use whole files as long as their total size is at most this many bytes.
    #[arg(long)]
    max_bytes: Option<u64>,
}

impl TextInput {
    /// The text, in the order of its files.
    pub fn params(&self) -> SourceParams {
        let format = match &self.jsonl_key {
            Some(key) => TextFormat::JsonLines { key: key.clone() },
            None => TextFormat::Auto,
        };
        SourceParams {
            inputs: self.inputs.clone(),
            exclude: self.exclude.clone(),
            format,
            max_bytes: self.max_bytes,
            shuffle_seed: None,
        }
    }
}
