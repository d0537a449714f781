//! Steps of many micro-batches: only a few are held at a time, and a stop request takes effect
//! between two of them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bridge_core::model::Batch;
use bridge_core::train::{
    CancelHandle, ExitReason, ForwardStep, LanguageModelStep, RunOptions, pretrain, rank_timeout, run_on_threads,
};
use bridge_data::MicroBatch;
use burn::tensor::{Device, Tensor};

use super::{config, options};
use bridge_tests::{assert_close, bridge, losses, recipe, records_in, run_in};

/// Micro-batches so large that no more than two or three are held at a time: five in a step.
const LARGE: [&str; 11] = [
    "model.hidden_size=8",
    "model.num_layers=1",
    "model.num_attention_heads=1",
    "model.num_query_groups=1",
    "model.ffn_hidden_size=8",
    "model.vocab_size=32",
    "tokenizer.vocab_size=31",
    "train.micro_batch_size=2048",
    "train.global_batch_size=10240",
    "train.train_iters=3",
    "validation.eval_iters=1",
];

#[test]
fn a_step_that_is_read_in_parts_is_the_same_step() {
    let folder = tempfile::tempdir().unwrap();
    let spiky = ["rerun_state_machine.check_for_spiky_loss=true", "rerun_state_machine.spiky_loss_factor=0.01"];
    let common = [&LARGE[..], &spiky].concat();
    // One step with enough small micro-batches that later losses can be spikes.
    let small = ["train.micro_batch_size=64", "train.exit_interval=1", "checkpoint.save=saved"];
    run_in(folder.path(), &[&common[..], &small].concat());
    let go_on = |arguments: &[&str]| {
        let output = bridge(folder.path(), &[&common[..], &["checkpoint.load=saved"], arguments].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (losses(folder.path()), String::from_utf8(output.stdout).unwrap())
    };
    let (parts, _) = go_on(&[]);
    assert_eq!(parts.len(), 3 + 1 + 1);
    // On five ranks each has one micro-batch.
    assert_close(&go_on(&["--ranks", "5"]).0, &parts, "5 ranks");
    // A step that is repeated reads its data again.
    let (repeated, said) = go_on(&["rerun_state_machine.rerun_mode=validate_results"]);
    assert!(said.contains("Spiky loss"), "{said}");
    assert_eq!(repeated, parts, "repeated");
    // A skipped iteration reads its data, too: the next iteration has its own data.
    let (skipped, said) = go_on(&["train.iterations_to_skip=[2]"]);
    assert!(said.contains("iteration 2 skipped"), "{said}");
    assert!((skipped[1] - parts[2]).abs() < 0.05 && skipped[1] != parts[2], "{skipped:?}, {parts:?}");
}

/// Takes its time for each micro-batch, and asks for a stop in one of them.
struct Slow {
    cancel: Option<CancelHandle>,
    seen: Arc<AtomicUsize>,
}

/// Micro-batches of a step of [`Slow`].
const STEP: usize = 8;

impl ForwardStep for Slow {
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch {
        LanguageModelStep.prepare(micro_batch, device)
    }

    fn objective(&mut self, loss_sum: Tensor<1>, _batch: &Batch) -> Tensor<1> {
        sleep(Duration::from_millis(300));
        // The second micro-batch of the second step.
        if self.seen.fetch_add(1, Ordering::SeqCst) == STEP + 1
            && let Some(cancel) = &self.cancel
        {
            cancel.cancel();
        }
        loss_sum
    }
}

#[test]
fn a_step_is_left_between_micro_batches() {
    let train_losses = |folder: &Path| records_in(&folder.join("logs"), "train");
    for ranks in [1, 3] {
        let folder = tempfile::tempdir().unwrap();
        let save = format!("checkpoint.save={:?}", folder.path().join("saved"));
        let batch = format!("train.global_batch_size={}", STEP * ranks);
        let common = [save.as_str(), &batch, "train.train_iters=3", "validation.eval_iters=0"];
        let slow = config(folder.path(), ranks, &common);
        let seen: Vec<_> = (0..ranks).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        let reasons = run_on_threads(&slow, rank_timeout(&slow), |groups| {
            let rank = groups.world().rank();
            let cancel = CancelHandle::default();
            // Only the last rank gets the request.
            let step = Slow { cancel: (rank + 1 == ranks).then(|| cancel.clone()), seen: Arc::clone(&seen[rank]) };
            let report =
                pretrain(slow.clone(), RunOptions { cancel, forward_step: Box::new(step), ..options(groups) })?;
            Ok((report.reason, report.train_state.step))
        });
        assert!(reasons.unwrap().iter().all(|end| *end == (ExitReason::Cancelled, 1)), "{ranks} ranks");
        let seen: Vec<usize> = seen.iter().map(|seen| seen.load(Ordering::SeqCst)).collect();
        assert!(seen.iter().all(|here| (STEP + 2..2 * STEP).contains(here) && *here == seen[0]), "{seen:?}");
        let pointer = folder.path().join("saved/latest_checkpointed_iteration.txt");
        assert_eq!(std::fs::read_to_string(pointer).unwrap().trim(), "1");
        // The step that was left is made again, as if nothing had been.
        let run = |folder: &Path| {
            let save = format!("checkpoint.save={:?}", folder.join("saved"));
            let config = config(folder, ranks, &[&[save.as_str()], &common[1..]].concat());
            run_on_threads(&config, rank_timeout(&config), |groups| {
                pretrain(config.clone(), options(groups)).map(drop)
            })
            .unwrap();
            train_losses(folder)
        };
        let whole = tempfile::tempdir().unwrap();
        assert_eq!(run(folder.path()), run(whole.path()), "{ranks} ranks");
    }
}

/// Figures of a process, in kilobytes.
fn peak_memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

#[test]
fn a_signal_ends_a_step_of_any_size_and_its_data_fits_into_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| std::fs::File::create(folder.path().join(name)).map(Stdio::from).unwrap();
    let mut program = Command::new(bridge_tests::program())
        .arg("train")
        .arg(recipe())
        .args(["--ranks", "3", "train.micro_batch_size=1", "train.global_batch_size=600000", "train.train_iters=1"])
        .args(["train.num_threads=1", "logger.progress=none", "checkpoint.save=saved"])
        .current_dir(folder.path())
        .stdout(file("out"))
        .stderr(file("err"))
        .spawn()
        .expect("bridge starts");
    let said = || std::fs::read_to_string(folder.path().join("out")).unwrap();
    let started = Instant::now();
    while !said().contains("1 iterations of 600000") {
        assert!(started.elapsed() < Duration::from_secs(120) && program.try_wait().unwrap().is_none());
        sleep(Duration::from_millis(20));
    }
    sleep(Duration::from_secs(4));
    let peak = peak_memory(program.id());
    assert!(Command::new("kill").args(["-TERM", &program.id().to_string()]).status().unwrap().success());
    let (asked, code) = (Instant::now(), program.wait().unwrap().code());
    assert_eq!(code, Some(128 + 15), "{}", said());
    assert!(said().contains("iteration 1 is left unfinished"), "{}", said());
    assert!(asked.elapsed() < Duration::from_secs(30), "{:?}", asked.elapsed());
    assert!(peak < 400_000, "{peak} kB");
    // No step was trained, so no checkpoint is saved.
    assert!(!folder.path().join("saved/latest_checkpointed_iteration.txt").exists());
}
