//! Figures of the whole run on any layout: TensorBoard and `metrics.jsonl` against a run on one
//! rank.

use std::collections::BTreeMap;
use std::path::Path;

use bridge_core::logging::tensorboard::{EventKind, read_events};
use bridge_core::train::{pretrain, rank_timeout, run_on_threads};

use super::{config, options};
use bridge_tests::bridge;

/// Points of every curve: iteration and value.
pub type Curves = BTreeMap<String, Vec<(i64, f32)>>;

/// The curves that the runs of a folder of logs wrote, without their twins against samples.
pub fn curves(log_dir: &Path) -> Curves {
    let mut curves = Curves::new();
    let folder = std::fs::read_dir(log_dir.join("tensorboard")).expect("a run writes events");
    let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for event in files.iter().flat_map(|file| read_events(file).unwrap()) {
        if let EventKind::Scalar { tag, value } = event.kind
            && !tag.ends_with(" vs samples")
        {
            curves.entry(tag).or_default().push((event.step, value));
        }
    }
    curves
}

/// The curves of a run of `ranks` ranks.
pub fn curves_of(ranks: usize, overrides: &[&str]) -> Curves {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), ranks, overrides);
    let ended =
        run_on_threads(&config, rank_timeout(&config), |groups| pretrain(config.clone(), options(groups)).map(drop));
    ended.unwrap_or_else(|error| panic!("{overrides:?}: {error}"));
    curves(&folder.path().join("logs"))
}

/// The curves whose names begin so.
pub fn beginning<'c>(curves: &'c Curves, prefix: &'c str) -> impl Iterator<Item = (&'c String, &'c Vec<(i64, f32)>)> {
    curves.iter().filter(move |(name, _)| name.starts_with(prefix))
}

fn assert_same_norms(found: &Curves, expected: &Curves, what: &str) {
    let names = |curves: &Curves| beginning(curves, "l2_norm/grad/").map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}");
    for (name, points) in beginning(expected, "l2_norm/grad/") {
        assert_eq!(points.len(), found[name].len(), "{what}, {name}");
        for ((step, norm), (found_step, found)) in points.iter().zip(&found[name]) {
            let is_close = (found - norm).abs() <= 1e-5 * norm.abs() + 1e-9;
            assert!(step == found_step && is_close, "{what}, {name} at {step}: {found}, expected {norm}");
        }
    }
}

#[test]
fn gradient_norms_of_parameters_are_those_of_the_whole_model() {
    const LOGGED: [&str; 4] = [
        "logger.log_l2_norm_grad_to_tensorboard=true",
        "model.num_layers=4",
        "train.train_iters=2",
        "validation.eval_iters=0",
    ];
    const TIED: &str = "model.share_embeddings_and_output_weights=true";
    const EXPERTS: [&str; 4] = [
        "model.num_moe_experts=4",
        "model.moe_router_topk=2",
        "model.moe_layer_freq=[0, 1, 0, 1]",
        "train.global_batch_size=12",
    ];
    const PIPELINE: &str = "model.pipeline_model_parallel_size=2";
    let same = |model: &[&str], layouts: &[(usize, &[&str])]| {
        let expected = curves_of(1, &[&LOGGED[..], model].concat());
        let layers: Vec<usize> = (0..4)
            .map(|layer| beginning(&expected, &format!("l2_norm/grad/decoder.layers.{layer}.")).count())
            .collect();
        assert!(layers.iter().all(|count| *count > 5), "{layers:?}");
        assert_eq!(expected["l2_norm/grad/global"].len(), 2);
        for (ranks, layout) in layouts {
            let found = curves_of(*ranks, &[&LOGGED[..], model, layout].concat());
            assert_same_norms(&found, &expected, &format!("{model:?} on {ranks} ranks, {layout:?}"));
            let whole = found["l2_norm/grad/global"][0].1;
            assert!((whole - expected["grad-norm"][0].1).abs() <= 1e-5 * whole, "{layout:?}");
        }
    };
    let interleaved = [PIPELINE, "model.virtual_pipeline_model_parallel_size=2"];
    let sharded = [PIPELINE, "ddp.use_distributed_optimizer=true"];
    let fully = ["ddp.use_megatron_fsdp=true", "ddp.data_parallel_sharding_strategy=optim_grads_params"];
    let tensor = [PIPELINE, "model.tensor_model_parallel_size=2"];
    same(&[], &[(4, &["model.pipeline_model_parallel_size=4"]), (2, &interleaved), (4, &sharded), (2, &fully)]);
    same(&[TIED], &[(4, &tensor), (2, &["model.context_parallel_size=2"])]);
    same(&EXPERTS, &[(3, &[]), (4, &[PIPELINE, "model.expert_model_parallel_size=2"])]);
}

#[test]
fn tokens_of_experts_are_those_of_all_ranks() {
    const ROUTED: [&str; 7] = [
        "model.num_moe_experts=4",
        "model.moe_router_topk=2",
        "model.moe_layer_freq=[0, 1]",
        "model.moe_per_layer_logging=true",
        "train.global_batch_size=12",
        "train.train_iters=2",
        "validation.eval_iters=0",
    ];
    let expected = curves_of(1, &ROUTED);
    let at = |step: usize, curve: &str| expected[curve][step];
    for step in 0..2 {
        let tokens = (0..4).map(|e| at(step, &format!("moe/tokens_per_expert_layer_1/expert_{e}")).1);
        let tokens: Vec<f32> = tokens.collect();
        assert_eq!(tokens.iter().sum::<f32>(), (2 * 12 * 64) as f32, "two choices of every token of the batch");
        let least = tokens.iter().copied().fold(f32::INFINITY, f32::min);
        let most = tokens.iter().copied().fold(0.0, f32::max);
        let range = ["min", "max"].map(|end| at(step, &format!("moe/tokens_per_expert/{end}")).1);
        assert!(range == [least, most] && least < most, "{range:?} of {tokens:?}");
        // One layer has a router, so the means over layers are its own.
        for name in ["load_balancing_loss", "z_loss"] {
            assert_eq!(at(step, &format!("moe/{name}_layer_1")), at(step, name));
        }
    }
    let (pipeline, experts) = ("model.pipeline_model_parallel_size=2", "model.expert_model_parallel_size=2");
    let (tensor, context) = ("model.tensor_model_parallel_size=2", "model.context_parallel_size=2");
    let sequence = "model.sequence_parallel=true";
    let layouts: [(usize, &[&str]); 5] = [
        (3, &[]),
        (4, &[pipeline, experts]),
        (2, &[tensor, sequence]),
        (2, &[context]),
        (4, &[tensor, sequence, experts]),
    ];
    for (ranks, layout) in layouts {
        let found = curves_of(ranks, &[&ROUTED[..], layout].concat());
        let names = |curves| beginning(curves, "moe/").map(|(name, _)| name.clone()).collect::<Vec<String>>();
        assert_eq!(names(&found), names(&expected), "{layout:?}");
        for (name, points) in beginning(&expected, "moe/tokens_per_expert") {
            assert_eq!(&found[name], points, "{name} on {ranks} ranks, {layout:?}");
        }
    }
}

#[test]
fn losses_of_further_tokens_are_those_of_all_ranks() {
    const PREDICTING: [&str; 4] =
        ["model.mtp_num_layers=2", "train.global_batch_size=12", "train.train_iters=2", "validation.eval_iters=0"];
    let expected = curves_of(1, &PREDICTING);
    let (pipeline, context) = ("model.pipeline_model_parallel_size=2", "model.context_parallel_size=2");
    let tensor = "model.tensor_model_parallel_size=2";
    for (ranks, layout) in [(3, &[][..]), (2, &[pipeline]), (2, &[context]), (2, &[tensor]), (4, &[pipeline, context])]
    {
        let found = curves_of(ranks, &[&PREDICTING[..], layout].concat());
        for name in ["lm loss", "mtp_1 loss", "mtp_2 loss"] {
            assert_eq!(expected[name].len(), 2);
            for ((_, loss), (_, found)) in expected[name].iter().zip(&found[name]) {
                assert!((loss - found).abs() <= 1e-5 * loss, "{name}, {layout:?}: {found}, expected {loss}");
            }
        }
    }
}

#[test]
fn losses_of_further_tokens_reach_console_and_records() {
    let folder = tempfile::tempdir().unwrap();
    let few = ["model.mtp_num_layers=2", "train.train_iters=1", "logger.log_interval=1", "validation.eval_iters=1"];
    let output = bridge(folder.path(), &few);
    let said = String::from_utf8(output.stdout).unwrap();
    let log = std::fs::read_to_string(folder.path().join("runs/tiny/metrics.jsonl")).unwrap();
    let record: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    for depth in [1, 2] {
        let loss = record[format!("mtp_{depth}_loss")].as_f64().expect("a loss");
        // The loss of an untrained model.
        assert!((loss - 512_f64.ln()).abs() < 0.2, "{record}");
        assert!(said.contains(&format!(" | mtp_{depth} loss: ")), "{said}");
    }
}

#[test]
fn tokens_of_experts_reach_console_and_records() {
    let folder = tempfile::tempdir().unwrap();
    let experts = ["model.num_moe_experts=4", "model.moe_router_topk=2", "logger.log_interval=1"];
    let layout =
        ["--ranks", "2", "model.expert_model_parallel_size=2", "train.train_iters=1", "validation.eval_iters=1"];
    let output = bridge(folder.path(), &[&experts[..], &layout, &["model.moe_per_layer_logging=true"]].concat());
    let said = String::from_utf8(output.stdout).unwrap();
    let log = std::fs::read_to_string(folder.path().join("runs/tiny/metrics.jsonl")).unwrap();
    let record: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    let counts: Vec<u64> = ["0", "1"]
        .iter()
        .flat_map(|layer| record["tokens_per_expert"][layer].as_array().expect("a list"))
        .map(|count| count.as_u64().unwrap())
        .collect();
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (8, 2 * 2 * 8 * 64), "{record}");
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert_eq!(
        (&record["tokens_per_expert_min"], &record["tokens_per_expert_max"]),
        (&(*least).into(), &(*most).into())
    );
    assert!(said.contains(&format!(" | tokens per expert: {least} to {most} | ")), "{said}");
}

/// Output of a run at its start: the size of the whole model, and with -v the settings that differ
/// from the defaults, once.
#[test]
fn a_run_that_is_asked_begins_with_a_summary_of_its_settings() {
    for ranks in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let layout = if ranks == "2" { "model.pipeline_model_parallel_size=2" } else { "optimizer.lr=0.002" };
        let run = ["--ranks", ranks, "train.train_iters=1", "optimizer.lr=0.002", layout];
        let quiet = String::from_utf8(bridge(folder.path(), &run).stdout).unwrap();
        assert!(quiet.contains("tiny: gpt with 0.16 M") && !quiet.contains("Configuration Summary"), "{quiet}");
        let folder = tempfile::tempdir().unwrap();
        let output = bridge(folder.path(), &[&run[..], &["-v"]].concat());
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let title = "Configuration Summary (Non-Default Values vs Defaults)";
        assert_eq!(said.matches(title).count(), 1, "{said}");
        assert!(
            said.contains("[optimizer] Non-default values") && said.contains("\n  lr: 0.002  (default: null)\n"),
            "{said}"
        );
        assert!(said.contains("[validation]:\n") && said.contains("tiny: gpt with 0.16 M parameters on "), "{said}");
    }
}
