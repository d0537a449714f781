//! `cargo xtask bench`: training steps and single operations against PyTorch on the same machine, in paired runs.
//!
//! Rounds alternate: Bridge, PyTorch, `torch.compile` if requested, Bridge again. A busy machine slows all of them, so the
//! report has the median of the rounds' ratios, never the time of one side alone.

mod peer;
mod report;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::build::build_bridge;
use peer::{Peer, Program};
use report::{OpRow, Report, StepRow, median};

/// The presets that both sides support, with benchmarks/peer_torch.py.
const PRESETS: [&str; 4] = ["nano-gpt2", "nano-llama", "smol-135m", "gpt2-124m"];
/// The presets of Bridge that it does not have: for another peer.
const OF_OTHER_PEERS: [&str; 6] =
    ["nano-gemma", "moe-8x", "mamba2-20m", "smol-135m-full", "smol-135m-lora", "smol-135m-dora"];

/// What to measure, and with which PyTorch.
#[derive(Debug, Args)]
pub struct Bench {
    /// A preset to train: nano-gpt2, nano-llama, smol-135m or gpt2-124m, or with --peer any other one that it has. May be repeated; all four
    /// by default.
    #[arg(long = "preset", value_parser = PRESETS.into_iter().chain(OF_OTHER_PEERS).collect::<Vec<_>>())]
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
    /// Also measure `torch.compile`.
    #[arg(long)]
    compile: bool,
    /// Compare single operations with PyTorch's instead of whole steps.
    #[arg(long)]
    ops: bool,
    /// Measure Bridge only; needs no PyTorch.
    #[arg(long, conflicts_with_all = ["compile", "install_peer", "peer", "python"])]
    alone: bool,
    /// A Python program that prints the figures of a step as benchmarks/peer_torch.py does (the default).
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
    let peer = match bench.alone {
        true => None,
        false => Some(Peer::find(bench.python.as_deref(), bench.peer.as_deref(), bench.install_peer)?),
    };
    let bridge = build_bridge(&[])?;
    let sides = Sides { bench, bridge, peer };
    let report = match bench.ops {
        true => Report::ops(sides.ops()?),
        false => Report::steps(sides.steps()?),
    };
    println!("{}", if bench.json { serde_json::to_string_pretty(&report.json())? } else { report.table() });
    if bench.save {
        eprintln!("saved as {}", report.save()?.display());
    }
    Ok(ExitCode::SUCCESS)
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
                row.eager.push(peer.run(Program::Step(preset), &self.options(&[]))?);
                if self.bench.compile {
                    row.compiled.push(peer.run(Program::Step(preset), &self.options(&["--compile"]))?);
                }
            }
        }
        Ok(row)
    }

    fn ops(&self) -> Result<Vec<OpRow>> {
        let mut rounds = Vec::new();
        for round in 1..=self.bench.rounds {
            eprintln!("operations, round {round} of {}", self.bench.rounds);
            let ours = self.ours(&["--ops"])?;
            let theirs = match &self.peer {
                Some(peer) => Some(peer.run(Program::Ops, &self.options(&[]))?),
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
            .args(self.options(&[]))
            .output()
            .context("bridge could not be started")?;
        ensure!(output.status.success(), "bridge bench failed: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).context("bridge bench did not print one JSON line")
    }

    fn options(&self, more: &[&str]) -> Vec<String> {
        let mut options = vec!["--steps".to_owned(), self.bench.steps.to_string()];
        if let Some(threads) = self.bench.threads {
            options.extend(["--threads".to_owned(), threads.to_string()]);
        }
        options.extend(more.iter().map(|option| (*option).to_owned()));
        options
    }
}
