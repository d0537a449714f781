//! `bridge tokenizer`: trains a byte-level BPE tokenizer.

use std::path::PathBuf;

use bridge_core::train::Bar;
use bridge_data::pack::train_tokenizer;
use bridge_data::source::TextSource;
use bridge_data::tokenizer::{BpeTrainParams, Tokenizer};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use serde_json::json;

use super::text_input::TextInput;
use crate::failure::Failure;
use crate::overwrite::Force;
use crate::progress;
use crate::speech::Speech;

/// Action on tokenizers.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a byte-level BPE tokenizer on text.
    Train(Train),
}

/// Text and size of a vocabulary.
#[derive(Debug, Args)]
pub struct Train {
    #[command(flatten)]
    text: TextInput,
    /// Folder to write tokenizer.json to.
    #[arg(long, short)]
    output: PathBuf,
    /// Number of tokens, including the 256 bytes and special tokens.
    #[arg(long, default_value_t = 32_000, value_parser = RangedU64ValueParser::<usize>::new().range(257..=1 << 24))]
    vocab_size: usize,
    /// Pairs that are less frequent are not merged.
    #[arg(long, default_value_t = 2)]
    min_frequency: u64,
    #[command(flatten)]
    force: Force,
    /// Further special tokens.
    #[arg(long)]
    special_token: Vec<String>,
}

/// Runs the command.
pub fn run(command: &Command, speech: &Speech) -> Result<u8, Failure> {
    let Command::Train(train) = command;
    let source = TextSource::resolve(&train.text.params()).map_err(Failure::input)?;
    train.text.is_apart(train.force, &train.output)?;
    let params = BpeTrainParams {
        vocab_size: train.vocab_size,
        min_frequency: train.min_frequency,
        special_tokens: train.special_token.clone(),
    };
    let sink = progress::visible(speech.verbosity());
    let trained = train_tokenizer(
        &source,
        &params,
        &train.output,
        train.force.overwrite(),
        &Bar::new("training tokenizer", &sink),
    )
    .map_err(Failure::input)?;
    let verb = if trained.reused { "unchanged, reusing" } else { "trained" };
    let path = train.output.join("tokenizer.json");
    let size = trained.tokenizer.vocab_size();
    speech.result(
        || format!("{}: {verb} {size} tokens", path.display()),
        || json!({ "tokenizer": path, "tokens": size, "reused": trained.reused }),
    );
    if size < train.vocab_size {
        eprintln!(
            "warning: {} tokens were requested; the text has no further pair of tokens that occurs {} times \
             (--min-frequency)",
            train.vocab_size, train.min_frequency
        );
    }
    Ok(0)
}
