//! What many ranks have saved, read by the commands that are one process: evaluation, generation, export.

use std::path::Path;
use std::process::Command;

use bridge_tests::{assert_close, run_in};
use serde_json::Value;

const MODEL: [&str; 4] =
    ["model.num_layers=4", "checkpoint.save=saved", "train.train_iters=4", "validation.eval_interval=null"];
const EXPERTS: [&str; 4] = [
    "model.num_moe_experts=4",
    "model.moe_router_topk=2",
    "model.moe_ffn_hidden_size=96",
    "model.moe_token_dispatcher_type=alltoall",
];

fn bridge(folder: &Path, arguments: &[&str]) -> String {
    let output =
        Command::new(bridge_tests::program()).args(arguments).current_dir(folder).output().expect("bridge starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&bridge(folder, &[arguments, &["--json"]].concat())).unwrap()
}

/// What one process makes of what was saved: the loss on the recipe's data, a continuation, and the loss of the exported model if
/// there is a Hugging Face family for it.
fn read_back(arguments: &[&str], exports: bool) -> (Vec<f64>, Value) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run_in(folder, &[&MODEL[..], arguments].concat());
    let data = ["--split", "test", "--max-samples", "6"];
    let loss = |report: Value| report["loss"].as_f64().unwrap();
    let mut losses = vec![loss(json(folder, &[&["eval", "saved"], &data[..]].concat()))];
    if exports {
        bridge(folder, &["convert", "export", "saved", "exported"]);
        // The data of a recipe that was written for ranks, too.
        let recipe = ["--recipe", "saved/iter_0000004/run_config.toml"];
        losses.push(loss(json(folder, &[&["eval", "exported"], &recipe, &data[..]].concat())));
    }
    let prompt = ["--prompt", "5 17 3", "--greedy", "--max-tokens", "8"];
    (losses, json(folder, &[&["generate", "saved"], &prompt[..]].concat()))
}

fn check(model: &[&str], exports: bool, layouts: &[&[&str]]) {
    let (losses, text) = read_back(model, exports);
    for layout in layouts {
        let (found, continued) = read_back(&[model, layout].concat(), exports);
        assert_close(&found, &losses, &layout.join(" "));
        assert_eq!(continued, text, "{layout:?}");
    }
}

#[test]
fn models_that_were_spread_are_whole_again() {
    let tensor_pipeline: &[&str] = &[
        "--ranks",
        "4",
        "model.tensor_model_parallel_size=2",
        "model.sequence_parallel=true",
        "model.pipeline_model_parallel_size=2",
    ];
    let chunks: &[&str] = &[
        "--ranks",
        "4",
        "model.pipeline_model_parallel_size=2",
        "model.virtual_pipeline_model_parallel_size=2",
        "ddp.use_distributed_optimizer=true",
        "ddp.overlap_grad_reduce=true",
        "ddp.overlap_param_gather=true",
    ];
    let uneven: &[&str] = &[
        "--ranks",
        "2",
        "model.pipeline_model_parallel_size=2",
        "model.num_layers_in_first_pipeline_stage=3",
        "model.pipeline_schedule=zb_h1",
    ];
    let sharded: &[&str] = &[
        "--ranks",
        "4",
        "model.context_parallel_size=2",
        "ddp.use_megatron_fsdp=true",
        "ddp.data_parallel_sharding_strategy=optim_grads_params",
    ];
    check(&[], true, &[tensor_pipeline, chunks, uneven, sharded]);
}

#[test]
fn experts_that_were_spread_are_together_again() {
    let experts: &[&str] = &["--ranks", "2", "model.expert_model_parallel_size=2"];
    let tensors: &[&str] =
        &["--ranks", "4", "model.expert_model_parallel_size=2", "model.tensor_model_parallel_size=2"];
    check(&EXPERTS, false, &[experts, tensors]);
}
