//! Checkpoints saved at one layout of ranks and continued at others: the losses are those that the first layout would have had.

use std::path::Path;

use bridge_tests::{assert_close, copy, losses_of, run_in};

/// A model with as many layers as the longest pipeline has stages.
const MODEL: &[&str] = &["model.num_layers=4", "checkpoint.save=checkpoints"];

const ONE: &[&str] = &[];
const PIPELINE: &[&str] = &["--ranks", "4", "model.pipeline_model_parallel_size=4"];
const DATA: &[&str] = &["--ranks", "4"];
const SHARDED: &[&str] =
    &["--ranks", "4", "model.pipeline_model_parallel_size=2", "ddp.use_distributed_optimizer=true"];

const TENSOR: &[&str] = &["--ranks", "4", "model.tensor_model_parallel_size=4"];
const TENSOR_PIPELINE: &[&str] =
    &["--ranks", "4", "model.tensor_model_parallel_size=2", "model.pipeline_model_parallel_size=2"];

const FULLY_SHARDED: &[&str] = &[
    "--ranks",
    "4",
    "model.tensor_model_parallel_size=2",
    "ddp.use_megatron_fsdp=true",
    "ddp.data_parallel_sharding_strategy=optim_grads_params",
];

/// Trains half of the steps at `from`, the other half at each of `to`, and compares with an uninterrupted run at `from`.
fn check(from: &[&str], to: &[&[&str]]) {
    let whole = tempfile::tempdir().unwrap();
    run_in(whole.path(), &[MODEL, from].concat());
    let expected = losses_of(whole.path(), "train").split_off(10);
    let half = tempfile::tempdir().unwrap();
    run_in(half.path(), &[MODEL, from, &["train.exit_interval=10"]].concat());
    assert_eq!(losses_of(half.path(), "train").len(), 10);
    for layout in to {
        let folder = tempfile::tempdir().unwrap();
        copy(&half.path().join("checkpoints"), &folder.path().join("checkpoints"));
        run_in(folder.path(), &[MODEL, layout].concat());
        assert_close(&losses_of(folder.path(), "train"), &expected, &format!("{from:?} -> {layout:?}"));
        let last = |folder: &Path| losses_of(folder, "test");
        assert_close(&last(folder.path()), &last(whole.path()), &format!("{from:?} -> {layout:?}, test"));
    }
}

#[test]
fn what_a_pipeline_with_a_sharded_optimizer_saved_goes_on_anywhere() {
    let in_background = [SHARDED, &["checkpoint.async_save=true"]].concat();
    check(&in_background, &[ONE, DATA, PIPELINE, SHARDED]);
}

#[test]
fn what_one_rank_saved_goes_on_anywhere() {
    check(ONE, &[DATA, PIPELINE, SHARDED, TENSOR, TENSOR_PIPELINE, FULLY_SHARDED]);
}

#[test]
fn slices_of_tensors_go_on_anywhere() {
    check(TENSOR_PIPELINE, &[ONE, DATA, TENSOR, TENSOR_PIPELINE]);
}

#[test]
fn rows_that_several_ranks_hold_are_saved_once_and_go_on_anywhere() {
    let eight = ["--ranks", "8", "model.tensor_model_parallel_size=4"];
    let with = |layout: &[&'static str], more: &[&'static str]| [&["model.num_query_groups=2"], layout, more].concat();
    let sharded = with(&eight, &["ddp.use_distributed_optimizer=true"]);
    let (one, four, fully) = (with(ONE, &[]), with(TENSOR, &[]), with(&eight, &FULLY_SHARDED[3..]));
    check(&sharded, &[&one, &four, &fully]);
    check(&fully, &[&one]);
}

#[test]
fn shards_of_parameters_go_on_anywhere() {
    check(FULLY_SHARDED, &[ONE, FULLY_SHARDED, TENSOR_PIPELINE]);
}
