//! `bridge bench`: training steps of a preset, by the training loop, with the same work and output keys as the PyTorch peer.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bridge_core::config::{OptimizerConfig, RawConfig, RecipeConfig, TrainingConfig, World};
use bridge_core::logging::HostMemory;
use bridge_core::train::{
    Agreement, Console, RunContext, RunOptions, StepReport, Subsystem, TrainError, Verdict, measuring_recipe, pretrain,
    select_device, set_num_threads,
};
use bridge_models::decoder::presets::{NAMES, Preset, preset};
use bridge_models::registry;
use clap::Args;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use serde_json::{Value, json};

use super::bench_ops;
use crate::failure::Failure;
use crate::output::line;

/// Most steps of a measurement.
const MOST_STEPS: i64 = 1_000_000;

/// Numbers from 1 to `most`.
fn count(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// What to measure.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The model and batch to train.
    #[arg(long, default_value = "nano-llama", value_parser = PossibleValuesParser::new(NAMES))]
    preset: String,
    /// Measured steps.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=MOST_STEPS))]
    steps: u32,
    /// Warm-up steps before those.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(..=MOST_STEPS))]
    warmup: u32,
    /// Threads of the CPU backend; all cores by default.
    #[arg(long, value_parser = count(4096))]
    threads: Option<usize>,
    /// Sequences per step; the preset's by default.
    #[arg(long, value_parser = count(1 << 20))]
    micro_batch: Option<usize>,
    /// Tokens per sequence; the preset's by default.
    #[arg(long, value_parser = count(1 << 20))]
    seq: Option<usize>,
    /// Compute device.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Time single operations instead of steps: forward and backward of each, repeated `--steps` times.
    #[arg(long)]
    ops: bool,
    /// Print one JSON line (with the peer's keys) instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let report = if arguments.ops { operations(arguments)? } else { steps(arguments)? };
    if arguments.json {
        line(&report.to_string());
    } else {
        for (key, value) in report.as_object().into_iter().flatten() {
            line(&format!("{key:<18} {value}"));
        }
    }
    Ok(0)
}

/// Times single operations.
fn operations(arguments: &Arguments) -> Result<Value, Failure> {
    if let Some(threads) = arguments.threads {
        set_num_threads(threads).map_err(Failure::input)?;
    }
    let device = select_device(&arguments.device).map_err(Failure::input)?;
    Ok(json!({
        "peer": concat!("bridge ", env!("CARGO_PKG_VERSION")),
        "device": arguments.device,
        "milliseconds": bench_ops::milliseconds(arguments.steps, &device),
    }))
}

/// Trains the preset's model and reports times, memory and losses.
fn steps(arguments: &Arguments) -> Result<Value, Failure> {
    let Some(mut preset) = preset(&arguments.preset) else {
        let message = format!("--preset: expected one of {}, found `{}`", NAMES.join(", "), arguments.preset);
        return Err(Failure::input(message));
    };
    if let Some(seq) = arguments.seq {
        preset.transformer.seq_length = seq;
    }
    let b = arguments.micro_batch.unwrap_or(preset.micro_batch_size);
    let folder = tempfile::tempdir().map_err(Failure::run)?;
    let config = recipe(arguments, &preset, b, folder.path())?.finalize(&World::SINGLE)?;
    let mut registry = registry();
    registry.models.adapt_as(preset.peft.as_ref(), &config.model).map_err(Failure::input)?;
    let watch = Watch { warmup: u64::from(arguments.warmup), seen: Arc::default() };
    let subsystems: Vec<Box<dyn Subsystem>> = vec![Box::new(watch.clone())];
    let report = pretrain(config, RunOptions { subsystems, console: Console::Silent, ..RunOptions::new(registry) })?;
    let num_parameters = report.run.held_bytes().parameters / size_of::<f32>() as u64;
    let Seen { mut seconds, losses, flops, warm, end } = watch.seen();
    let processor = end.zip(warm).map(|(end, warm)| (end - warm) / f64::from(arguments.steps));
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    let tokens = b * preset.transformer.seq_length;
    let tenth = |x: f64| (x * 10.0).round() / 10.0;
    Ok(json!({
        "peer": concat!("bridge ", env!("CARGO_PKG_VERSION")),
        "preset": preset.name,
        "device": arguments.device,
        "dtype": "fp32",
        "params": num_parameters,
        "tokens_per_step": tokens,
        "tokens_per_second": tenth(tokens as f64 / median),
        "step_ms": tenth(median * 1e3),
        "step_cpu_ms": processor.map(|seconds| tenth(seconds * 1e3)),
        "gflops": flops.map(|flops| tenth(flops / median / 1e9)),
        "peak_mib": HostMemory::read().map(|memory| memory.peak_resident_bytes / (1 << 20)),
        "losses": losses,
    }))
}

/// The peer's run as a recipe: float32, AdamW, clipping at 1, mock data, no checkpoints; logs in `folder`.
fn recipe(
    arguments: &Arguments,
    preset: &Preset,
    micro_batch_size: usize,
    folder: &Path,
) -> Result<RawConfig, Failure> {
    let vocab_size = preset.transformer.vocab_size.ok_or_else(|| Failure::run("a preset has a vocabulary size"))?;
    let mut recipe = RecipeConfig { device: arguments.device.clone(), ..RecipeConfig::default() };
    recipe.model.kind = preset.kind.to_owned();
    recipe.model.config = preset.transformer.clone();
    recipe.train = TrainingConfig {
        micro_batch_size: Some(micro_batch_size),
        global_batch_size: Some(micro_batch_size),
        num_threads: arguments.threads,
        ..TrainingConfig::default()
    };
    recipe.optimizer =
        OptimizerConfig { lr: Some(3e-4), weight_decay: 0.1, adam_beta2: 0.95, ..OptimizerConfig::default() };
    let mut recipe = measuring_recipe(&RawConfig::from(recipe), vocab_size, None, folder);
    recipe.train.train_iters = Some((arguments.warmup + arguments.steps) as usize);
    recipe.logger.plot = false;
    Ok(recipe)
}

/// Records time and loss of each step.
#[derive(Clone)]
struct Watch {
    warmup: u64,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Clone, Default)]
struct Seen {
    /// Wall time of the measured steps.
    seconds: Vec<f64>,
    /// Losses of all steps, to four decimals.
    losses: Vec<f64>,
    /// Floating-point operations of the last step, as the model counts them.
    flops: Option<f64>,
    /// CPU time before the measured steps and after the last one.
    warm: Option<f64>,
    end: Option<f64>,
}

impl Watch {
    fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Subsystem for Watch {
    fn name(&self) -> &str {
        "benchmark"
    }

    fn agreement(&self) -> Agreement {
        Agreement::Given
    }

    fn on_run_start(&mut self, _run: &mut RunContext) -> Result<(), TrainError> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).warm = cpu_seconds();
        Ok(())
    }

    fn after_step(&mut self, _run: &mut RunContext, step: &StepReport) -> Result<Verdict, TrainError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.end = cpu_seconds();
        seen.flops = step.flops;
        match step.iteration > self.warmup {
            true => seen.seconds.push(step.seconds),
            false => seen.warm = seen.end,
        }
        let loss = step.loss().map_or(f64::NAN, f64::from);
        seen.losses.push((loss * 1e4).round() / 1e4);
        Ok(Verdict::default())
    }
}

/// CPU time of this process so far, over all threads, in hundredths of a second, if the system reports it: the cost of a step on a machine
/// with other users.
fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may contain anything; times in user and kernel mode are fields 14 and 15.
    let (_, fields) = text.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<Option<f64>>()? / 100.0)
}
