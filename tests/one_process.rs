//! Saves of many ranks, read by the commands that are one process: evaluation, generation, export.

use std::path::Path;
use std::process::Command;

use bridge_data::indexed::{IndexedDatasetBuilder, TokenDtype};
use bridge_tests::{assert_close, records_in, run_in};
use serde_json::{Value, json};

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

fn report(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&bridge(folder, &[arguments, &["--json"]].concat())).unwrap()
}

/// Results of one process on a save: the loss on the recipe's data, a continuation, and the loss of
/// the exported model if there is a Hugging Face family for it.
fn read_back(arguments: &[&str], exports: bool) -> (Vec<f64>, Value) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    run_in(folder, &[&MODEL[..], arguments].concat());
    let data = ["--split", "test", "--max-samples", "6"];
    let loss = |report: Value| report["loss"].as_f64().unwrap();
    let mut losses = vec![loss(report(folder, &[&["eval", "saved"], &data[..]].concat()))];
    if exports {
        bridge(folder, &["convert", "export", "saved", "exported"]);
        // The data of a recipe that was written for ranks, too.
        let recipe = ["--recipe", "saved/iter_0000004/run_config.toml"];
        losses.push(loss(report(folder, &[&["eval", "exported"], &recipe, &data[..]].concat())));
    }
    let prompt = ["--prompt", "5 17 3", "--greedy", "--max-tokens", "8"];
    (losses, report(folder, &[&["generate", "saved"], &prompt[..]].concat()))
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

/// Four steps of the tiny recipe in `folder`, saved in `saved`.
fn train(folder: &Path, arguments: &[&str]) {
    let recipe = bridge_tests::recipe().display().to_string();
    let common = ["train", &recipe, "checkpoint.save=saved", "train.train_iters=4", "train.global_batch_size=4"];
    let quiet = ["train.micro_batch_size=1", "logger.progress=none", "logger.plot=false"];
    bridge(folder, &[&common[..], &quiet, arguments].concat());
}

/// Ten examples of many lengths.
fn examples(folder: &Path) -> String {
    std::fs::create_dir(folder.join("examples")).unwrap();
    for (name, offset) in [("training", 0), ("validation", 3)] {
        let ids = |from: usize, count: usize| (from..from + count).map(|at| (at * 37 % 511).to_string());
        let text = |from, count| ids(from, count).collect::<Vec<_>>().join(" ");
        let line =
            |i: usize| json!({ "input": text(7 * i + offset, 2 + i), "output": text(9 * i, 1 + 2 * i) }).to_string();
        let lines: Vec<String> = (0..10).map(line).collect();
        std::fs::write(folder.join(format!("examples/{name}.jsonl")), lines.join("\n")).unwrap();
    }
    format!("dataset.dataset_root={}", folder.join("examples").display())
}

/// However many steps the run has made, and however many examples are in a batch.
#[test]
fn examples_of_different_lengths_are_evaluated_once_each() {
    let folder = tempfile::tempdir().unwrap();
    let root = examples(folder.path());
    let of_data = ["dataset.kind=finetuning", &root, "model.seq_length=64"];
    let weighted = ["model.calculate_per_token_loss=true", "ddp.average_in_collective=false"];
    let validated = ["validation.full_validation=true", "logger.log_dir=logs"];
    train(folder.path(), &[&of_data[..], &weighted, &validated].concat());
    let validated = *records_in(&folder.path().join("logs"), "valid").last().expect("the run was validated");
    for more in [&[][..], &["--micro-batch-size", "1"], &["--micro-batch-size", "3", "train.train_iters=400"]] {
        let found = report(folder.path(), &[&["eval", "saved"], more].concat());
        assert_eq!(found["samples"], 10, "{more:?}");
        assert_close(&[found["loss"].as_f64().unwrap()], &[validated], &format!("{more:?}"));
    }
    let trained = report(folder.path(), &["eval", "saved", "--split", "train", "train.train_iters=400"]);
    assert_eq!(trained["samples"], 10);
}

/// Documents in token files: a split of them, and a blend whose weights say how many are read.
#[test]
fn a_split_of_token_files_is_read_once_and_a_blend_with_weights_as_the_run_would() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("tokens");
    let mut builder = IndexedDatasetBuilder::create(&prefix, TokenDtype::U16).unwrap();
    for document in 0..60_i64 {
        let tokens: Vec<i64> = (0..40 + document).map(|i| (i * i + 13 * document) % 509).collect();
        builder.add_item(&tokens).unwrap();
        builder.end_document();
    }
    builder.finalize().unwrap();
    let data = [r#"dataset.kind=gpt"#, r#"dataset.data_path=tokens"#, r#"dataset.split="6,3,1""#];
    train(folder.path(), &[&data[..], &["validation.full_validation=true"]].concat());
    let samples = |more: &[&str]| report(folder.path(), &[&["eval", "saved"], more].concat())["samples"].as_u64();
    let validated = samples(&[]).unwrap();
    // 18 of 60 documents, which have 40 to 99 tokens, in sequences of 64.
    assert!((10..30).contains(&validated), "{validated}");
    for more in [&["train.train_iters=500"][..], &["validation.full_validation=false", "validation.eval_iters=30"]] {
        assert_eq!(samples(more), Some(validated), "{more:?}");
    }
    let trained = samples(&["--split", "train"]).unwrap();
    assert!(trained > validated && samples(&["--split", "train", "train.train_iters=500"]) == Some(trained));
    let by_weight = ["validation.full_validation=false", "dataset.data_path=1.0 tokens", "validation.eval_iters=9"];
    let more = Command::new(bridge_tests::program())
        .args([&["eval", "saved"][..], &by_weight].concat())
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&more.stderr).into_owned();
    assert!(said.contains("a blend with weights has no end: evaluating on the"), "{said}");
}

/// A loss over both answers of a pair has no meaning.
#[test]
fn preferences_are_not_evaluated_as_text() {
    let folder = tempfile::tempdir().unwrap();
    let root = examples(folder.path());
    for name in ["training", "validation"] {
        let line = json!({ "prompt": "1 2 3", "chosen": "4 5", "rejected": "6" }).to_string();
        std::fs::write(folder.path().join(format!("examples/{name}.jsonl")), [line.as_str(); 8].join("\n")).unwrap();
    }
    train(folder.path(), &[]);
    let reference = "checkpoint.pretrained_checkpoint=saved";
    let of_data = ["dataset.kind=finetuning", "dataset.split=null", &root, "dpo.beta=0.1", reference];
    let mut eval = Command::new(bridge_tests::program());
    let eval = eval.args(["eval", "saved"]).args(of_data).current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&eval.stderr).into_owned();
    assert!(eval.status.code() == Some(2) && said.contains("the recipe's data are preferences"), "{said}");
}
