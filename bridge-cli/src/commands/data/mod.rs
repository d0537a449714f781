//! `bridge data build` and `bridge data inspect`. The submodules print samples and conversations.

mod paint;
mod render;
mod show;
mod verify;

use std::path::{Path, PathBuf};

use bridge_core::logging::Verbosity;
use bridge_core::train::{Bar, dataset_prefix};
use bridge_data::indexed::{BinAccess, IndexedDataset};
use bridge_data::pack::{DocumentEnd, PackParams, pack};
use bridge_data::source::{SourceParams, TextSource};
use bridge_data::tokenizer::{HuggingFaceTokenizer, NullTokenizer, Tokenizer};
use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use serde_json::json;

use render::Render;
use show::Samples;

use super::text_input::TextInput;
use crate::failure::Failure;
use crate::output::line;
use crate::overwrite::Force;
use crate::progress;

/// Action on data.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Tokenize text into a `.bin`/`.idx` pair.
    Build(Build),
    /// Describe a `.bin`/`.idx` pair, and check it.
    Inspect(Inspect),
    /// Compare every byte of packed text, or of a trained tokenizer, with its checksum.
    Verify(verify::Verify),
    /// Print the token ids of samples of a recipe's dataset.
    Samples(Samples),
    /// Print samples of a recipe's dataset as text, with the tokens that count for the loss marked.
    Show(Samples),
    /// Print conversations as a chat template writes them: token ids, and which of them the
    /// assistant says.
    Render(Render),
}

/// Tokenize text.
#[derive(Debug, Args)]
pub struct Build {
    #[command(flatten)]
    text: TextInput,
    /// Prefix of the files to write.
    #[arg(long, short)]
    output: PathBuf,
    /// tokenizer.json, or a folder with one.
    #[arg(long, required_unless_present = "null_vocab_size")]
    tokenizer: Option<PathBuf>,
    /// Text is token ids below this number, separated by spaces.
    #[arg(long, conflicts_with = "tokenizer", value_parser = RangedU64ValueParser::<usize>::new().range(1..1 << 31))]
    null_vocab_size: Option<usize>,
    /// Shuffle documents with this seed.
    #[arg(long)]
    shuffle_seed: Option<u32>,
    /// Do not end documents with the end-of-document token.
    #[arg(long)]
    no_eod: bool,
    #[command(flatten)]
    force: Force,
    /// Threads; all cores by default.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    threads: Option<usize>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Describe a dataset.
#[derive(Debug, Args)]
pub struct Inspect {
    /// Prefix, or one of the two files.
    prefix: PathBuf,
    /// Print the tokens of the first N sequences.
    #[arg(long, default_value_t = 0)]
    show: usize,
    /// Decode them with this tokenizer.
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// Write an identical pair at this prefix.
    #[arg(long)]
    rewrite: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(command: &Command, verbosity: Verbosity) -> Result<u8, Failure> {
    match command {
        Command::Build(build) => run_build(build, verbosity),
        Command::Inspect(inspect) => run_inspect(inspect),
        Command::Verify(verify) => verify::run(verify),
        Command::Samples(samples) => show::run_samples(samples),
        Command::Show(samples) => show::run_show(samples),
        Command::Render(render) => render::run(render),
    }
}

fn run_build(build: &Build, verbosity: Verbosity) -> Result<u8, Failure> {
    let tokenizer: Box<dyn Tokenizer> = match (&build.tokenizer, build.null_vocab_size) {
        (Some(path), _) => Box::new(HuggingFaceTokenizer::load(path).map_err(Failure::input)?),
        (None, Some(size)) => Box::new(NullTokenizer::new(size)),
        (None, None) => return Err(Failure::input("--tokenizer: expected a tokenizer.json, found none")),
    };
    let params = SourceParams { shuffle_seed: build.shuffle_seed, ..build.text.params() };
    let source = TextSource::resolve(&params).map_err(Failure::input)?;
    build.text.is_apart(build.force, &build.output)?;
    let sink = progress::visible(verbosity);
    let report = pack(&PackParams {
        source: &source,
        tokenizer: tokenizer.as_ref(),
        output_prefix: &dataset_prefix(&build.output),
        overwrite: build.force.overwrite(),
        document_end: if build.no_eod { DocumentEnd::Nothing } else { DocumentEnd::EndOfDocument },
        num_threads: build.threads,
        progress: &Bar::new("packing text", &sink),
    })
    .map_err(Failure::input)?;
    if build.json {
        let mut value = serde_json::to_value(&report).map_err(Failure::run)?;
        value["reused"] = json!(report.reused);
        line(&value.to_string());
    } else {
        line(&report.to_string());
        if !report.reused && report.seconds > 0.0 {
            line(&format!("{:.1} MB/s", report.bytes as f64 / 1e6 / report.seconds));
        }
    }
    Ok(0)
}

fn run_inspect(inspect: &Inspect) -> Result<u8, Failure> {
    let prefix = dataset_prefix(&inspect.prefix);
    let dataset = IndexedDataset::open(&prefix, BinAccess::Mmap).map_err(Failure::input)?;
    let lengths = || dataset.lengths().map(u64::from);
    let report = json!({
        "prefix": prefix,
        "dtype": dataset.dtype().name(),
        "sequences": dataset.len(),
        "documents": dataset.num_documents(),
        "tokens": dataset.num_tokens(),
        "bytes": dataset.bin_bytes(),
        "shortest": lengths().min(),
        "longest": lengths().max(),
    });
    if inspect.json {
        line(&report.to_string());
    } else {
        for (key, value) in report.as_object().into_iter().flatten() {
            line(&format!("{key:<10} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
        }
    }
    if let Some(output) = &inspect.rewrite {
        rewrite(&dataset, output)?;
    }
    let tokenizer = match &inspect.tokenizer {
        Some(path) => Some(HuggingFaceTokenizer::load(path).map_err(Failure::input)?),
        None => None,
    };
    for i in 0..inspect.show.min(dataset.len()) {
        let tokens = dataset.sequence(i).map_err(Failure::input)?;
        let text = tokenizer.as_ref().and_then(|t| t.decode(&tokens).ok());
        line(&json!({ "sequence": i, "tokens": tokens, "text": text }).to_string());
    }
    Ok(0)
}

/// Writes the same dataset again, through the builder.
fn rewrite(dataset: &IndexedDataset, output: &Path) -> Result<(), Failure> {
    use bridge_data::indexed::IndexedDatasetBuilder;
    let mut builder = IndexedDatasetBuilder::create(dataset_prefix(output), dataset.dtype()).map_err(Failure::input)?;
    for document in 0..dataset.num_documents() {
        for sequence in dataset.document(document).into_iter().flatten() {
            builder.add_item(&dataset.sequence(sequence).map_err(Failure::input)?).map_err(Failure::input)?;
        }
        builder.end_document();
    }
    builder.finalize().map_err(Failure::input)
}
