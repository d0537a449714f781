//! A value head in place of the output projection, trained by a loss of the program's: the same on
//! all layouts, resumed bit for bit, from a base, and beside adapters.

use std::path::Path;
use std::sync::Arc;

use bridge_core::model::{Batch, CustomLoss, LinearForLastLayer, ModelOutputs};
use bridge_core::train::{
    ForwardStep, GlobalState, LanguageModelStep, Registry, RunOptions, pretrain, rank_timeout, run_on_threads,
};
use bridge_data::MicroBatch;
use bridge_models::registry;
use bridge_tests::{assert_close, records_in};
use burn::tensor::{Device, Tensor};

use super::options;
use super::peft::{FULL, STAGES, TENSOR, base, checkpoint, config, figures, of_base};

/// Values of tokens are drawn to a function of the labels: the squared error, a sum over outputs
/// and tokens.
#[derive(Clone, Copy, Debug)]
struct Regression;

impl CustomLoss for Regression {
    fn loss_sum(&self, outputs: &ModelOutputs<'_>) -> Tensor<1> {
        let values_btn = outputs.logits();
        let [b, t, n] = values_btn.dims();
        let batch = outputs.batch();
        let targets_bt1 = batch.labels.clone().float().mul_scalar(1.0 / 512.0).reshape([b, t, 1]);
        let errors_btn = values_btn - targets_bt1.expand([b, t, n]);
        let errors_bt = errors_btn.powi_scalar(2).sum_dim(2).reshape([b, t]);
        let sum = (errors_bt * batch.loss_mask.clone()).sum();
        outputs.record(
            "squared error",
            sum.clone().without_autodiff().into_data().iter::<f64>().sum(),
            batch.num_tokens,
        );
        sum
    }

    fn figures(&self) -> &[&'static str] {
        &["squared error"]
    }
}

impl ForwardStep for Regression {
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch {
        LanguageModelStep.prepare(micro_batch, device)
    }

    fn custom_loss(&mut self, _state: &GlobalState, _batch: &Batch) -> Option<Arc<dyn CustomLoss>> {
        Some(Arc::new(*self))
    }
}

fn with_head(head: LinearForLastLayer) -> Registry {
    let mut registry = registry();
    registry.models.replace_last_layer(head);
    registry
}

fn train_with(
    folder: &Path,
    recipe: &str,
    ranks: usize,
    overrides: &[&str],
    program: impl Fn(RunOptions) -> RunOptions + Send + Sync,
) -> Result<(), String> {
    let config = config(folder, recipe, ranks, overrides);
    run_on_threads(&config, rank_timeout(&config), |groups| {
        pretrain(config.clone(), program(options(groups))).map(drop)
    })
    .map(drop)
    .map_err(|error| error.to_string())
}

fn train(folder: &Path, head: LinearForLastLayer, recipe: &str, ranks: usize, overrides: &[&str]) {
    let program =
        |options: RunOptions| RunOptions { forward_step: Box::new(Regression), registry: with_head(head), ..options };
    train_with(folder, recipe, ranks, overrides, program).unwrap();
}

const THREE: LinearForLastLayer = LinearForLastLayer { output_size: 3, bias: true, dropout: 0.0 };

fn run(head: LinearForLastLayer, (recipe, ranks, overrides): (&str, usize, &[&str])) -> (Vec<f64>, Vec<f64>) {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), head, recipe, ranks, overrides);
    figures(folder.path())
}

fn assert_same(found: &(Vec<f64>, Vec<f64>), expected: &(Vec<f64>, Vec<f64>), what: &str) {
    assert_close(&found.0, &expected.0, what);
    assert_eq!(found.1.len(), expected.1.len(), "{what}");
    for (a, b) in found.1.iter().zip(&expected.1) {
        assert!((a - b).abs() <= 1e-5 * b, "{what}: norms {:?}, expected {:?}", found.1, expected.1);
    }
}

#[test]
fn a_value_head_trains_the_same_on_every_layout() {
    let full_recompute =
        ["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"];
    for (head, tied) in [(LinearForLastLayer::VALUE_HEAD, false), (THREE, true)] {
        let tied = format!("model.share_embeddings_and_output_weights={tied}");
        let single = run(head, ("tiny.toml", 1, &[&tied]));
        let losses = &single.0;
        // Four steps, and evaluations on both held-out splits.
        assert!(losses.len() == 6 && losses.iter().all(|loss| *loss > 0.0), "{losses:?}");
        assert!(single.1.iter().all(|norm| *norm > 0.0), "it has gradients: {:?}", single.1);
        for (ranks, layout) in [
            (1, &full_recompute[..]),
            (2, &[TENSOR]),
            (2, &[TENSOR, "model.sequence_parallel=true"]),
            (2, &[STAGES]),
            (2, &[STAGES, "model.pipeline_schedule=zb_h1"]),
            (2, &[]),
            (2, &["ddp.use_distributed_optimizer=true"]),
            (2, &["model.context_parallel_size=2"]),
            (2, &FULL),
            (4, &[TENSOR, STAGES]),
        ] {
            let found = run(head, ("tiny.toml", ranks, &[&[tied.as_str()], layout].concat()));
            assert_same(&found, &single, &format!("{head:?}, {tied}, {ranks} ranks, {layout:?}"));
        }
    }
}

/// Each rank draws the masks of the tokens that it has, which are those of one rank.
#[test]
fn its_dropout_is_the_same_on_ranks_that_share_a_model() {
    let head = LinearForLastLayer { dropout: 0.3, ..THREE };
    let single = run(head, ("tiny.toml", 1, &[]));
    assert_ne!(single.0, run(THREE, ("tiny.toml", 1, &[])).0);
    for (ranks, layout) in [(2, &[TENSOR, "model.sequence_parallel=true"][..]), (2, &[TENSOR]), (2, &[STAGES])] {
        assert_same(&run(head, ("tiny.toml", ranks, layout)), &single, &format!("{layout:?}"));
    }
}

#[test]
fn it_goes_on_bit_for_bit_and_on_another_layout() {
    let head = LinearForLastLayer { dropout: 0.1, ..THREE };
    for (ranks, layout) in [(1, &[][..]), (2, &[TENSOR, "model.sequence_parallel=true"]), (2, &[STAGES]), (2, &FULL)] {
        let (whole, halves) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        train(whole.path(), head, "tiny.toml", ranks, layout);
        train(halves.path(), head, "tiny.toml", ranks, &[layout, &["train.exit_interval=2"]].concat());
        train(halves.path(), head, "tiny.toml", ranks, layout);
        assert_eq!(figures(halves.path()), figures(whole.path()), "{layout:?}");
        let [a, b] = [&whole, &halves].map(|folder| checkpoint(folder.path(), 4));
        let names: Vec<&str> = a.names_in("model").collect();
        assert!(names.contains(&"last_layer.weight") && names.contains(&"last_layer.bias"), "{names:?}");
        assert!(!names.contains(&"output_layer.weight"), "{names:?}");
        for name in a.names() {
            let [a, b] = [&a, &b].map(|checkpoint| checkpoint.load_tensor(name).unwrap());
            assert!(a.bytes() == b.bytes(), "{layout:?}: {name}");
        }
    }
    // Saved by two stages, gone on with by tensor-parallel ranks.
    let (single, folder) = (run(THREE, ("tiny.toml", 1, &[])), tempfile::tempdir().unwrap());
    train(folder.path(), THREE, "tiny.toml", 2, &[STAGES, "train.exit_interval=2"]);
    train(folder.path(), THREE, "tiny.toml", 2, &[TENSOR]);
    assert_close(&records_in(&folder.path().join("logs"), "train"), &single.0[..4], "another layout");
}

/// The head begins anew on a base without one, and with its weights on one that has it; beside an
/// adapter it is trained in full.
#[test]
fn it_begins_on_a_base_and_trains_beside_an_adapter() {
    let head = LinearForLastLayer::VALUE_HEAD;
    let base = base();
    let from = of_base(base.path());
    for recipe in ["tiny.toml", "tiny-lora.toml"] {
        let single = tempfile::tempdir().unwrap();
        train(single.path(), head, recipe, 1, &[&from]);
        for (ranks, layout) in
            [(2, &[TENSOR, "model.sequence_parallel=true"][..]), (2, &[STAGES]), (2, &[]), (2, &FULL[..])]
        {
            let found = run(head, (recipe, ranks, &[&[from.as_str()], layout].concat()));
            assert_same(&found, &figures(single.path()), &format!("{recipe} {layout:?}"));
        }
        let saved = checkpoint(single.path(), 4);
        let names: Vec<&str> = saved.names_in("model").collect();
        let is_adapter = recipe == "tiny-lora.toml";
        assert!(names.contains(&"last_layer.weight"), "{names:?}");
        assert_eq!(names.iter().all(|name| name.contains(".adapter.") || *name == "last_layer.weight"), is_adapter);
        // Stopped and resumed.
        let halves = tempfile::tempdir().unwrap();
        train(halves.path(), head, recipe, 1, &[&from, "train.exit_interval=2"]);
        train(halves.path(), head, recipe, 1, &[&from]);
        assert_eq!(figures(halves.path()), figures(single.path()), "{recipe}, resumed");
        if !is_adapter {
            // A run that begins with a value model has the value of its tokens, not a new head's.
            let next = run(head, ("tiny.toml", 1, &[&of_base(single.path())]));
            assert!(next.0[0] < figures(single.path()).0[0], "{next:?}");
        }
    }
}

#[test]
fn what_needs_the_projection_is_refused() {
    let refusal = |overrides: &[&str], program: &(dyn Fn(RunOptions) -> RunOptions + Send + Sync)| {
        let folder = tempfile::tempdir().unwrap();
        train_with(folder.path(), "tiny.toml", 2, overrides, program).unwrap_err()
    };
    let head = || with_head(LinearForLastLayer::VALUE_HEAD);
    let no_loss = refusal(&[STAGES], &|options| RunOptions { registry: head(), ..options });
    assert!(no_loss.contains("ForwardStep::custom_loss"), "{no_loss}");
    let with_loss = |options| RunOptions { registry: head(), forward_step: Box::new(Regression), ..options };
    let predicting = refusal(&["model.mtp_num_layers=1"], &with_loss);
    assert!(predicting.contains("model.mtp_num_layers"), "{predicting}");
    let base = base();
    let teacher = format!("distillation.teacher={:?}", base.path().join("saved"));
    let taught = refusal(&[&teacher], &|options| RunOptions { registry: head(), ..options });
    assert!(taught.contains("distillation") && taught.contains("needs logits"), "{taught}");
    // A checkpoint with a head is not one of a plain model.
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), LinearForLastLayer::VALUE_HEAD, "tiny.toml", 1, &["train.exit_interval=2"]);
    let plain = train_with(folder.path(), "tiny.toml", 1, &[], |options| options).unwrap_err();
    assert!(plain.contains("output_layer.weight"), "{plain}");
}
