//! `bridge bench`: training steps of a preset, with the same work and output keys as the PyTorch peer.

use std::sync::Arc;
use std::time::Instant;

use bridge_core::logging::HostMemory;
use bridge_core::model::{Batch, BuildContext, ForwardContext, Mode, ModelConfig, Parallel, Stage};
use bridge_core::optim::rules::RULES;
use bridge_core::optim::{
    AccumulationDType, Distribution, GradientBuffer, GroupRates, NoOverrides, Optimizer, OptimizerSettings, StepScales,
};
use bridge_core::train::{
    Closures, Executor, Recompute, in_own_pool, select_device, set_num_threads, with_awake_threads,
};
use bridge_data::MicroBatch;
use bridge_kernels::Philox;
use bridge_models::GptModelConfig;
use bridge_models::decoder::presets::{NAMES, preset};
use burn::tensor::{Device, FloatDType};
use clap::Args;
use serde_json::{Value, json};

use super::bench_ops;
use crate::failure::Failure;
use crate::output::line;

/// What to measure.
#[derive(Debug, Args)]
pub struct Arguments {
    /// nano-gpt2, nano-llama, smol-135m or gpt2-124m.
    #[arg(long, default_value = "nano-llama")]
    preset: String,
    /// Measured steps.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Warm-up steps before those.
    #[arg(long, default_value_t = 2)]
    warmup: u32,
    /// Threads of the CPU backend; all cores by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Sequences per step; the preset's by default.
    #[arg(long)]
    micro_batch: Option<usize>,
    /// Tokens per sequence; the preset's by default.
    #[arg(long)]
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
    if let Some(threads) = arguments.threads {
        set_num_threads(threads).map_err(Failure::input)?;
    }
    let device = select_device(&arguments.device).map_err(Failure::input)?;
    let report = match arguments.ops {
        true => json!({
            "peer": concat!("bridge ", env!("CARGO_PKG_VERSION")),
            "device": arguments.device,
            "milliseconds": bench_ops::milliseconds(arguments.steps, &device),
        }),
        false => in_own_pool(arguments.threads, || with_awake_threads(|| steps(arguments, &device)))
            .map_err(Failure::run)??,
    };
    if arguments.json {
        line(&report.to_string());
    } else {
        for (key, value) in report.as_object().into_iter().flatten() {
            line(&format!("{key:<18} {value}"));
        }
    }
    Ok(0)
}

/// Trains the preset's model and reports times, memory and losses.
fn steps(arguments: &Arguments, device: &Device) -> Result<Value, Failure> {
    let Some(mut preset) = preset(&arguments.preset) else {
        let message = format!("--preset: expected one of {}, found `{}`", NAMES.join(", "), arguments.preset);
        return Err(Failure::input(message));
    };
    if let Some(seq) = arguments.seq {
        preset.transformer.seq_length = seq;
    }
    let b = arguments.micro_batch.unwrap_or(preset.micro_batch_size);
    let t = preset.transformer.seq_length;
    let v = preset.transformer.vocab_size.ok_or_else(|| Failure::run("a preset has a vocabulary size"))?;

    let config = GptModelConfig::new(preset.transformer.clone());
    let context = BuildContext {
        device: device.clone().autodiff(),
        seed: 0,
        params_dtype: FloatDType::F32,
        padded_vocab_size: v,
        parallel: Parallel::single(),
        deferred: None,
    };
    let stage = Stage::whole([preset.transformer.num_layers]);
    let mut chunks = config.builder().build_models(&config, &context, &[stage]).map_err(Failure::input)?;
    let num_parameters: usize = chunks[0].parameters().iter().map(|p| p.num_elements()).sum();
    let executor = Executor::new(chunks[0].as_ref(), &Recompute::Off);
    let adam = json!({"adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "decoupled_weight_decay": true});
    let algorithm = RULES[0].with(&adam).map_err(Failure::run)?;
    let settings = OptimizerSettings { algorithm, clip_grad: 1.0, count_zeros: false };
    let distribution = Arc::new(Distribution::single(&chunks));
    let mut optimizer = Optimizer::new(settings, &chunks, &NoOverrides, distribution).map_err(Failure::run)?;
    let mut gradients = GradientBuffer::new(AccumulationDType::Float32);
    let rates = [GroupRates { learning_rate: 3e-4, weight_decay: 0.1 }];
    let batch = random_batch(b, t, v, device);

    let (mut times, mut losses) = (Vec::new(), Vec::new());
    let mut warm = processor_seconds();
    for step in 0..arguments.warmup + arguments.steps {
        if step == arguments.warmup {
            warm = processor_seconds();
        }
        let started = Instant::now();
        let context = ForwardContext::new(&batch, Mode::Train(Philox::new(u64::from(step))));
        let factor = 1.0 / batch.num_tokens;
        let mut on_gradient = |name: &str, gradient| gradients.add(name, gradient);
        let mut hooks = Closures { objective: &mut |sum| sum * factor, on_gradient: &mut on_gradient };
        let loss_sum = executor.forward_backward(chunks[0].as_mut(), &context, &mut hooks).map_err(Failure::run)?;
        let scales = StepScales { loss_scale: 1.0, divisor: 1.0 };
        optimizer.step(&mut chunks, &mut gradients, &rates, scales).map_err(Failure::run)?;
        device.sync().map_err(|error| Failure::run(format!("{error:?}")))?;
        if step >= arguments.warmup {
            times.push(started.elapsed().as_secs_f64());
        }
        let loss = loss_sum.into_data().iter::<f64>().next().unwrap_or(f64::NAN) * factor;
        losses.push((loss * 1e4).round() / 1e4);
    }
    let processor = processor_seconds().zip(warm).map(|(end, start)| (end - start) / f64::from(arguments.steps));
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let tokens = (b * t) as f64;
    let tenth = |x: f64| (x * 10.0).round() / 10.0;
    Ok(json!({
        "peer": concat!("bridge ", env!("CARGO_PKG_VERSION")),
        "preset": preset.name,
        "device": arguments.device,
        "dtype": "fp32",
        "params": num_parameters,
        "tokens_per_step": b * t,
        "tokens_per_second": tenth(tokens / median),
        "step_ms": tenth(median * 1e3),
        "step_cpu_ms": processor.map(|seconds| tenth(seconds * 1e3)),
        "gflops": tenth(6.0 * num_parameters as f64 * tokens / median / 1e9),
        "peak_mib": HostMemory::read().map(|memory| memory.peak_resident_bytes / (1 << 20)),
        "losses": losses,
    }))
}

/// CPU time of this process so far, over all threads, in hundredths of a second, if the system reports it: the cost of a step on a machine
/// with other users.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may contain anything; times in user and kernel mode are fields 14 and 15.
    let (_, fields) = text.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<Option<f64>>()? / 100.0)
}

fn random_batch(b: usize, t: usize, v: usize, device: &Device) -> Batch {
    let ids = |key: u64| -> Vec<i64> {
        let words = (0..(b * t).div_ceil(4) as u64).flat_map(|i| Philox::new(key).block(i));
        words.take(b * t).map(|word| i64::from(word) % v as i64).collect()
    };
    let micro_batch = MicroBatch {
        tokens: ids(1),
        labels: ids(2),
        loss_mask: vec![1.0; b * t],
        position_ids: (0..b).flat_map(|_| 0..t as i64).collect(),
        batch_size: b,
        seq_length: t,
        ..MicroBatch::default()
    };
    Batch::new(&micro_batch, device)
}
