//! A custom loss: the focal loss (Lin et al., 2017), which weighs tokens that the model already
//! predicts well down, in place of the cross-entropy, for the built-in `gpt` model on mock data.
//!
//! ```text
//! cargo run --release --example custom_loss
//! cargo run --release --example custom_loss -- train.train_iters=200
//! ```
//!
//! A forward step hands the loss over for each micro-batch. The model calls it where it ends, with
//! its logits, on any layout of ranks. The loss is logged by its own name, beside the figures that
//! it records.
use std::sync::Arc;

use bridge_core::burn::tensor::activation::log_softmax;
use bridge_core::burn::tensor::{Device, Tensor};
use bridge_core::config::{Format, World, load_text};
use bridge_core::model::{Batch, CustomLoss, ModelOutputs};
use bridge_core::train::{Console, ForwardStep, GlobalState, LanguageModelStep, RunOptions, RunReport, pretrain};
use bridge_data::MicroBatch;
use bridge_models::registry;

const RECIPE: &str = r#"
name = "focal"
model = { num_layers = 2, hidden_size = 64, num_attention_heads = 4, seq_length = 32, vocab_size = 64 }
tokenizer = { tokenizer_type = "NullTokenizer", vocab_size = 63 }
train = { micro_batch_size = 8, global_batch_size = 8, train_iters = 60 }
validation = { eval_interval = 30, eval_iters = 2 }
optimizer = { lr = 3e-3, min_lr = 3e-4 }
scheduler = { lr_warmup_iters = 5 }
dataset = { kind = "mock" }
logger = { log_interval = 10 }
"#;

/// `-(1 - p)^gamma log p` of each label's probability `p`, summed over the tokens that count.
#[derive(Clone, Copy, Debug)]
pub struct FocalLoss {
    /// Strength of the weights; 0 is the cross-entropy.
    pub gamma: f64,
}

impl CustomLoss for FocalLoss {
    fn loss_sum(&self, outputs: &ModelOutputs<'_>) -> Tensor<1> {
        let batch = outputs.batch();
        let [b, t] = batch.labels.dims();
        let labels_bt1 = batch.labels.clone().reshape([b, t, 1]);
        let log_p_bt = log_softmax(outputs.logits(), 2).gather(2, labels_bt1).reshape([b, t]);
        let cross_entropy_bt = -log_p_bt.clone() * batch.loss_mask.clone();
        let plain = cross_entropy_bt.clone().sum().without_autodiff().into_data().iter::<f64>().sum();
        outputs.record(CROSS_ENTROPY, plain, batch.num_tokens);
        let weight_bt = (-log_p_bt.exp() + 1.0).clamp_min(1e-6).powf_scalar(self.gamma);
        (weight_bt * cross_entropy_bt).sum()
    }

    fn name(&self) -> &'static str {
        "focal loss"
    }

    fn figures(&self) -> &[&'static str] {
        &[CROSS_ENTROPY]
    }
}

const CROSS_ENTROPY: &str = "cross-entropy";

impl ForwardStep for FocalLoss {
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch {
        LanguageModelStep.prepare(micro_batch, device)
    }

    fn custom_loss(&mut self, _state: &GlobalState, _batch: &Batch) -> Option<Arc<dyn CustomLoss>> {
        Some(Arc::new(*self))
    }
}

/// Trains [`RECIPE`] with `key=value` overrides by a loss.
pub fn train(loss: FocalLoss, overrides: &[String], console: Console) -> anyhow::Result<RunReport> {
    let registry = registry();
    let config = load_text(RECIPE, Format::Toml, overrides, &registry.kinds(), &World::SINGLE)?;
    let options = RunOptions { console, forward_step: Box::new(loss), ..RunOptions::new(registry) };
    Ok(pretrain(config, options)?)
}

fn main() -> anyhow::Result<()> {
    train(FocalLoss { gamma: 2.0 }, &std::env::args().skip(1).collect::<Vec<_>>(), Console::Human).map(drop)
}
