//! `bridge bench`: training steps of a preset, by the training loop, with the same work and output
//! keys as the PyTorch peer.

mod ops;
mod watch;

use std::path::Path;
use std::time::Instant;

use bridge_core::config::{
    DType, OptimizerConfig, Precision, RawConfig, RecipeConfig, RunConfig, TrainingConfig, World,
};
use bridge_core::logging::HostMemory;
use bridge_core::model::{Declaration, ModelChunk};
use bridge_core::train::{
    Console, RunOptions, Subsystem, TrainingRun, measuring_recipe, pretrain, select_device, set_num_threads,
};
use bridge_models::decoder::presets::{NAMES, Preset, preset};
use bridge_models::registry;
use clap::Args;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use serde_json::{Map, Value, json};

use self::watch::{Seen, Watch};
use crate::failure::Failure;
use crate::output::line;

/// Most steps of a measurement.
const MOST_STEPS: i64 = 1_000_000;

/// Loss scale of a float16 run. It is constant: a dynamic one begins so high that the first steps
/// are skipped. Gradients of the presets neither overflow nor vanish with it.
const LOSS_SCALE: f64 = 4096.0;

/// Numbers from 1 to `most`.
fn count(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// A dtype that a model trains in, by any name that recipes have for it.
fn dtype(name: &str) -> Result<DType, String> {
    let known = DType::from_name(name).filter(|dtype| *dtype != DType::UInt8);
    known.ok_or_else(|| "expected one of fp32, bf16, fp16".to_owned())
}

/// The short name of a dtype, as the peer has it.
fn short(dtype: DType) -> &'static str {
    match dtype {
        DType::Float32 => "fp32",
        DType::BFloat16 => "bf16",
        DType::Float16 => "fp16",
        DType::UInt8 => "fp8",
    }
}

/// Measurement.
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
    /// Dtype of parameters and products: fp32, bf16 or fp16. With 16 bits the optimizer keeps
    /// float32 copies, as the recipes `bf16_mixed` and `fp16_mixed` do.
    #[arg(long, default_value = "fp32", value_parser = dtype)]
    dtype: DType,
    /// Time single operations of the preset's layers instead of steps: forward and backward of
    /// each, repeated `--steps` times.
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

/// The requested preset, with the requested batch and sequence.
fn chosen(arguments: &Arguments) -> Result<Preset, Failure> {
    let Some(mut preset) = preset(&arguments.preset) else {
        let message = format!("--preset: expected one of {}, found `{}`", NAMES.join(", "), arguments.preset);
        return Err(Failure::input(message));
    };
    preset.transformer.seq_length = arguments.seq.unwrap_or(preset.transformer.seq_length);
    preset.micro_batch_size = arguments.micro_batch.unwrap_or(preset.micro_batch_size);
    Ok(preset)
}

/// Times single operations.
fn operations(arguments: &Arguments) -> Result<Value, Failure> {
    let preset = chosen(arguments)?;
    let shapes = ops::Shapes::from_preset(&preset).ok_or_else(|| {
        Failure::input(format!("--ops: the layers of --preset {} are not those of a plain transformer", preset.name))
    })?;
    if let Some(threads) = arguments.threads {
        set_num_threads(threads).map_err(Failure::input)?;
    }
    let device = select_device(&arguments.device).map_err(Failure::input)?;
    let bench = ops::Bench::new(shapes, arguments.dtype, device).map_err(Failure::input)?;
    Ok(json!({
        "peer": concat!("bridge ", env!("CARGO_PKG_VERSION")),
        "preset": preset.name,
        "device": arguments.device,
        "dtype": short(arguments.dtype),
        "milliseconds": bench.milliseconds(arguments.steps).map_err(Failure::run)?,
    }))
}

/// Trains the preset's model and reports times, memory and losses.
fn steps(arguments: &Arguments) -> Result<Value, Failure> {
    let preset = chosen(arguments)?;
    let folder = tempfile::tempdir().map_err(Failure::run)?;
    let config = recipe(arguments, &preset, folder.path())?.finalize(&World::SINGLE)?;
    let dtype = config.model.params_dtype;
    let tokens = preset.micro_batch_size * preset.transformer.seq_length;
    let (run, seen) = train(config, &preset, arguments)?;
    let mut report = json!({
        "peer": concat!("bridge ", env!("CARGO_PKG_VERSION")),
        "preset": preset.name,
        "device": arguments.device,
        "dtype": short(dtype),
        "params": num_parameters(&run),
        "tokens_per_step": tokens,
    });
    let figures = report.as_object_mut().expect("it is one");
    figures.extend(times(&seen, tokens, arguments.steps)?);
    figures.extend(memory(&seen));
    figures.insert("losses".to_owned(), json!(seen.losses));
    Ok(report)
}

/// Trains, and returns the run with its measurements.
fn train(config: RunConfig, preset: &Preset, arguments: &Arguments) -> Result<(TrainingRun, Seen), Failure> {
    let mut registry = registry();
    registry.models.adapt_as(preset.peft.as_ref(), &config.model).map_err(Failure::input)?;
    let watch = Watch::new(u64::from(arguments.warmup), Instant::now());
    let subsystems: Vec<Box<dyn Subsystem>> = vec![Box::new(watch.clone())];
    let report = pretrain(config, RunOptions { subsystems, console: Console::Silent, ..RunOptions::new(registry) })?;
    Ok((report.run, watch.seen()))
}

/// Elements of all parameters in any storage format; tied parameters count once.
fn num_parameters(run: &TrainingRun) -> usize {
    let of_chunk = |chunk: &dyn ModelChunk| chunk.parameters().iter().map(Declaration::num_elements).sum::<usize>();
    run.chunks().iter().map(|chunk| of_chunk(chunk.as_ref())).sum()
}

fn tenth(x: f64) -> f64 {
    (x * 10.0).round() / 10.0
}

/// Figures of time: those of the middle one of the measured steps, and how long the first step took
/// to be there.
fn times(seen: &Seen, tokens: usize, steps: u32) -> Result<Map<String, Value>, Failure> {
    if seen.skipped > 0 {
        return Err(Failure::run(format!(
            "{} of {steps} measured steps were skipped, because gradients were not finite: there is no update in their times",
            seen.skipped
        )));
    }
    let mut seconds = seen.seconds.clone();
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    let processor = seen.end.zip(seen.warm).map(|(end, warm)| (end - warm) / f64::from(steps));
    let figures = json!({
        "tokens_per_second": tenth(tokens as f64 / median),
        "step_ms": (median * 1e5).round() / 1e2,
        "step_cpu_ms": processor.map(|seconds| tenth(seconds * 1e3)),
        "gflops": seen.flops.map(|flops| tenth(flops / median / 1e9)),
        "setup_seconds": seen.setup_seconds.map(tenth),
        "first_step_seconds": seen.first_step_seconds.map(tenth),
    });
    let Value::Object(figures) = figures else { unreachable!("it is written as one") };
    Ok(figures)
}

/// Figures of memory in MiB. On a device with memory of its own, `peak_mib` is the size of its
/// memory pool, which never shrinks: the pool does not count the peak use.
fn memory(seen: &Seen) -> Map<String, Value> {
    let mib = |bytes: u64| bytes / (1 << 20);
    let host = HostMemory::read().map(|memory| mib(memory.peak_resident_bytes));
    let mut figures = Map::new();
    let mut add = |name: &str, value: Option<u64>| {
        figures.insert(name.to_owned(), json!(value));
    };
    match seen.device {
        Some(device) => {
            add("peak_mib", Some(mib(device.reserved_bytes)));
            add("device_reserved_mib", Some(mib(device.reserved_bytes)));
            add("device_in_use_mib", Some(mib(device.allocated_bytes)));
            add("host_peak_mib", host);
        }
        None => add("peak_mib", host),
    }
    figures
}

/// The peer's run as a recipe: AdamW, clipping at 1, mock data, no checkpoints; logs in `folder`.
fn recipe(arguments: &Arguments, preset: &Preset, folder: &Path) -> Result<RawConfig, Failure> {
    let vocab_size = preset.transformer.vocab_size.ok_or_else(|| Failure::run("a preset has a vocabulary size"))?;
    let mut recipe = RecipeConfig { device: arguments.device.clone(), ..RecipeConfig::default() };
    recipe.model.kind = preset.kind.to_owned();
    recipe.model.config = preset.transformer.clone();
    recipe.mixed_precision = match arguments.dtype {
        DType::BFloat16 => Some(Precision::Named("bf16_mixed".to_owned())),
        DType::Float16 => Some(Precision::Named("fp16_mixed".to_owned())),
        _ => None,
    };
    recipe.train = TrainingConfig {
        micro_batch_size: Some(preset.micro_batch_size),
        global_batch_size: Some(preset.micro_batch_size),
        num_threads: arguments.threads,
        ..TrainingConfig::default()
    };
    recipe.optimizer =
        OptimizerConfig { lr: Some(3e-4), weight_decay: 0.1, adam_beta2: 0.95, ..OptimizerConfig::default() };
    let mut recipe = measuring_recipe(&RawConfig::from(recipe), vocab_size, None, folder);
    if arguments.dtype == DType::Float16 {
        recipe.optimizer.loss_scale = Some(LOSS_SCALE);
    }
    recipe.train.train_iters = Some((arguments.warmup + arguments.steps) as usize);
    recipe.logger.plot = false;
    Ok(recipe)
}
