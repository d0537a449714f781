//! Runs whose micro-batches are recorded and replayed: losses are those of runs that launch every
//! kernel, to the bit.

use std::path::Path;

use bridge_tests::{bridge, figures_in, losses_of, run_in};

use super::{DEVICE, GPT_2};

const GRAPHS: [&str; 2] = ["model.cuda_graph_impl=local", "model.cuda_graph_scope=full_iteration"];

/// Overrides for graphs, and a run that logs each step's loss: eight micro-batches a step.
const USUAL: [&str; 5] = [
    "rerun_state_machine.check_for_nan_in_loss=false",
    "train.train_iters=8",
    "train.global_batch_size=8",
    "validation.eval_iters=1",
    "validation.eval_interval=3",
];

fn run_on(device: &str, folder: &Path, arguments: &[&str]) {
    let device = format!("device={device}");
    run_in(folder, &[&[device.as_str()], &USUAL[..], arguments].concat());
}

/// A figure of each step.
fn figures(folder: &Path, figure: &str) -> Vec<f64> {
    figures_in(&folder.join("runs/tiny"), "train", figure)
}

fn all_losses(folder: &Path) -> [Vec<f64>; 3] {
    [losses_of(folder, "train"), losses_of(folder, "valid"), figures(folder, "grad_norm")]
}

/// Runs with graphs and without, and returns the folder of the one with.
fn check_on(device: &str, arguments: &[&str]) -> tempfile::TempDir {
    let [plain, recorded] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    run_on(device, plain.path(), arguments);
    run_on(device, recorded.path(), &[&GRAPHS[..], arguments].concat());
    assert_eq!(all_losses(recorded.path()), all_losses(plain.path()), "{arguments:?}");
    let graphs: f64 = figures(recorded.path(), "recorded_graphs").iter().sum();
    assert!((1.0..=2.0).contains(&graphs), "{arguments:?}: {graphs} graphs");
    recorded
}

fn check(arguments: &[&str]) {
    let folder = check_on(DEVICE, arguments);
    // By default the first three steps come before.
    let expected = [0.0, 0.0, 0.0, 8.0, 8.0, 8.0, 8.0, 8.0];
    assert_eq!(figures(folder.path(), "replayed_micro_batches"), expected, "{arguments:?}");
}

#[test]
fn replayed_micro_batches_train_as_launched_ones() {
    check(&[]);
    check(&GPT_2);
}

#[test]
fn recomputed_layers_are_recorded_as_they_run() {
    let full = ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"];
    check(&full);
    check(&[&GPT_2[..], &["model.recompute_granularity=selective"]].concat());
}

/// Updates that return new memory (from the host, and of narrower parameters with float32 masters)
/// are copied to the graph's inputs.
#[test]
fn parameters_that_move_are_copied_back() {
    let host = ["optimizer.optimizer_cpu_offload=true", "optimizer.optimizer_offload_fraction=1.0"];
    let folder = check_on(DEVICE, &host);
    assert_eq!(figures(folder.path(), "recorded_graphs")[3..], [1.0, 1.0, 0.0, 0.0, 0.0], "recorded anew, once");
    check_on(DEVICE, &["mixed_precision=fp16_mixed", "optimizer.initial_loss_scale=256"]);
}

/// Documents of which borders and positions differ from row to row. Where a micro-batch has a
/// document per row its positions count up, which is another form of it: that is launched.
#[test]
fn documents_are_read_anew_by_each_replay() {
    let documents = ["dataset.reset_attention_mask=true", "dataset.eod_mask_loss=true"];
    check_on(DEVICE, &documents);
    check_on(DEVICE, &[&documents[..], &["dataset.reset_position_ids=true"]].concat());
}

/// Examples that are filled up to the longest of their micro-batch only.
#[test]
fn micro_batches_of_another_shape_are_launched() {
    let data = tempfile::tempdir().unwrap();
    let example = |number: usize| {
        let length = if number % 5 == 4 { 30 } else { 50 };
        let ids: Vec<String> = (0..length).map(|at| ((number * 31 + at * at * 7 + at) % 511).to_string()).collect();
        let (input, output) = ids.split_at(length / 3);
        format!("{{\"input\": \"{}\", \"output\": \"{}\"}}\n", input.join(" "), output.join(" "))
    };
    for name in ["training", "validation"] {
        let text: String = (0..40).map(example).collect();
        std::fs::write(data.path().join(name).with_extension("jsonl"), text).unwrap();
    }
    let root = format!("dataset.dataset_root={}", data.path().display());
    let examples = [
        "dataset.kind=finetuning",
        root.as_str(),
        "dataset.dataset_kwargs.pad_seq_length_to_mult=1",
        "model.calculate_per_token_loss=true",
        "ddp.average_in_collective=false",
        "train.micro_batch_size=1",
    ];
    let folder = check_on(DEVICE, &examples);
    let last = |figure: &str| figures(folder.path(), figure)[4..].iter().sum::<f64>();
    assert!(last("replayed_micro_batches") > last("launched_micro_batches"));
    assert!(last("launched_micro_batches") > 0.0, "some are shorter");
}

#[test]
fn a_run_goes_on_with_graphs_of_its_own() {
    let [whole, parts] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    let saves = ["checkpoint.save=checkpoints", "model.cuda_graph_warmup_steps=1"];
    let arguments = [&GRAPHS[..], &saves].concat();
    run_on(DEVICE, whole.path(), &arguments);
    run_on(DEVICE, parts.path(), &[&arguments[..], &["train.exit_interval=5"]].concat());
    run_on(DEVICE, parts.path(), &arguments);
    assert_eq!(losses_of(parts.path(), "train"), losses_of(whole.path(), "train"));
    assert_eq!(figures(parts.path(), "recorded_graphs").iter().filter(|count| **count > 0.0).count(), 2);
}

/// Gradients are reduced after the graph, over ranks that share a device; ranks that are threads
/// of one process are refused on CUDA, whose driver records for the process.
#[test]
fn replicas_reduce_what_graphs_have_summed() {
    let first = format!("{DEVICE}:0");
    let two = ["--ranks", "2"];
    if cfg!(feature = "cuda") {
        let folder = tempfile::tempdir().unwrap();
        let device = format!("device={first}");
        let output = bridge(folder.path(), &[&two[..], &[device.as_str()], &USUAL, &GRAPHS].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("model.cuda_graph_impl"), "{error}");
        return;
    }
    check_on(&first, &two);
    check_on(&first, &[&two[..], &["ddp.use_distributed_optimizer=true"]].concat());
}
