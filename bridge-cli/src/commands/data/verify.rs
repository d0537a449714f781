//! `bridge data verify`: compares every byte of prepared data with the checksums in its record.

use std::path::PathBuf;

use bridge_core::train::dataset_prefix;
use bridge_data::indexed::{BinAccess, IndexedDataset};
use bridge_data::manifest::{self, Depth};
use bridge_data::tokenizer::{HuggingFaceTokenizer, Tokenizer};
use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::output::line;

/// Files to verify.
#[derive(Debug, Args)]
pub struct Verify {
    /// Prefix of a `.bin`/`.idx` pair, one of the two files, or the folder of a tokenizer.
    path: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(verify: &Verify) -> Result<u8, Failure> {
    let is_tokenizer = verify.path.join("tokenizer.json").exists();
    let output = if is_tokenizer { verify.path.join("tokenizer") } else { dataset_prefix(&verify.path) };
    let files = manifest::check(&output, Depth::Whole).map_err(Failure::input)?;
    let content = if is_tokenizer {
        format!("{} tokens", HuggingFaceTokenizer::load(&verify.path).map_err(Failure::input)?.vocab_size())
    } else {
        let dataset = IndexedDataset::open(&output, BinAccess::Mmap).map_err(Failure::input)?;
        format!("{} sequences, {} tokens", dataset.len(), dataset.num_tokens())
    };
    if verify.json {
        line(&json!({ "path": verify.path, "content": content, "files_with_checksum": files }).to_string());
        return Ok(0);
    }
    let vouched = match files {
        0 => "no record of Bridge is beside it: its form was checked, not its bytes".to_owned(),
        files => format!("every byte of {files} files is as it was written"),
    };
    line(&format!("{}: {content}; {vouched}", verify.path.display()));
    Ok(0)
}
