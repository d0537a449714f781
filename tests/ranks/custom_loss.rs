//! Losses of a program's own, computed from the outputs of a model: the same on all layouts, with
//! the gradients of a plain reference.

use std::sync::Arc;

use bridge_core::model::{Batch, CustomLoss, ModelOutputs};
use bridge_core::train::{ForwardStep, GlobalState, LanguageModelStep, pretrain, rank_timeout, run_on_threads};
use bridge_data::MicroBatch;
use bridge_tests::{assert_close, figures_in, records_in};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor};

use super::{config, options};

/// Cross-entropy against targets of which each other token has a share.
#[derive(Clone, Copy, Debug)]
struct Smoothed {
    smoothing: f64,
    /// Strength of a penalty on long hidden states: a term that does not go through the logits.
    pull: f64,
}

impl CustomLoss for Smoothed {
    fn loss_sum(&self, outputs: &ModelOutputs<'_>) -> Tensor<1> {
        let batch = outputs.batch();
        let mask_bt = batch.loss_mask.clone();
        let log_probabilities_btv = log_softmax(outputs.logits(), 2);
        let [b, t, v] = log_probabilities_btv.dims();
        let labels_bt1 = batch.labels.clone().reshape([b, t, 1]);
        let chosen_bt = log_probabilities_btv.clone().gather(2, labels_bt1).reshape([b, t]);
        let mean_bt = log_probabilities_btv.sum_dim(2).reshape([b, t]) / v as f64;
        let entropy_bt = -(chosen_bt * (1.0 - self.smoothing)) - mean_bt * self.smoothing;
        let cross_entropy = (entropy_bt * mask_bt.clone()).sum();
        let plain = cross_entropy.clone().without_autodiff().into_data().iter::<f64>().sum();
        outputs.record("smoothed", plain, batch.num_tokens);
        if self.pull == 0.0 {
            return cross_entropy;
        }
        let squares_bt = outputs.hidden_states().powi_scalar(2).sum_dim(2).reshape([b, t]);
        cross_entropy + (squares_bt * mask_bt).sum() * self.pull
    }

    fn figures(&self) -> &[&'static str] {
        &["smoothed"]
    }
}

impl ForwardStep for Smoothed {
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch {
        LanguageModelStep.prepare(micro_batch, device)
    }

    fn custom_loss(&mut self, state: &GlobalState, _batch: &Batch) -> Option<Arc<dyn CustomLoss>> {
        // The first step is counted when it is done.
        assert!(state.train_state.step <= 4);
        Some(Arc::new(*self))
    }
}

/// Losses, norms of gradients and the figures that the loss records.
fn run(own: Option<Smoothed>, ranks: usize, overrides: &[&str]) -> [Vec<f64>; 3] {
    let folder = tempfile::tempdir().unwrap();
    let common = ["train.train_iters=4", "validation.eval_interval=2", "model.hidden_size=24", "logger.log_interval=1"];
    let odd = ["model.num_attention_heads=4", "model.num_query_groups=2", "model.ffn_hidden_size=36"];
    let small = [
        "dataset.data_sharding=false",
        "model.vocab_size=70",
        "tokenizer.vocab_size=66",
        "model.seq_length=16",
        "optimizer.clip_grad=0.3",
    ];
    let config = config(folder.path(), ranks, &[&common[..], &odd, &small, overrides].concat());
    run_on_threads(&config, rank_timeout(&config), |groups| {
        let mut options = options(groups);
        if let Some(own) = own {
            options.forward_step = Box::new(own);
        }
        pretrain(config.clone(), options).map(drop)
    })
    .unwrap();
    let logs = folder.path().join("logs");
    let losses = [records_in(&logs, "train"), records_in(&logs, "valid")].concat();
    let recorded = if own.is_some() { figures_in(&logs, "train", "smoothed") } else { Vec::new() };
    [losses, figures_in(&logs, "train", "grad_norm"), recorded]
}

fn assert_same(found: &[Vec<f64>; 3], expected: &[Vec<f64>; 3], what: &str) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{what}: {found:?}, expected {expected:?}");
        }
    }
}

#[test]
fn cross_entropy_of_the_logits_trains_as_the_models_own_loss() {
    let [losses, norms, _] = run(None, 1, &[]);
    let [custom_losses, own_norms, recorded] = run(Some(Smoothed { smoothing: 0.0, pull: 0.0 }), 1, &[]);
    assert_same(&[custom_losses.clone(), own_norms, vec![]], &[losses, norms, vec![]], "without smoothing");
    assert_close(&recorded, &custom_losses[..4], "recorded");
}

#[test]
fn a_loss_of_ones_own_is_the_same_on_all_layouts() {
    let own = Some(Smoothed { smoothing: 0.1, pull: 0.01 });
    let single = run(own, 1, &[]);
    assert_eq!([single[0].len(), single[1].len(), single[2].len()], [4 + 3, 4, 4]);
    let tensor = "model.tensor_model_parallel_size=2";
    let pipeline = "model.pipeline_model_parallel_size=2";
    for (ranks, layout) in [
        (
            1,
            &["model.recompute_granularity=full", "model.recompute_method=uniform", "model.recompute_num_layers=1"][..],
        ),
        (2, &[tensor]),
        (2, &[tensor, "model.sequence_parallel=true"]),
        (2, &[pipeline]),
        (2, &[]),
        (2, &["model.context_parallel_size=2"]),
        (4, &[tensor, pipeline]),
    ] {
        assert_same(&run(own, ranks, layout), &single, &format!("{ranks} ranks, {layout:?}"));
    }
}
