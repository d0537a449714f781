//! Outputs of a teacher for a micro-batch, and the loss of a model against them.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::activation::log_softmax;
use burn::tensor::{FloatDType, Tensor};

use super::Objective;
use super::top::Best;
use crate::config::HiddenLoss;
use crate::model::{CustomLoss, ModelOutputs, label_log_probabilities};

const DISTILLATION_LOSS: &str = "distillation loss";
const KD_LOSS: &str = "kd loss";
/// The cross-entropy of the text.
pub(in crate::train) const CE_LOSS: &str = "ce loss";
const HIDDEN_LOSS: &str = "hidden loss";
const CACHED: &str = "kd cached";

/// Outputs of a teacher for a micro-batch that the loss needs.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    tokens: Option<Tokens>,
    /// `[b, t, c]` float32.
    hidden_btc: Option<Tensor<3>>,
    is_cached: bool,
}

/// Tokens that the teacher expects.
#[derive(Clone, Debug)]
enum Tokens {
    /// Log-probabilities at the temperature, `[b, t, v]`.
    All(Box<Tensor<3>>),
    Best(Arc<Best>),
}

impl Said {
    pub fn from_cache(best: Best) -> Self {
        Self { tokens: Some(Tokens::Best(Arc::new(best))), hidden_btc: None, is_cached: true }
    }

    pub fn best(&self) -> Option<&Best> {
        match &self.tokens {
            Some(Tokens::Best(best)) => Some(best),
            _ => None,
        }
    }
}

/// Logits of the tokens that both models have, divided by the temperature.
fn softened(objective: &Objective, logits_btv: Tensor<3>) -> Tensor<3> {
    logits_btv.narrow(2, 0, objective.rows) / objective.settings.temperature
}

/// Records the teacher's outputs, on the last stage.
#[derive(Debug)]
pub(super) struct Listener {
    objective: Arc<Objective>,
    said: Mutex<Said>,
}

impl Listener {
    pub fn new(objective: Arc<Objective>) -> Self {
        Self { objective, said: Mutex::default() }
    }

    /// Takes the recorded outputs; empty on stages without the teacher's end.
    pub fn take(&self) -> Said {
        std::mem::take(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl CustomLoss for Listener {
    fn loss_sum(&self, outputs: &ModelOutputs<'_>) -> Tensor<1> {
        let settings = &self.objective.settings;
        let logits = || outputs.logits().without_autodiff().cast(FloatDType::F32);
        let tokens = (settings.alpha > 0.0).then(|| match settings.top_k {
            None => Tokens::All(Box::new(log_softmax(softened(&self.objective, logits()), 2))),
            Some(k) => {
                let rows = self.objective.rows;
                let values: Vec<f32> = logits().narrow(2, 0, rows).into_data().iter::<f32>().collect();
                Tokens::Best(Arc::new(Best::select(&values, rows, k, settings.temperature)))
            }
        });
        let hidden = || outputs.hidden_states().without_autodiff().cast(FloatDType::F32);
        let hidden_btc = (settings.hidden_weight > 0.0).then(hidden);
        let said = Said { tokens, hidden_btc, is_cached: false };
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = said;
        Tensor::zeros([1], &outputs.batch().loss_mask.device())
    }
}

/// The loss of one micro-batch: `(1 - alpha) CE + alpha T^2 KL(teacher || model) + hidden_weight
/// H`, summed over the tokens that count.
#[derive(Debug)]
pub(super) struct DistillationLoss {
    objective: Arc<Objective>,
    said: Said,
    figures: Vec<&'static str>,
}

impl DistillationLoss {
    pub fn new(objective: Arc<Objective>, said: Said) -> Self {
        let settings = &objective.settings;
        let parts = [
            (KD_LOSS, settings.alpha > 0.0),
            (HIDDEN_LOSS, settings.hidden_weight > 0.0),
            (CACHED, settings.cache.is_some()),
        ];
        let figures =
            [CE_LOSS].into_iter().chain(parts.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name));
        let figures = figures.collect();
        Self { objective, said, figures }
    }
}

impl CustomLoss for DistillationLoss {
    fn loss_sum(&self, outputs: &ModelOutputs<'_>) -> Tensor<1> {
        let (settings, batch) = (&self.objective.settings, outputs.batch());
        let logits_btv = outputs.logits().cast(FloatDType::F32);
        let [b, t, _] = logits_btv.dims();
        let sum_of = |each_bt: Tensor<2>| (each_bt * batch.loss_mask.clone()).sum();
        let record = |name, sum: &Tensor<1>| {
            let value = sum.clone().without_autodiff().into_data().iter::<f64>().sum();
            outputs.record(name, value, batch.num_tokens);
        };
        let cross_entropy = sum_of(-label_log_probabilities(logits_btv.clone(), batch));
        record(CE_LOSS, &cross_entropy);
        let mut loss = cross_entropy * (1.0 - settings.alpha);
        if settings.alpha > 0.0 {
            let logits_btv = softened(&self.objective, logits_btv);
            let divergence_bt = match self.said.tokens.as_ref().expect("the teacher has seen the micro-batch") {
                Tokens::All(of_teacher) => {
                    let of_teacher = of_teacher.as_ref().clone();
                    let difference = of_teacher.clone() - log_softmax(logits_btv, 2);
                    (of_teacher.exp() * difference).sum_dim(2).reshape([b, t])
                }
                Tokens::Best(best) => best.divergence(logits_btv),
            };
            let divergence = sum_of(divergence_bt) * settings.temperature.powi(2);
            record(KD_LOSS, &divergence);
            loss = loss + divergence * settings.alpha;
        }
        if settings.hidden_weight > 0.0 {
            let own_btc = outputs.hidden_states().cast(FloatDType::F32);
            let of_teacher = self.said.hidden_btc.clone().expect("the teacher has seen the micro-batch");
            let difference = sum_of(difference(own_btc, of_teacher, settings.hidden_loss));
            record(HIDDEN_LOSS, &difference);
            loss = loss + difference * settings.hidden_weight;
        }
        if settings.cache.is_some() {
            outputs.record(CACHED, if self.said.is_cached { b as f64 } else { 0.0 }, b as f64);
        }
        loss
    }

    fn name(&self) -> &'static str {
        DISTILLATION_LOSS
    }

    fn figures(&self) -> &[&'static str] {
        &self.figures
    }
}

/// Distance of hidden states from those of the teacher, `[b, t, c]` -> `[b, t]`.
fn difference(own_btc: Tensor<3>, of_teacher_btc: Tensor<3>, by: HiddenLoss) -> Tensor<2> {
    let [b, t, c] = own_btc.dims();
    let total = |x: Tensor<3>| x.sum_dim(2).reshape([b, t]);
    match by {
        HiddenLoss::Mse => total((own_btc - of_teacher_btc).powi_scalar(2)) / c as f64,
        HiddenLoss::Cosine => {
            let length = |x: &Tensor<3>| total(x.clone().powi_scalar(2)).sqrt().clamp_min(1e-8);
            let lengths = length(&own_btc) * length(&of_teacher_btc);
            -(total(own_btc * of_teacher_btc) / lengths) + 1.0
        }
    }
}
