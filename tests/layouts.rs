//! Checkpoints saved at one layout of ranks and continued at others: the losses are those that the
//! first layout would have had.

use std::path::Path;

use bridge_tests::{assert_close, bridge_on, copy, losses_in, losses_of, records_in, root, run, run_in};

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

/// Trains half of the steps at `from`, the other half at each of `to`, and compares with an
/// uninterrupted run at `from`.
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

/// Layouts that cut matrices, or have copies of them.
const OF_MATRICES: [&[&str]; 6] = [
    &["--ranks", "2", "model.tensor_model_parallel_size=2"],
    &["--ranks", "4", "model.tensor_model_parallel_size=2", "ddp.use_distributed_optimizer=true"],
    &["--ranks", "2", "model.pipeline_model_parallel_size=2"],
    &["--ranks", "2", "ddp.use_distributed_optimizer=true"],
    &["--ranks", "2", "ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"],
    &["--ranks", "2", "model.context_parallel_size=2"],
];

/// Short runs of optimizers that need whole matrices, as large as Adam's updates.
const TEN: &[&str] = &["train.train_iters=10", "optimizer.muon_extra_scale_factor=0.2"];

#[test]
fn optimizers_of_whole_matrices_learn_the_same_on_any_ranks() {
    for (optimizer, layouts) in
        [("optimizer.optimizer=muon", &OF_MATRICES[..]), ("optimizer.optimizer=adaptive_muon", &OF_MATRICES[1..2])]
    {
        let arguments = [&[optimizer], TEN].concat();
        let one = run(&arguments);
        assert!(one[9] < one[0] - 0.2, "{optimizer}: {one:?}");
        for layout in layouts {
            assert_close(&run(&[&arguments[..], layout].concat()), &one, &format!("{optimizer} at {layout:?}"));
        }
    }
}

#[test]
fn optimizers_of_whole_matrices_train_experts_the_same_on_any_ranks() {
    let losses = |layout: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let arguments = [&["optimizer.optimizer=muon"], TEN, layout].concat();
        let output = bridge_on(&root().join("recipes/tiny-moe.toml"), folder.path(), &arguments);
        assert!(output.status.success(), "{layout:?}: {}", String::from_utf8_lossy(&output.stderr));
        losses_in(&folder.path().join("runs/tiny-moe"))
    };
    let one = losses(&[]);
    for layout in [
        &["--ranks", "2", "model.expert_model_parallel_size=2"][..],
        &["--ranks", "4", "model.expert_model_parallel_size=2", "ddp.use_distributed_optimizer=true"],
    ] {
        assert_close(&losses(layout), &one, &format!("{layout:?}"));
    }
}

#[test]
fn states_of_whole_matrices_go_on_anywhere() {
    let muon = |layout: &[&'static str]| {
        [&["optimizer.optimizer=muon", "optimizer.muon_extra_scale_factor=0.2"], layout].concat()
    };
    check(&muon(OF_MATRICES[1]), &[&muon(ONE), &muon(FULLY_SHARDED), &muon(PIPELINE)]);
}

/// Runs of the recipe with an encoder and a decoder, of two layers each.
fn encoder_decoder(folder: &Path, arguments: &[&str]) {
    let output = bridge_on(&root().join("recipes/tiny-t5.toml"), folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

const T5_LAYOUTS: [&[&str]; 6] = [
    &["--ranks", "2", "model.tensor_model_parallel_size=2"],
    &["--ranks", "4", "model.tensor_model_parallel_size=4", "model.sequence_parallel=true"],
    // The encoder on one stage, the decoder on the other; then each layer on a stage of its own.
    &["--ranks", "2", "model.pipeline_model_parallel_size=2"],
    &["--ranks", "4", "model.pipeline_model_parallel_size=4", "model.share_embeddings_and_output_weights=true"],
    &["--ranks", "2", "ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"],
    &["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"],
];

#[test]
fn an_encoder_and_a_decoder_learn_the_same_on_any_ranks() {
    let losses = |arguments: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        encoder_decoder(folder.path(), arguments);
        losses_in(&folder.path().join("runs/tiny-t5"))
    };
    let plain = losses(&[]);
    let tied = losses(&["model.share_embeddings_and_output_weights=true"]);
    assert!(plain[19] < plain[0] - 0.2, "{plain:?}");
    for layout in T5_LAYOUTS {
        let expected = if layout.contains(&"model.share_embeddings_and_output_weights=true") { &tied } else { &plain };
        assert_close(&losses(layout), expected, &format!("{layout:?}"));
    }
}

#[test]
fn an_encoder_and_a_decoder_go_on_at_other_layouts() {
    let log = |folder: &Path| records_in(&folder.join("runs/tiny-t5"), "train");
    let save = ["checkpoint.save=checkpoints"];
    let whole = tempfile::tempdir().unwrap();
    encoder_decoder(whole.path(), &save);
    let expected = log(whole.path()).split_off(10);
    let half = tempfile::tempdir().unwrap();
    encoder_decoder(half.path(), &[T5_LAYOUTS[2], &save, &["train.exit_interval=10"]].concat());
    for layout in [T5_LAYOUTS[0], T5_LAYOUTS[4], &[]] {
        let folder = tempfile::tempdir().unwrap();
        copy(&half.path().join("checkpoints"), &folder.path().join("checkpoints"));
        encoder_decoder(folder.path(), &[layout, &save].concat());
        assert_close(&log(folder.path()), &expected, &format!("{layout:?}"));
    }
}
