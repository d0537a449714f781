//! Reports of a run: its state, and the results of steps, evaluations and its end. Plain data.

use std::collections::BTreeMap;

use crate::config::RunConfig;
use crate::logging::{Figure, Occasion, Split, perplexity};
use crate::optim::ReductionTimes;
use crate::resilience::Learning;
use crate::train::engine::forward_step::{LM_LOSS, Losses, Ratio};
use crate::train::exit_reason::ExitReason;
use crate::train::objectives::distillation::CE_LOSS;
use crate::train::reporting::routers::RouterReport;

/// Report of one training step.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Number of the step, from 1.
    pub iteration: u64,
    /// Losses by name, averaged as [`crate::train::engine::forward_step::Ratio`] says.
    pub losses: Losses,
    /// Name of the loss that was minimised: [`LM_LOSS`] unless the step has a [custom
    /// loss](crate::train::engine::forward_step::ForwardStep::custom_loss).
    pub objective: &'static str,
    /// In fine-tuning the share of the counted tokens whose label the model finds likeliest, where
    /// the loss is computed by a kernel that counts.
    pub token_accuracy: Option<f64>,
    /// Learning rate in force.
    pub learning_rate: f64,
    /// Learning rate of the embeddings and the output layer, if they have one of their own.
    pub decoupled_learning_rate: Option<f64>,
    /// Weight decay in force (before group factors).
    pub weight_decay: f64,
    /// Loss scale in force.
    pub loss_scale: f64,
    /// Global gradient norm before clipping; NaN or infinite when the step was skipped for that.
    pub grad_norm: f64,
    /// Zero entries among the gradients, if counted.
    pub num_zeros: Option<u64>,
    /// Gradient norm of each parameter, if asked for.
    pub grad_norms: Vec<(String, f64)>,
    /// The routers of a mixture of experts, by layer; none in other models.
    pub routers: Vec<RouterReport>,
    /// Mean losses of multi-token prediction, that of the token after the next one first.
    pub predictions: Vec<Ratio>,
    /// The largest attention score of each layer (global number) in this rank's micro-batches, if
    /// asked for.
    pub own_attention_logits: BTreeMap<usize, f64>,
    /// True when the gradients were not finite and nothing was updated.
    pub skipped: bool,
    /// Effect of the step on the model.
    pub learning: Learning,
    /// Sequences in the step.
    pub batch_size: u64,
    /// Micro-batches in the step.
    pub num_microbatches: u64,
    /// Floating-point operations of the step, as the model counts them; `None` if it does not.
    pub flops: Option<f64>,
    /// Tokens in the step, padding included.
    pub num_tokens: u64,
    /// Wall time of the step in seconds, waiting for data included.
    pub seconds: f64,
    /// Seconds of it spent waiting for data, of this rank or another.
    pub data_seconds: f64,
    /// Seconds of these spent waiting for this rank's own data.
    pub own_data_seconds: f64,
    /// Norm of all parameters after the step, if asked for.
    pub params_norm: Option<f64>,
    /// Figures that subsystems add to the record of the step.
    pub figures: Vec<Figure>,
    /// Time of the reduction of gradients between data-parallel ranks, and the part that was waited
    /// for.
    pub grads_reduction: ReductionTimes,
}

impl StepReport {
    /// The loss that was minimised, as it is reported: rounded to float32.
    pub fn loss(&self) -> Option<f32> {
        self.losses.get(self.objective).map(|ratio| ratio.value() as f32)
    }

    /// Mean cross-entropy of the tokens in nats, if it is among the losses.
    pub(in crate::train) fn cross_entropy(&self) -> Option<Ratio> {
        cross_entropy(&self.losses)
    }
}

/// Report of an evaluation.
#[derive(Clone, Debug)]
pub struct EvaluationReport {
    /// The split.
    pub split: Split,
    /// When it took place.
    pub occasion: Occasion,
    /// Steps trained so far.
    pub iteration: u64,
    /// Losses by name.
    pub losses: Losses,
    /// Name of the loss that the model is judged by: [`LM_LOSS`] unless the step has a [custom
    /// loss](crate::train::engine::forward_step::ForwardStep::custom_loss).
    pub objective: &'static str,
    /// Sequences evaluated.
    pub num_samples: u64,
    /// Bits per byte of text, where the tokenizer knows how many bytes its tokens stand for.
    pub bits_per_byte: Option<f64>,
}

impl EvaluationReport {
    /// The loss that the model is judged by, rounded to float32: by default the cross-entropy in
    /// nats a token.
    pub fn loss(&self) -> Option<f32> {
        self.losses.get(self.objective).map(|ratio| ratio.value() as f32)
    }

    /// `exp(cross-entropy)`, with the cross-entropy capped at 20; `None` where losses have none.
    pub fn perplexity(&self) -> Option<f64> {
        cross_entropy(&self.losses).map(|ratio| perplexity(f64::from(ratio.value() as f32)))
    }
}

fn cross_entropy(losses: &Losses) -> Option<Ratio> {
    losses.get(LM_LOSS).or_else(|| losses.get(CE_LOSS)).copied()
}

/// End of training: in order, for a reason, or with an error.
pub type TrainEnd<'a> = Result<&'a ExitReason, &'a (dyn std::error::Error + 'static)>;

/// True if the report of a step has the figures of every `interval` steps: by the settings, the
/// same on all ranks.
pub(in crate::train) fn is_reported_every(config: &RunConfig, interval: usize, iteration: u64) -> bool {
    !config.logger.skip_train_metrics_log && iteration.is_multiple_of(interval as u64)
}
