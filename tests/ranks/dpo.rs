//! `[dpo]`: ten steps of PyTorch, on all layouts, stopped and resumed, with and without an adapter.

use std::path::Path;

use bridge_tests::{figures_in, records_in};
use serde_json::Value;

use super::objectives::{self, fixture};

const FIGURES: [&str; 4] = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins"];

/// Runs the model of the fixture on its preferences, with logs and checkpoints in `folder`.
fn train(folder: &Path, ranks: usize, overrides: &[&str]) -> Result<(), String> {
    objectives::train(folder, ranks, "dpo", &[&["dpo.beta=0.1"], overrides].concat())
}

/// Losses, then the rewards in the order of [`FIGURES`].
fn run(ranks: usize, overrides: &[&str]) -> Vec<Vec<f64>> {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), ranks, overrides).unwrap();
    figures(folder.path())
}

fn figures(folder: &Path) -> Vec<Vec<f64>> {
    let logs = folder.join("logs");
    let rewards = FIGURES.iter().map(|name| figures_in(&logs, "train", &name.replace('/', "_")));
    [records_in(&logs, "train")].into_iter().chain(rewards).collect()
}

fn assert_same(found: &[Vec<f64>], expected: &[Vec<f64>], what: &str) {
    for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (step, (a, b)) in found.iter().zip(expected).enumerate() {
            // Before the first update both answers are as likely as in the reference, up to
            // rounding.
            let is_tie = number == 3 && step == 0;
            let tolerance = 1e-5 * b.abs() + if number == 0 { 0.0 } else { 1e-6 };
            assert!(is_tie || (a - b).abs() <= tolerance, "{what}, figure {number}: {found:?}, expected {expected:?}");
        }
    }
}

#[test]
fn preferences_train_as_in_pytorch() {
    let made: Value = serde_json::from_slice(&std::fs::read(fixture("dpo.json")).unwrap()).unwrap();
    let expected = |name: &str| -> Vec<Vec<f64>> {
        let of = |key: &&str| made[name].as_array().unwrap().iter().map(|step| step[*key].as_f64().unwrap()).collect();
        ["loss"].iter().chain(&FIGURES).map(of).collect()
    };
    let sigmoid = expected("sigmoid");
    assert_eq!(sigmoid[0].len(), 10);
    assert_same(&run(1, &[]), &sigmoid, "beta 0.1");
    assert_same(&run(1, &["train.micro_batch_size=3"]), &sigmoid, "three pairs at once");
    assert_same(&run(1, &["dpo.beta=0.3", "dpo.label_smoothing=0.15"]), &expected("smoothed"), "smoothed");
    let tensor = "model.tensor_model_parallel_size=2";
    let pipeline = "model.pipeline_model_parallel_size=3";
    for (ranks, layout) in [
        (2, &[tensor][..]),
        (2, &[tensor, "model.sequence_parallel=true"]),
        (3, &[pipeline]),
        (2, &[]),
        (
            2,
            &[
                "optimizer.use_distributed_optimizer=true",
                "ddp.overlap_grad_reduce=true",
                "ddp.overlap_param_gather=true",
            ],
        ),
    ] {
        assert_same(&run(ranks, layout), &sigmoid, &format!("{ranks} ranks, {layout:?}"));
    }
}

#[test]
fn a_run_on_preferences_goes_on_bit_for_bit_against_the_same_reference() {
    let adapter = ["peft.kind=lora", "peft.dim=4", "peft.alpha=8", "optimizer.lr=1e-2"];
    for kind in [&[][..], &adapter] {
        let short = [&["train.train_iters=6"], kind].concat();
        let whole = run(1, &short);
        let folder = tempfile::tempdir().unwrap();
        train(folder.path(), 1, &[&short[..], &["train.exit_interval=3"]].concat()).unwrap();
        train(folder.path(), 1, &short).unwrap();
        assert_eq!(figures(folder.path()), whole, "{kind:?}");
        assert!(whole[0][5] < whole[0][0] && whole[4][5] > 0.0, "{kind:?}: {whole:?}");
    }
}

#[test]
fn a_pair_that_does_not_fit_is_an_error_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let error = train(folder.path(), 1, &["model.seq_length=16"]).unwrap_err();
    assert!(error.contains("line 2") && error.contains("more than 16 tokens"), "{error}");
}
