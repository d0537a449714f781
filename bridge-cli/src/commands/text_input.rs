//! Options of commands that read text.

use std::path::Path;

use bridge_data::source::{SourceParams, TextFormat};
use clap::Args;

use crate::failure::Failure;
use crate::overwrite::Force;

/// Text to read.
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
    /// Refuses an output that the next run would read as text: one that an input names, or that
    /// lies in a folder which is one.
    pub fn is_apart(&self, force: Force, output: &Path) -> Result<(), Failure> {
        let inputs = self.inputs.iter().map(Path::new);
        inputs.filter(|input| input.exists()).try_for_each(|input| force.outside(input, output))
    }

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
