//! Computation of a loss from a micro-batch: the step that users may replace.

use std::collections::BTreeMap;
use std::sync::Arc;

use bridge_data::MicroBatch;
use burn::tensor::{Device, Tensor};

use crate::model::{Batch, CustomLoss, CustomLossCall};
use crate::train::engine::global_state::GlobalState;

/// A reported quantity: the sum of `numerator` over micro-batches divided by that of `denominator`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ratio {
    /// Sum so far.
    pub numerator: f64,
    /// Weight so far.
    pub denominator: f64,
}

impl Ratio {
    /// The quotient; NaN when nothing was counted.
    pub fn value(self) -> f64 {
        self.numerator / self.denominator
    }
}

impl std::ops::AddAssign for Ratio {
    fn add_assign(&mut self, other: Self) {
        self.numerator += other.numerator;
        self.denominator += other.denominator;
    }
}

/// Losses by name, in name order.
pub type Losses = BTreeMap<String, Ratio>;

/// Name under which the model's own loss is reported: the mean cross-entropy of its tokens.
pub const LM_LOSS: &str = "lm loss";

/// Prepares micro-batches for the model and names its losses.
pub trait ForwardStep: Send {
    /// Moves a micro-batch to the device; the place for custom masks or positions.
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch;

    /// Custom loss, computed at the end of the model from its outputs (hidden states, logits),
    /// instead of the model's loss. It is requested before each pass of a micro-batch, on all
    /// ranks, in training and in evaluation. The default is `None`.
    ///
    /// The loss is reported by its own name ([`CustomLoss::name`]), with its recorded figures, in
    /// addition to those of [`report`](Self::report).
    fn custom_loss(&mut self, _state: &GlobalState, _batch: &Batch) -> Option<Arc<dyn CustomLoss>> {
        None
    }

    /// Loss of the reference's head. The reference is the model from the start of the run, frozen;
    /// only runs with `[dpo]` have one. This loss is requested and computed before
    /// [`custom_loss`](Self::custom_loss) of the same micro-batch.
    fn reference_loss(&mut self, _batch: &Batch) -> Option<Arc<dyn CustomLoss>> {
        None
    }

    /// The quantity to minimise, as a sum over tokens, from the model's loss sum. The loop divides
    /// by tokens and micro-batches. By default the model's own.
    fn objective(&mut self, loss_sum: Tensor<1>, _batch: &Batch) -> Tensor<1> {
        loss_sum
    }

    /// True if the kernels that [`objective`](Self::objective) launches are the same for all
    /// micro-batches of one shape, and read all differences from the batch: only then may a
    /// micro-batch be recorded once and replayed for the others (`model.cuda_graph_impl`). A step
    /// with a [custom loss](Self::custom_loss) is not recordable.
    fn is_recordable(&self) -> bool {
        false
    }

    /// Names of all losses that an evaluation reports, so that an unknown `validation.metric` is
    /// refused before training. The default is `None`: the names are unknown.
    fn loss_names(&self) -> Option<Vec<&'static str>> {
        None
    }

    /// Losses that are reported of a micro-batch, given the value of its loss sum. With a [custom
    /// loss](Self::custom_loss), the entry [`LM_LOSS`] gets the name of that loss.
    fn report(&mut self, loss_sum: f64, batch: &Batch) -> Losses {
        let ratio = Ratio { numerator: loss_sum, denominator: batch.num_tokens };
        Losses::from([(LM_LOSS.to_owned(), ratio)])
    }
}

/// Adds the reported losses of micro-batches. Where the model's own loss was replaced, `objective`
/// is the name of the loss in its place.
pub(in crate::train) fn add_reported(
    losses: &mut Losses,
    forward_step: &mut dyn ForwardStep,
    objective: &'static str,
    loss_sums: &[f64],
    batches: &[Batch],
) {
    for (loss_sum, batch) in loss_sums.iter().zip(batches) {
        for (name, ratio) in forward_step.report(*loss_sum, batch) {
            let name = if name == LM_LOSS { objective.to_owned() } else { name };
            *losses.entry(name).or_default() += ratio;
        }
    }
}

/// Name of the loss that the model's head computes: the name of the custom loss, which all
/// micro-batches have, or [`LM_LOSS`].
pub(in crate::train) fn objective_of(custom_losses: &[Option<CustomLossCall>]) -> &'static str {
    custom_losses.iter().flatten().map(CustomLossCall::name).next().unwrap_or(LM_LOSS)
}

/// Adds the figures that a loss has recorded for a micro-batch.
pub(in crate::train) fn add_recorded(losses: &mut Losses, custom_loss: &CustomLossCall) {
    for (name, numerator, denominator) in custom_loss.recorded() {
        *losses.entry(name.to_owned()).or_default() += Ratio { numerator, denominator };
    }
}

/// Next-token prediction with the dataset's own masks.
#[derive(Clone, Copy, Debug, Default)]
pub struct LanguageModelStep;

impl ForwardStep for LanguageModelStep {
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch {
        Batch::new(micro_batch, device)
    }

    fn is_recordable(&self) -> bool {
        true
    }

    fn loss_names(&self) -> Option<Vec<&'static str>> {
        Some(vec![LM_LOSS])
    }
}
