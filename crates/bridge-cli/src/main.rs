//! `bridge`: the command line. Parsing and printing only; what the commands do is in the library crates.
#![recursion_limit = "256"]

mod commands;
mod failure;
mod model_source;
mod output;
mod progress;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use commands::{bench, config, convert, data, eval, generate, tokenizer, train, verify};

/// Steps of training reuse their large buffers instead of asking the kernel for them each time.
#[global_allocator]
static ALLOCATOR: bridge_kernels::memory::LargeBlocks = bridge_kernels::memory::LargeBlocks::new();

/// Train and fine-tune language models.
#[derive(Debug, Parser)]
#[command(name = "bridge", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a recipe.
    Train(train::Arguments),
    /// Loss, perplexity and bits per byte of a checkpoint or a Hugging Face folder.
    Eval(eval::Arguments),
    /// Continue a text with a checkpoint or a Hugging Face folder.
    Generate(generate::Arguments),
    /// Check, show and compare recipes.
    #[command(subcommand)]
    Config(config::Command),
    /// Build and look at data sets.
    #[command(subcommand)]
    Data(data::Command),
    /// Train tokenizers.
    #[command(subcommand)]
    Tokenizer(tokenizer::Command),
    /// Convert between Hugging Face folders and checkpoints.
    #[command(subcommand)]
    Convert(convert::Command),
    /// Compare a Hugging Face folder's model with reference values.
    Verify(verify::Arguments),
    /// Measure training steps of a preset.
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Train(arguments) => train::run(&arguments),
        Command::Eval(arguments) => eval::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Config(command) => config::run(&command),
        Command::Data(command) => data::run(&command),
        Command::Tokenizer(command) => tokenizer::run(&command),
        Command::Convert(command) => convert::run(&command),
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.exit_code())
        }
    }
}
