//! Figures of the whole run, whatever ranks it is spread over: those of TensorBoard and `metrics.jsonl` against one rank's.

use std::collections::BTreeMap;
use std::path::Path;

use bridge_core::logging::tensorboard::{EventKind, read_events};
use bridge_core::train::{pretrain, rank_timeout, run_on_threads};

use super::support::bridge;
use super::{config, options};

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

/// What a run says at its start: the settings that differ from the defaults, once, and the size of the whole model.
#[test]
fn a_run_begins_with_a_summary_of_its_settings() {
    for ranks in ["1", "2"] {
        let folder = tempfile::tempdir().unwrap();
        let layout = if ranks == "2" { "model.pipeline_model_parallel_size=2" } else { "optimizer.lr=0.002" };
        let output = bridge(folder.path(), &["--ranks", ranks, "train.train_iters=1", "optimizer.lr=0.002", layout]);
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
