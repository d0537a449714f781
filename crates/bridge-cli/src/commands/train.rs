//! `bridge train`: run a recipe.

use std::path::PathBuf;

use bridge_core::config::{Kinds, RunConfig, World, load};
use bridge_core::model::ModelRegistry;
use bridge_core::tokenizer::Tokenizer;
use bridge_core::train::{Console, ExitReason, RunOptions, RunReport, WatchSignals, pretrain, select_device};
use bridge_models::generate::{GenerateOptions, Sampling};
use bridge_models::register_builtin;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::generate::{Request, continue_text};
use crate::failure::Failure;
use crate::output::line;

/// How ranks are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Launcher {
    /// Threads of this process.
    Threads,
    /// Processes under mpirun or srun.
    Mpi,
}

/// What is shown while training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ui {
    /// Lines, and a progress bar on a terminal.
    Plain,
    /// A dashboard on the terminal, from builds with the `tui` feature.
    Tui,
}

/// A recipe and how to run it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The recipe: a TOML, YAML or JSON file.
    recipe: PathBuf,
    /// Overrides, such as `train.train_iters=100`.
    overrides: Vec<String>,
    /// Number of ranks.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// How ranks are started.
    #[arg(long, value_enum, default_value = "threads")]
    launcher: Launcher,
    /// Compute device, instead of the recipe's: flex, cuda, wgpu or vulkan.
    #[arg(long)]
    device: Option<String>,
    /// What is shown while training.
    #[arg(long, value_enum, default_value = "plain")]
    ui: Ui,
    /// Print each log record as a JSON line.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    if arguments.ranks != 1 || arguments.launcher != Launcher::Threads {
        return Err(Failure::input(format!(
            "--ranks {} --launcher {}: training on many ranks is not implemented yet; this release trains on one rank",
            arguments.ranks,
            if arguments.launcher == Launcher::Mpi { "mpi" } else { "threads" },
        )));
    }
    if arguments.ui == Ui::Tui && arguments.json {
        return Err(Failure::input("--ui tui: expected no --json beside it, because the dashboard fills the terminal"));
    }
    let mut overrides = arguments.overrides.clone();
    if let Some(device) = &arguments.device {
        overrides.push(format!("device=\"{device}\""));
    }
    let config = load(&arguments.recipe, &overrides, &Kinds::builtin(), &World::SINGLE)?;
    let generate = config.generate.clone();
    let device_name = config.device.clone();

    let mut models = ModelRegistry::default();
    register_builtin(&mut models);
    let mut options = RunOptions::new(models);
    options.signals = WatchSignals::Process;
    if arguments.json {
        options.console = Console::Json;
    }
    let report = match arguments.ui {
        Ui::Plain => pretrain(config, options)?,
        Ui::Tui => train_with_dashboard(config, options)?,
    };
    if report.reason == ExitReason::Completed
        && let Some(prompt) = &generate.prompt
    {
        let device = select_device(&device_name).map_err(Failure::input)?;
        let sampling = if generate.temperature == 0.0 {
            Sampling::Greedy
        } else {
            Sampling::Random {
                temperature: generate.temperature,
                top_k: generate.top_k,
                top_p: generate.top_p,
                seed: generate.seed,
            }
        };
        let sample = Sample { prompt, max_tokens: generate.max_tokens, sampling, json: arguments.json };
        print_sample(&report, &device, &sample)?;
    }
    Ok(u8::try_from(report.reason.exit_code()).unwrap_or(1))
}

#[cfg(not(feature = "tui"))]
fn train_with_dashboard(_config: RunConfig, _options: RunOptions) -> Result<RunReport, Failure> {
    Err(Failure::input(
        "--ui tui: this program was built without the `tui` feature; build with `--features bridge-cli/tui`, or run \
         `cargo xtask train RECIPE --ui tui`, which does",
    ))
}

#[cfg(feature = "tui")]
fn train_with_dashboard(config: RunConfig, mut options: RunOptions) -> Result<RunReport, Failure> {
    use crate::dashboard::{Dashboard, KeptLines, has_terminal};

    if !has_terminal() {
        return Err(Failure::input("--ui tui: expected a terminal on standard output, found a file or a pipe"));
    }
    let kept = KeptLines::default();
    options.console = Console::Writer(Box::new(kept.clone()));
    options.callbacks.push(Box::new(Dashboard::new(options.cancel.clone())));
    // "Stop immediately" in the dashboard's menu arrives as a panic on this thread, after the terminal is itself again.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pretrain(config, options)));
    kept.print();
    match outcome {
        Ok(report) => Ok(report?),
        Err(_) => Err(Failure::run("the run was killed from the dashboard, or failed as described above")),
    }
}

struct Sample<'a> {
    prompt: &'a str,
    max_tokens: usize,
    sampling: Sampling,
    json: bool,
}

/// Prints what the model makes of the recipe's prompt.
fn print_sample(report: &RunReport, device: &burn::tensor::Device, sample: &Sample) -> Result<(), Failure> {
    let run = &report.run;
    let Some(tokenizer) = run.data().tokenizer() else {
        return Ok(());
    };
    let tokenizer: &dyn Tokenizer = tokenizer.as_ref();
    let max_positions = run.config.model.seq_length;
    let prompt_tokens = tokenizer.encode(sample.prompt).map_err(Failure::input)?.len();
    let request = Request {
        prompt: sample.prompt,
        options: GenerateOptions {
            max_new_tokens: sample.max_tokens.min(max_positions.saturating_sub(prompt_tokens + 1)),
            sampling: sample.sampling,
            stop_tokens: tokenizer.eod().into_iter().collect(),
            vocab_size: tokenizer.vocab_size(),
            max_positions,
        },
    };
    let text = continue_text(run.chunks()[0].as_ref(), tokenizer, device, &request, &mut |_| {})?;
    if sample.json {
        line(&json!({ "kind": "sample", "prompt": sample.prompt, "text": text }).to_string());
    } else {
        line(&format!("sample:\n{}{text}", sample.prompt));
    }
    Ok(())
}
