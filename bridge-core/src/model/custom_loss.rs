//! Custom losses of a program. The head of the model passes its outputs to them instead of
//! computing its own loss.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::activation::log_softmax;
use burn::tensor::{FloatDType, Tensor};

use super::{Batch, Mode};

/// A loss computed from the outputs of a model.
///
/// The loss is computed where the model ends, inside the graph of the head, so gradients flow from
/// it through the whole model. It may be computed twice for a micro-batch, where activations are
/// recomputed, and must then be the same, so it may depend only on the batch.
pub trait CustomLoss: fmt::Debug + Send + Sync {
    /// The sum that is minimised, `[1]` float32. The loop divides it by [`Batch::num_tokens`], and
    /// by micro-batches.
    ///
    /// Tensor-parallel ranks all compute it, from the same values. A context-parallel rank computes
    /// the part of its tokens, and parts add up.
    fn loss_sum(&self, outputs: &ModelOutputs<'_>) -> Tensor<1>;

    /// Name under which the loss is reported: on the console, in TensorBoard and at trackers. The
    /// same on all ranks.
    fn name(&self) -> &'static str {
        "custom loss"
    }

    /// Names of the figures passed to [`ModelOutputs::record`]. They are the same on all ranks.
    fn figures(&self) -> &[&'static str] {
        &[]
    }
}

/// Outputs of a model for a micro-batch.
#[derive(Clone, Copy)]
pub struct ModelOutputs<'a> {
    batch: &'a Batch,
    mode: Mode,
    parts: &'a dyn OutputParts,
    figures: &'a Figures,
}

/// Outputs that a head can compute. Each call computes them again.
pub trait OutputParts {
    /// See [`ModelOutputs::hidden_states`].
    fn hidden_states(&self) -> Tensor<3>;

    /// See [`ModelOutputs::logits`].
    fn logits(&self) -> Tensor<3>;
}

impl<'a> ModelOutputs<'a> {
    /// The micro-batch: tokens, labels, mask and the dataset's extra tensors.
    pub fn batch(&self) -> &'a Batch {
        self.batch
    }

    /// True if the pass trains.
    pub fn trains(&self) -> bool {
        matches!(self.mode, Mode::Train(_))
    }

    /// Input of the output projection: hidden states after the final norm, `[b, t, c]`, the same on
    /// all tensor-parallel ranks.
    pub fn hidden_states(&self) -> Tensor<3> {
        self.parts.hidden_states()
    }

    /// Logits of the whole vocabulary, rows of padding included, `[b, t, v]`, the same on all
    /// tensor-parallel ranks.
    ///
    /// If a program has replaced the output projection
    /// ([`LinearForLastLayer`](super::LinearForLastLayer)), these are the outputs of the new layer,
    /// `[b, t, n]` float32.
    ///
    /// The logits are computed by this call, and are the largest tensor of most models.
    pub fn logits(&self) -> Tensor<3> {
        self.parts.logits()
    }

    /// Adds a figure to the record of the step: sums over micro-batches of `numerator` and of
    /// `denominator`, and of these the quotient.
    ///
    /// # Panics
    /// If [`CustomLoss::figures`] does not have the name.
    pub fn record(&self, name: &'static str, numerator: f64, denominator: f64) {
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        let place = figures.get_mut(name).unwrap_or_else(|| panic!("`{name}` is no figure of this loss"));
        *place = (numerator, denominator);
    }
}

impl fmt::Debug for ModelOutputs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelOutputs").field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// The log-probability of each label, `[b, t, v]` -> `[b, t]`, in float32.
pub(crate) fn label_log_probabilities(logits_btv: Tensor<3>, batch: &Batch) -> Tensor<2> {
    let [b, t, _] = logits_btv.dims();
    let labels_bt1 = batch.labels.clone().reshape([b, t, 1]);
    log_softmax(logits_btv.cast(FloatDType::F32), 2).gather(2, labels_bt1).reshape([b, t])
}

/// Numerator and denominator by name.
type Figures = Mutex<BTreeMap<&'static str, (f64, f64)>>;

/// A loss on its way to the head, for one micro-batch.
#[derive(Clone, Debug)]
pub struct CustomLossCall {
    loss: Arc<dyn CustomLoss>,
    figures: Arc<Figures>,
    is_used: Arc<AtomicBool>,
}

impl CustomLossCall {
    /// The call of the loss for one micro-batch.
    pub fn new(loss: Arc<dyn CustomLoss>) -> Self {
        let figures = loss.figures().iter().map(|name| (*name, (0.0, 0.0))).collect();
        Self { loss, figures: Arc::new(Mutex::new(figures)), is_used: Arc::default() }
    }

    /// Loss from the outputs that a head can compute.
    pub fn loss_sum(&self, batch: &Batch, mode: Mode, parts: &dyn OutputParts) -> Tensor<1> {
        self.is_used.store(true, Ordering::Relaxed);
        self.loss.loss_sum(&ModelOutputs { batch, mode, parts, figures: &self.figures })
    }

    /// True if a head has asked for the loss. A model that does not know such losses never asks; it
    /// computes the built-in loss instead.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Name of the loss, see [`CustomLoss::name`].
    pub fn name(&self) -> &'static str {
        self.loss.name()
    }

    /// All figures that the loss has recorded.
    pub fn recorded(&self) -> Vec<(&'static str, f64, f64)> {
        let figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        figures.iter().map(|(name, (numerator, denominator))| (*name, *numerator, *denominator)).collect()
    }
}
