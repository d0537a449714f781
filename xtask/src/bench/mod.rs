//! `cargo xtask bench`: training steps and single operations against PyTorch on the same machine
//! and device, in paired runs.
//!
//! Rounds alternate: Bridge, PyTorch, `torch.compile` if requested, Bridge again. A busy machine
//! slows all of them, so the report has the median of the rounds' ratios, never the time of one
//! side alone.

mod peer;
mod report;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Error, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::build::build_bridge;
use crate::feature_of;
use peer::{Peer, Program};
use report::{OpRow, Report, Setting, StepRow, median};

/// The presets that both sides support, with benchmarks/peer_torch.py; all are measured if none is
/// named.
const PRESETS: [&str; 4] = ["nano-gpt2", "nano-llama", "smol-135m", "gpt2-124m"];
/// Presets that are too large for a CPU, and measured only if named.
const LARGE_PRESETS: [&str; 2] = ["llama-1b", "llama-8b-4l"];
/// Presets of Bridge that `peer_torch.py` does not have, because they are for another peer.
const OF_OTHER_PEERS: [&str; 10] = [
    "nano-gemma",
    "moe-8x",
    "mamba2-20m",
    "qwen3-next-20m",
    "lfm2-20m",
    "glm4-moe-8x",
    "gemma4-20m",
    "smol-135m-full",
    "smol-135m-lora",
    "smol-135m-dora",
];

/// Measurement, and the PyTorch to compare with.
#[derive(Debug, Args)]
pub struct Bench {
    /// A preset to train: nano-gpt2, nano-llama, smol-135m or gpt2-124m, for a GPU llama-1b or
    /// llama-8b-4l, or with --peer any other one that it has. May be repeated; the first four by
    /// default. With --ops, the one whose shapes operations have.
    #[arg(long = "preset", value_parser = PRESETS.into_iter().chain(LARGE_PRESETS).chain(OF_OTHER_PEERS).collect::<Vec<_>>())]
    presets: Vec<String>,
    /// Paired runs of each preset.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measured steps of each run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Threads of each side; all cores by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Compute device of both sides: flex (the CPU, the default), or cuda, with :N for the N-th;
    /// with --alone also wgpu and vulkan. Builds with the matching feature.
    #[arg(long)]
    device: Option<String>,
    /// Dtype of both sides: fp32 (the default), bf16 or fp16.
    #[arg(long, value_parser = ["fp32", "bf16", "fp16"])]
    dtype: Option<String>,
    /// Sequences a step; the preset's by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    micro_batch: Option<u32>,
    /// Tokens a sequence; the preset's by default.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    seq: Option<u32>,
    /// Also measure `torch.compile`.
    #[arg(long)]
    compile: bool,
    /// Compare single operations with PyTorch's instead of whole steps.
    #[arg(long)]
    ops: bool,
    /// Measure Bridge only; needs no PyTorch.
    #[arg(long, conflicts_with_all = ["compile", "install_peer", "peer", "python"])]
    alone: bool,
    /// A Python program that prints the figures of a step as benchmarks/peer_torch.py does (the
    /// default).
    #[arg(long)]
    peer: Option<PathBuf>,
    /// A Python interpreter with PyTorch; the one in target/bench-venv by default.
    #[arg(long)]
    python: Option<PathBuf>,
    /// Create target/bench-venv and install PyTorch there, unless it exists.
    #[arg(long)]
    install_peer: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Also write the report to a file in benchmarks/, named by the date.
    #[arg(long)]
    save: bool,
}

/// Runs the command.
pub fn run(bench: &Bench) -> Result<ExitCode> {
    let other = bench.presets.iter().find(|preset| OF_OTHER_PEERS.contains(&preset.as_str()));
    if let Some(preset) = other.filter(|_| bench.peer.is_none() && !bench.alone) {
        bail!(
            "--preset {preset}: benchmarks/peer_torch.py does not have it; give a program that does with --peer, or --alone"
        );
    }
    if bench.ops && bench.presets.len() > 1 {
        bail!("--ops: the shapes are those of one --preset, and there are {}", bench.presets.len());
    }
    let feature = bench.device.as_deref().map_or(Ok(None), feature_of).map_err(Error::msg)?;
    let has_peer_device = matches!(feature, None | Some("cuda")) || bench.alone;
    ensure!(has_peer_device, "--device: the PyTorch side computes on cpu and cuda; measure others with --alone");
    let peer = match bench.alone {
        true => None,
        false => Some(Peer::find(bench.python.as_deref(), bench.peer.as_deref(), bench.install_peer)?),
    };
    let bridge = build_bridge(feature)?;
    let sides = Sides { bench, bridge, peer };
    let report = match bench.ops {
        true => Report::ops(bench.setting(), sides.ops()?),
        false => Report::steps(bench.setting(), sides.steps()?),
    };
    println!("{}", if bench.json { serde_json::to_string_pretty(&report.json())? } else { report.table() });
    if bench.save {
        eprintln!("saved as {}", report.save()?.display());
    }
    Ok(ExitCode::SUCCESS)
}

impl Bench {
    /// Device and precision of both sides.
    fn setting(&self) -> Setting {
        Setting {
            device: self.device.clone().unwrap_or_else(|| "flex".to_owned()),
            dtype: self.dtype.clone().unwrap_or_else(|| "fp32".to_owned()),
        }
    }

    /// Options that both sides take, where `device` is the name that the side has for the device.
    fn options(&self, device: Option<&str>, more: &[&str]) -> Vec<String> {
        let mut options = vec!["--steps".to_owned(), self.steps.to_string()];
        let numbers = [
            ("--threads", self.threads.map(|n| n.to_string())),
            ("--micro-batch", self.micro_batch.map(|n| n.to_string())),
            ("--seq", self.seq.map(|n| n.to_string())),
            ("--device", device.map(str::to_owned)),
            ("--dtype", self.dtype.clone()),
        ];
        for (name, value) in numbers {
            options.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
        }
        options.extend(more.iter().map(|option| (*option).to_owned()));
        options
    }

    /// PyTorch's name for the device.
    fn peers_device(&self) -> Option<&str> {
        self.device.as_deref().map(|device| if device == "flex" { "cpu" } else { device })
    }
}

/// Both programs.
struct Sides<'a> {
    bench: &'a Bench,
    bridge: PathBuf,
    peer: Option<Peer>,
}

impl Sides<'_> {
    fn steps(&self) -> Result<Vec<StepRow>> {
        let all = PRESETS.map(str::to_owned);
        let presets = if self.bench.presets.is_empty() { &all[..] } else { &self.bench.presets };
        presets.iter().map(|preset| self.preset(preset)).collect()
    }

    fn preset(&self, preset: &str) -> Result<StepRow> {
        let mut row = StepRow::new(preset);
        for round in 1..=self.bench.rounds {
            eprintln!("{preset}, round {round} of {}", self.bench.rounds);
            row.ours.push(self.ours(&["--preset", preset])?);
            if let Some(peer) = &self.peer {
                row.eager.push(self.theirs(peer, Program::Step(preset), &[])?);
                if self.bench.compile {
                    row.compiled.push(self.theirs(peer, Program::Step(preset), &["--compile"])?);
                }
            }
        }
        Ok(row)
    }

    fn ops(&self) -> Result<Vec<OpRow>> {
        let mut rounds = Vec::new();
        let preset: Vec<&str> = self.bench.presets.iter().flat_map(|preset| ["--preset", preset]).collect();
        for round in 1..=self.bench.rounds {
            eprintln!("operations, round {round} of {}", self.bench.rounds);
            let ours = self.ours(&[&["--ops"], &preset[..]].concat())?;
            let theirs = match &self.peer {
                Some(peer) => Some(self.theirs(peer, Program::Ops, &preset)?),
                None => None,
            };
            rounds.push((ours, theirs));
        }
        let names = rounds[0].0["milliseconds"].as_object().context("bridge printed no operations")?.keys().cloned();
        let time = |report: &Value, name: &str| report["milliseconds"][name].as_f64();
        Ok(names
            .map(|name| OpRow {
                ours_ms: median(rounds.iter().filter_map(|(ours, _)| time(ours, &name)).collect()),
                theirs_ms: median(rounds.iter().filter_map(|(_, t)| time(t.as_ref()?, &name)).collect()),
                ratio: median(
                    rounds
                        .iter()
                        .filter_map(|(ours, t)| Some(time(t.as_ref()?, &name)? / time(ours, &name)?))
                        .collect(),
                ),
                name,
            })
            .collect())
    }

    /// One run of `bridge bench`.
    fn ours(&self, arguments: &[&str]) -> Result<Value> {
        let output = Command::new(&self.bridge)
            .args(["bench", "--json"])
            .args(arguments)
            .args(self.bench.options(self.bench.device.as_deref(), &[]))
            .output()
            .context("bridge could not be started")?;
        ensure!(output.status.success(), "bridge bench failed: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).context("bridge bench did not print one JSON line")
    }

    fn theirs(&self, peer: &Peer, program: Program<'_>, more: &[&str]) -> Result<Value> {
        peer.run(program, &self.bench.options(self.bench.peers_device(), more))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        bench: Bench,
    }

    #[test]
    fn both_sides_get_the_same_work() {
        let parse = |arguments: &[&str]| Cli::parse_from([&["bench"], arguments].concat()).bench;
        let bench =
            parse(&["--device", "flex", "--dtype", "bf16", "--micro-batch", "4", "--seq", "64", "--threads", "2"]);
        let words = ["--steps", "5", "--threads", "2", "--micro-batch", "4", "--seq", "64", "--device"];
        let options = |device, more: &[&str]| bench.options(device, more);
        let rest = ["--dtype", "bf16"];
        assert_eq!(options(bench.device.as_deref(), &[]), [&words[..], &["flex"], &rest].concat());
        assert_eq!(
            options(bench.peers_device(), &["--compile"]),
            [&words[..], &["cpu"], &rest, &["--compile"]].concat()
        );
        assert_eq!(parse(&["--device", "cuda:1"]).peers_device(), Some("cuda:1"));
        assert_eq!(parse(&[]).options(None, &[]), ["--steps", "5"], "another peer may know no other options");
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let said = |arguments: &[&str]| {
            let bench = Cli::parse_from([&["bench"], arguments].concat()).bench;
            run(&bench).unwrap_err().to_string()
        };
        assert!(said(&["--device", "vulkan"]).contains("--alone"));
        assert!(said(&["--device", "cudda"]).contains("found `cudda`"));
        assert!(said(&["--preset", "moe-8x"]).contains("--peer"));
        assert!(said(&["--ops", "--preset", "nano-llama", "--preset", "nano-gpt2"]).contains("--ops"));
    }
}
