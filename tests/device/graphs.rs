//! Runs whose micro-batches are recorded and replayed: losses are those of runs that launch every kernel, to the bit.

use std::path::Path;

use bridge_tests::{bridge, figures_in, losses_of, run_in};

use super::DEVICE;

const GRAPHS: [&str; 2] = ["model.cuda_graph_impl=local", "model.cuda_graph_scope=full_iteration"];

/// What graphs go with, and a run that tells each step's loss: four micro-batches a step.
const USUAL: [&str; 5] = [
    "rerun_state_machine.check_for_nan_in_loss=false",
    "train.train_iters=8",
    "train.global_batch_size=8",
    "validation.eval_iters=1",
    "validation.eval_interval=3",
];

const GPT_2: [&str; 7] = [
    "model.normalization=LayerNorm",
    "model.position_embedding_type=learned_absolute",
    "model.gated_linear_unit=false",
    "model.activation_func=gelu",
    "model.add_bias_linear=true",
    "model.num_query_groups=8",
    "model.share_embeddings_and_output_weights=true",
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
    let expected = [0.0, 0.0, 0.0, 4.0, 4.0, 4.0, 4.0, 4.0];
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

/// Documents whose borders differ from row to row, with positions that begin again or not.
#[test]
fn documents_are_read_anew_by_each_replay() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..400).map(|i| format!("{}\n", "word and number ".repeat(1 + i * 7 % 13))).collect();
    std::fs::write(folder.path().join("text.txt"), text).unwrap();
    let source = format!("dataset.source={}", folder.path().join("text.txt").display());
    let data = ["dataset.kind=gpt", source.as_str(), "dataset.split=9,1,0", "dataset.reset_attention_mask=true"];
    let tokenizer =
        ["tokenizer.tokenizer_type=ByteLevelTokenizer", "tokenizer.vocab_size=null", "model.vocab_size=null"];
    let arguments = [&data[..], &tokenizer].concat();
    check_on(DEVICE, &arguments);
    check_on(DEVICE, &[&arguments[..], &["dataset.reset_position_ids=true"]].concat());
}
