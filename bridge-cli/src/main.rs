//! `bridge`: the command line. Only parsing and printing; the work of the commands is in the
//! library crates.
#![recursion_limit = "256"]

mod chosen_models;
mod commands;
mod continuation;
#[cfg(feature = "tui")]
mod dashboard;
mod failure;
mod foreign;
mod generation_settings;
mod line_editor;
mod model_source;
mod object_stores;
mod output;
mod overwrite;
mod process;
mod progress;
mod rooted;
mod speech;
mod version;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Instant;

use bridge_data::untrusted_io::is_contained;
use bridge_dist::comm::CommError;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};

use commands::{
    bench, chat, checkpoint, config, convert, data, documents, eval, generate, init, plan, runs, tokenizer, trace,
    train, ui, verify,
};
use failure::Failure;
use process::Pool;
use speech::{ErrorForm, Speech};

/// Training steps reuse large buffers instead of requesting them from the kernel each time.
#[global_allocator]
static ALLOCATOR: bridge_kernels::memory::LargeBlocks = bridge_kernels::memory::LargeBlocks::new();

/// Train and fine-tune language models.
#[derive(Debug, Parser)]
#[command(name = "bridge", version = version::SHORT, long_version = version::LONG.as_str())]
struct Cli {
    #[command(flatten)]
    speech: Speech,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a recipe for your text: one that fits this machine.
    Init(Box<init::Arguments>),
    /// Train a recipe.
    Train(train::Arguments),
    /// Loss, perplexity and bits per byte of a checkpoint or a Hugging Face folder.
    Eval(eval::Arguments),
    /// Continue prompts with a checkpoint or a Hugging Face folder.
    Generate(generate::Arguments),
    /// Talk with a model, through its chat template.
    Chat(chat::Arguments),
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
    /// List, show, verify, compare and delete checkpoints.
    #[command(subcommand)]
    Checkpoint(checkpoint::Command),
    /// List, compare and plot runs, from their files.
    #[command(subcommand)]
    Runs(runs::Command),
    /// Serve a page on which runs are compared, from their files.
    Ui(ui::Arguments),
    /// Merge the traces of a run's ranks, and say where the time of a step goes.
    Trace(trace::Arguments),
    /// Measure training steps of a preset.
    Bench(bench::Arguments),
    /// Print completions for a shell.
    Completions(documents::Completions),
    /// Write man pages.
    Man(documents::Man),
}

impl Command {
    /// Threads for the command's computations.
    fn pool(&self) -> Pool {
        match self {
            Self::Train(_) | Self::Config(_) | Self::Plan(_) | Self::Runs(_) | Self::Bench(_) => Pool::Own,
            Self::Checkpoint(_) | Self::Ui(_) | Self::Trace(_) | Self::Completions(_) | Self::Man(_) => Pool::Own,
            Self::Eval(_)
            | Self::Init(_)
            | Self::Generate(_)
            | Self::Chat(_)
            | Self::Data(_)
            | Self::Tokenizer(_)
            | Self::Convert(_)
            | Self::Verify(_) => Pool::OfTheProcess,
        }
    }
}

/// A communication error that leaves a model as a panic is caught and reported, as is a panic of a
/// library over untrusted input, so the panic itself is not printed.
fn silence_communication_panics() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<CommError>() && !is_contained() && no_threads(info.payload()).is_none() {
            previous(info);
        }
    }));
}

/// The message of a panic of a library that could not start a thread. Libraries start threads where
/// nothing can return an error.
fn no_threads(panic: &(dyn Any + Send)) -> Option<String> {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned())?;
    let is_about_threads = ["global thread pool has not been initialized", "failed to spawn thread", "failed to spawn"];
    is_about_threads.iter().any(|words| text.contains(words)).then(|| {
        format!("no thread could be started: {text}; raise the limit of processes and threads (`ulimit -u`, a container's pids)")
    })
}

/// Advice for options of other programs, such as `--num-layers`, which are settings in Bridge.
fn advice_on_option(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_unknown = error.kind() == clap::error::ErrorKind::UnknownArgument;
    let advice = bridge_core::config::advice_for(option, &bridge_models::registry().kinds()).filter(|_| is_unknown)?;
    Some(format!("settings of a recipe are given as `key=value`, without dashes: {advice}"))
}

/// Prints the error of the command line, or the requested help.
fn usage(error: &clap::Error) -> ExitCode {
    let form = ErrorForm::from_arguments(std::env::args_os());
    let advice = advice_on_option(error).map(|advice| format!("  hint: {advice}\n")).unwrap_or_default();
    if error.use_stderr() && form == ErrorForm::Json {
        Failure::input(format!("{}\n{advice}", error.render()).trim_end()).print(form);
    } else {
        // A failed write cannot be reported anywhere.
        let _ = error.print();
        eprint!("{advice}");
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn main() -> ExitCode {
    // Time limits count from here.
    let started = Instant::now();
    silence_communication_panics();
    let Cli { speech, command } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let verbosity = speech.verbosity();
    let uses_terminal = matches!(&command, Command::Train(arguments) if arguments.uses_terminal());
    let run = || {
        process::prepare(command.pool(), !uses_terminal).and_then(|()| match command {
            Command::Init(arguments) => init::run(&arguments, &speech),
            Command::Train(arguments) => train::run(&arguments, started, &speech),
            Command::Eval(arguments) => eval::run(&arguments, verbosity),
            Command::Generate(arguments) => generate::run(&arguments),
            Command::Chat(arguments) => chat::run(&arguments, &speech),
            Command::Config(command) => config::run(&command),
            Command::Plan(arguments) => plan::run(&arguments),
            Command::Data(command) => data::run(&command, verbosity),
            Command::Tokenizer(command) => tokenizer::run(&command, &speech),
            Command::Convert(command) => convert::run(&command, &speech),
            Command::Verify(arguments) => verify::run(&arguments),
            Command::Checkpoint(command) => checkpoint::run(&command),
            Command::Runs(command) => runs::run(&command),
            Command::Ui(arguments) => ui::run(&arguments),
            Command::Trace(arguments) => trace::run(&arguments),
            Command::Bench(arguments) => bench::run(&arguments),
            Command::Completions(arguments) => documents::completions(&arguments, Cli::command()),
            Command::Man(arguments) => documents::man(&arguments, Cli::command()),
        })
    };
    // State that a panic leaves half changed is not used again: the process ends.
    let result =
        std::panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| match no_threads(panic.as_ref()) {
            Some(message) => Err(Failure::run(message)),
            None => std::panic::resume_unwind(panic),
        });
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.print(speech.error_form());
            ExitCode::from(failure.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_about_threads_are_told_from_others() {
        let message = |text: &str| no_threads(&text.to_owned());
        let found = message("The global thread pool has not been initialized.: ThreadPoolBuildError { kind: IOError }");
        assert!(found.is_some_and(|text| text.contains("no thread could be started") && text.contains("ulimit -u")));
        assert!(message("failed to spawn thread: Os { code: 11 }").is_some());
        assert_eq!(message("index out of bounds"), None);
        assert_eq!(no_threads(&1_u8), None);
    }
}
