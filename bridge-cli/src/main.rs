//! `bridge`: the command line. Only parsing and printing; the work of the commands is in the library crates.
#![recursion_limit = "256"]

mod commands;
#[cfg(feature = "tui")]
mod dashboard;
mod failure;
mod model_source;
mod output;
mod progress;

use std::process::ExitCode;
use std::time::Instant;

use bridge_dist::comm::CommError;
use clap::{Parser, Subcommand};

use commands::{bench, config, convert, data, eval, generate, plan, tokenizer, train, verify};

/// Training steps reuse large buffers instead of requesting them from the kernel each time.
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
    /// Continue a prompt with a checkpoint or a Hugging Face folder.
    Generate(generate::Arguments),
    /// Check, show and compare recipes.
    #[command(subcommand)]
    Config(config::Command),
    /// Compute the cost of a recipe on any number of ranks, without running it.
    Plan(Box<plan::Arguments>),
    /// Build and inspect datasets.
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

/// A communication error that leaves a model as a panic is caught and reported, so the panic itself is not printed.
fn silence_communication_panics() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<CommError>() {
            previous(info);
        }
    }));
}

fn main() -> ExitCode {
    // Time limits count from here.
    let started = Instant::now();
    silence_communication_panics();
    let result = match Cli::parse().command {
        Command::Train(arguments) => train::run(&arguments, started),
        Command::Eval(arguments) => eval::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Config(command) => config::run(&command),
        Command::Plan(arguments) => plan::run(&arguments),
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
