//! Slow ranks: the named ranks, the slow quantities, and the possible consequences; the port that
//! switches the times of ranks on and off.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use bridge_core::logging::health::RankScores;
use bridge_core::model::Batch;
use bridge_core::train::{
    Agreement, Console, ForwardStep, LanguageModelStep, RunContext, RunOptions, Subsystem, SubsystemError, pretrain,
    rank_timeout, run_on_threads,
};
use bridge_data::MicroBatch;
use bridge_dist::mesh::ProcessGroups;
use burn::tensor::Device;

use super::{Lines, config, options};

/// Trains on `ranks` ranks with options that `change` changes for each rank; exit code and console.
fn train(
    folder: &Path,
    ranks: usize,
    overrides: &[&str],
    change: impl Fn(usize, &mut RunOptions, &Lines) + Sync,
) -> (i32, String) {
    let batch = format!("train.global_batch_size={ranks}");
    let common = [batch.as_str(), "validation.eval_iters=0", "train.train_iters=24", "model.num_layers=1"];
    let config = config(folder, ranks, &[&common[..], overrides].concat());
    let lines = Lines::default();
    let program = |groups: ProcessGroups| {
        let rank = groups.world().rank();
        let mut options = RunOptions { console: Console::Writer(Box::new(lines.clone())), ..options(groups) };
        change(rank, &mut options, &lines);
        pretrain(config.clone(), options).map(|report| report.reason.exit_code())
    };
    let codes = run_on_threads(&config, rank_timeout(&config), program).expect("it trains");
    (codes[0], lines.text())
}

/// Far more than a step takes on a machine that does much else.
const SLOW: Duration = Duration::from_millis(150);

/// Is slow in the forward pass.
struct SlowStep;

impl ForwardStep for SlowStep {
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch {
        std::thread::sleep(SLOW);
        LanguageModelStep.prepare(micro_batch, device)
    }
}

/// Is slow between steps.
struct SlowBetween;

impl Subsystem for SlowBetween {
    fn name(&self) -> &str {
        "slow between steps"
    }

    fn agreement(&self) -> Agreement {
        Agreement::Symmetric
    }

    fn before_step(&mut self, _run: &mut RunContext) -> Result<(), SubsystemError> {
        std::thread::sleep(SLOW);
        Ok(())
    }
}

/// The ranks of the lines that name a straggler.
fn named(console: &str) -> Vec<usize> {
    let rest = console.lines().filter_map(|line| line.strip_prefix("straggler: rank "));
    rest.map(|rest| rest.split(',').next().unwrap().parse().unwrap()).collect()
}

const SCORES: [&str; 3] = [
    "nvrx_straggler.enabled=true",
    "nvrx_straggler.report_time_interval=0.01",
    // Other programs on this machine may hold a rank up; none as much as this.
    "nvrx_straggler.gpu_relative_perf_threshold=0.3",
];

/// Runs with a slow rank, and as many without one.
fn cases() -> usize {
    std::env::var("BRIDGE_STRAGGLERS").map_or(4, |cases| cases.parse().expect("a number of cases"))
}

/// Layout of a case: data-parallel ranks, or two stages of two.
fn layout(case: usize) -> &'static [&'static str] {
    let stages = &["model.pipeline_model_parallel_size=2", "model.num_layers=2", "train.global_batch_size=4"];
    if case % 4 < 2 { &[] } else { stages }
}

#[test]
fn a_slow_rank_is_named_and_those_that_wait_for_it_are_not() {
    for case in 0..cases() {
        let (slow, between) = ((2 + 3 * (case / 2)) % 4, case % 2 == 1);
        let folder = tempfile::tempdir().unwrap();
        let relative = ["nvrx_straggler.calc_individual_gpu_perf=false", "train.train_iters=18"];
        let overrides = [&SCORES[..], &relative, layout(case)].concat();
        let (code, console) = train(folder.path(), 4, &overrides, |rank, options, _| {
            if rank == slow && between {
                options.subsystems.push(Box::new(SlowBetween));
            } else if rank == slow {
                options.forward_step = Box::new(SlowStep);
            }
        });
        assert_eq!(code, 0, "{console}");
        let named = named(&console);
        assert!(!named.is_empty() && named.iter().all(|rank| *rank == slow), "{case}: {named:?} for {slow}: {console}");
        assert!(console.contains(&format!("worst: rank {slow} ")), "{case}: {console}");
        let scores = RankScores::read(&folder.path().join("logs")).expect("others may read them");
        let found: Vec<usize> = scores.ranks.iter().filter(|score| score.is_slow).map(|score| score.rank).collect();
        assert!(found == [slow] && scores.ranks[slow].relative < Some(0.3), "{case}: {scores:?}");
    }
}

/// At the thresholds of the recipe, several windows long.
#[test]
fn healthy_ranks_are_not_named() {
    for case in 0..cases() {
        let folder = tempfile::tempdir().unwrap();
        let scores =
            ["nvrx_straggler.enabled=true", "nvrx_straggler.report_time_interval=0.01", "train.train_iters=60"];
        let (code, console) = train(folder.path(), 4, &[&scores[..], layout(case)].concat(), |_, _, _| ());
        assert_eq!(code, 0, "{console}");
        assert!(console.contains("performance of ranks"), "{case}: {console}");
        assert!(named(&console).is_empty(), "{case}: {console}");
    }
}

#[test]
fn a_run_with_a_straggler_saves_and_exits_if_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let save = format!("checkpoint.save={:?}", folder.path().join("saved"));
    let stop = [save.as_str(), "nvrx_straggler.stop_if_detected=true", "nvrx_straggler.enable_logging=false"];
    let (code, console) = train(folder.path(), 2, &[&SCORES[..], &stop].concat(), |rank, options, _| {
        if rank == 1 {
            options.forward_step = Box::new(SlowStep);
        }
    });
    assert_eq!(code, 0, "{console}");
    assert!(console.contains("exiting with code 0: straggler: rank 1, node "), "{console}");
    assert!(!console.contains("performance of ranks"), "{console}");
    // The first step is not counted; sixteen are.
    assert!(folder.path().join("saved/iter_0000017/metadata.json").exists(), "{console}");
}

const TIMES: [&str; 3] = ["straggler.log_straggler=true", "straggler.straggler_ctrlr_port=0", "logger.log_interval=4"];

#[test]
fn times_of_ranks_are_told_each_interval() {
    let folder = tempfile::tempdir().unwrap();
    let (_, console) =
        train(folder.path(), 3, &[&TIMES[..], &["train.train_iters=12"]].concat(), |rank, options, _| {
            if rank == 1 {
                options.forward_step = Box::new(SlowStep);
            }
        });
    let lines: Vec<&str> = console.lines().filter(|line| line.starts_with("time of ranks' own in a step")).collect();
    assert_eq!(lines.len(), 3, "{console}");
    for (line, steps) in lines.iter().zip([3, 4, 4]) {
        assert!(line.contains(&format!("over {steps} steps: ")) && line.contains("; most: rank 1 "), "{line}");
        assert!(line.contains(" TFLOP/s)") && line.contains("communication "), "{line}");
    }
}

/// Asks the port that the console names, once, before an iteration.
struct Asks(u64, Lines);

impl Subsystem for Asks {
    fn name(&self) -> &str {
        "asks"
    }

    fn before_step(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        if run.state.train_state.step + 1 == self.0 {
            let text = self.1.text();
            let port = text.split("a request to a free port ").nth(1).expect("a port").split(' ').next().unwrap();
            let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        }
        Ok(())
    }
}

#[test]
fn the_port_switches_times_on_and_off() {
    let steps_told = |startup: &str| {
        let folder = tempfile::tempdir().unwrap();
        let overrides = [&TIMES[..], &["train.train_iters=20", startup]].concat();
        let (_, console) = train(folder.path(), 2, &overrides, |rank, options, lines| {
            if rank == 0 {
                // Within the second interval and the fourth.
                options.subsystems.push(Box::new(Asks(6, lines.clone())));
                options.subsystems.push(Box::new(Asks(14, lines.clone())));
            }
        });
        let lines = console.lines().filter_map(|line| line.strip_prefix("time of ranks' own in a step, over "));
        lines.map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect::<Vec<u64>>()
    };
    assert_eq!(steps_told("straggler.enable_straggler_on_startup=true"), [3, 4, 4]);
    assert_eq!(steps_told("straggler.disable_straggler_on_startup=true"), [4, 4]);
}
