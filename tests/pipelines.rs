//! Runs of `recipes/tiny.toml` on pipelines of ranks against the run on one: the same losses with
//! any schedule and split.

use bridge_tests::{assert_close, bridge, run};

/// Losses with `layers` on one rank, and on pipelines with each of `layouts`.
fn check(model: &[&str], layouts: &[&[&str]]) {
    let single = run(model);
    assert_eq!(single.len(), 20 + 3 + 1);
    for layout in layouts {
        assert_close(&run(&[model, layout].concat()), &single, &layout.join(" "));
    }
}

#[test]
fn pipelines_train_like_one_rank() {
    let layouts: &[&[&str]] = &[
        &["--ranks", "2", "model.pipeline_model_parallel_size=2"],
        &["--ranks", "4", "model.pipeline_model_parallel_size=4"],
        &["--ranks", "4", "model.pipeline_model_parallel_size=2"],
        &["--ranks", "2", "model.pipeline_model_parallel_size=2", "model.virtual_pipeline_model_parallel_size=2"],
        &["--ranks", "2", "model.pipeline_model_parallel_size=2", "model.pipeline_schedule=gpipe"],
        &["--ranks", "2", "model.pipeline_model_parallel_size=2", "model.pipeline_schedule=zb_h1"],
    ];
    check(&["model.num_layers=4"], layouts);
}

#[test]
fn layers_are_spread_as_the_recipe_says() {
    let two = ["--ranks", "2", "model.pipeline_model_parallel_size=2"];
    let uneven = [&two[..], &["model.num_layers_in_first_pipeline_stage=3"]].concat();
    let counted = ["--ranks", "3", "model.pipeline_model_parallel_size=3"];
    let counted = [
        &counted[..],
        &["model.account_for_embedding_in_pipeline_split=true", "model.account_for_loss_in_pipeline_split=true"],
    ]
    .concat();
    let layout = [&two[..], &["model.pipeline_model_parallel_layout='E|t*3|t|L'"]].concat();
    check(&["model.num_layers=4"], &[&uneven, &counted, &layout]);
}

#[test]
fn tied_embeddings_and_recompute_stay_what_they_are() {
    let model = ["model.num_layers=4", "model.share_embeddings_and_output_weights=true"];
    let pipeline = ["--ranks", "2", "model.pipeline_model_parallel_size=2"];
    let recompute = [
        &pipeline[..],
        &["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"],
    ]
    .concat();
    check(&model, &[&pipeline, &recompute]);
}

#[test]
fn a_residual_stream_in_float32_passes_between_stages() {
    let model = ["model.num_layers=4", "mixed_precision=bf16_mixed", "model.fp32_residual_connection=true"];
    let pipeline = ["--ranks", "2", "model.pipeline_model_parallel_size=2"];
    let recompute = [
        &pipeline[..],
        &["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"],
    ]
    .concat();
    let interleaved = [&pipeline[..], &["model.virtual_pipeline_model_parallel_size=2"]].concat();
    check(&model, &[&pipeline, &recompute, &interleaved]);
}

#[test]
fn pipelines_that_cannot_run_are_refused() {
    let refused = |arguments: &[&str], expected: &str| {
        let folder = tempfile::tempdir().unwrap();
        let output = bridge(folder.path(), arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(expected), "{message}");
    };
    let two = ["--ranks", "2", "model.pipeline_model_parallel_size=2"];
    refused(&[&two[..], &["model.num_layers=3"]].concat(), "num_layers (3) must be divisible by");
    refused(&[&two[..], &["model.pipeline_model_parallel_layout=Et|L"]].concat(), "pipeline layout");
    let virtual_stages = ["model.num_layers=4", "model.virtual_pipeline_model_parallel_size=2"];
    refused(&[&two[..], &virtual_stages[..], &["train.global_batch_size=1"]].concat(), "micro-batches");
}
