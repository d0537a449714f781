//! Direct preference optimization (Rafailov et al., 2023): the loss of pairs of answers, against
//! the model as it began.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bridge_data::{Extra, ExtraCut, ExtraValues, MicroBatch, PADDING};
use burn::tensor::activation::log_sigmoid;
use burn::tensor::{Device, Tensor};

use crate::config::{DpoConfig, RunConfig};
use crate::model::{Batch, CustomLoss, ModelOutputs, label_log_probabilities};
use crate::train::engine::forward_step::ForwardStep;
use crate::train::engine::global_state::GlobalState;

const DPO_LOSS: &str = "dpo loss";
const CHOSEN: &str = "rewards/chosen";
const REJECTED: &str = "rewards/rejected";
const ACCURACIES: &str = "rewards/accuracies";
const MARGINS: &str = "rewards/margins";

/// Names of the losses that an evaluation of preferences reports.
pub(in crate::train) const DPO_LOSSES: [&str; 5] = [DPO_LOSS, CHOSEN, REJECTED, ACCURACIES, MARGINS];

/// The step that the recipe asks for, or else the program's.
pub(in crate::train) fn step_of(config: &RunConfig, own: Box<dyn ForwardStep>) -> Box<dyn ForwardStep> {
    match &config.dpo {
        Some(dpo) => Box::new(DpoStep::new(dpo)),
        None => own,
    }
}

/// Pairs of answers as rows: the preferred one, then the other.
#[derive(Debug)]
pub(in crate::train) struct DpoStep {
    beta: f64,
    label_smoothing: f64,
    /// Likelihoods of the next micro-batches under the reference.
    references: VecDeque<Arc<Likelihoods>>,
}

impl DpoStep {
    pub fn new(config: &DpoConfig) -> Self {
        Self { beta: config.beta, label_smoothing: config.label_smoothing, references: VecDeque::new() }
    }
}

impl ForwardStep for DpoStep {
    fn prepare(&mut self, micro_batch: &MicroBatch, device: &Device) -> Batch {
        let rows = rows_of_pairs(micro_batch);
        let counted = rows.loss_mask.chunks(2 * rows.seq_length.max(1)).filter(|pair| counts(pair)).count();
        Batch { num_tokens: counted as f64, ..Batch::new(&rows, device) }
    }

    fn reference_loss(&mut self, _batch: &Batch) -> Option<Arc<dyn CustomLoss>> {
        let likelihoods = Arc::new(Likelihoods::default());
        self.references.push_back(Arc::clone(&likelihoods));
        Some(likelihoods)
    }

    fn custom_loss(&mut self, _state: &GlobalState, _batch: &Batch) -> Option<Arc<dyn CustomLoss>> {
        let reference = self.references.pop_front().unwrap_or_default();
        Some(Arc::new(DpoLoss { beta: self.beta, label_smoothing: self.label_smoothing, reference }))
    }
}

/// True if both answers of a pair have tokens that count; padding has none.
fn counts(mask: &[f32]) -> bool {
    let (chosen, rejected) = mask.split_at(mask.len() / 2);
    [chosen, rejected].iter().all(|answer| answer.iter().any(|weight| *weight > 0.0))
}

/// Samples whose tokens are those of two answers in turn, as two rows each.
fn rows_of_pairs(micro_batch: &MicroBatch) -> MicroBatch {
    fn apart<T: Copy>(values: &[T], length: usize) -> Vec<T> {
        let answers = |pair: &[T]| [0, 1].map(|first| pair.iter().skip(first).step_by(2).copied().collect::<Vec<T>>());
        values.chunks(length.max(1)).flat_map(answers).flatten().collect()
    }
    let length = micro_batch.seq_length;
    let mut extras = micro_batch.extras.clone();
    if let Some(padding) = micro_batch.padding() {
        let values = ExtraValues::Ints(apart(padding, length));
        let shape = vec![2 * micro_batch.batch_size, length / 2];
        extras.insert(PADDING.to_owned(), Extra { values, shape, cut: ExtraCut::Sequence });
    }
    MicroBatch {
        extras,
        tokens: apart(&micro_batch.tokens, length),
        labels: apart(&micro_batch.labels, length),
        loss_mask: apart(&micro_batch.loss_mask, length),
        // No token attends to padding, so its positions do not matter.
        position_ids: (0..2 * micro_batch.batch_size).flat_map(|_| 0..(length / 2) as i64).collect(),
        document_ids: None,
        batch_size: 2 * micro_batch.batch_size,
        seq_length: length / 2,
        part: micro_batch.part,
    }
}

/// The log-likelihood of each row's counted tokens, `[b]` float32.
fn likelihoods(outputs: &ModelOutputs<'_>) -> Tensor<1> {
    let labels_bt = label_log_probabilities(outputs.logits(), outputs.batch());
    let [b, _] = labels_bt.dims();
    (labels_bt * outputs.batch().loss_mask.clone()).sum_dim(1).reshape([b])
}

/// Likelihoods of the rows of a micro-batch under a model.
#[derive(Debug, Default)]
struct Likelihoods(Mutex<Vec<f32>>);

impl CustomLoss for Likelihoods {
    fn loss_sum(&self, outputs: &ModelOutputs<'_>) -> Tensor<1> {
        let likelihoods = likelihoods(outputs);
        let values: Vec<f32> = likelihoods.clone().into_data().iter::<f32>().collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = values;
        -likelihoods.sum()
    }
}

#[derive(Debug)]
struct DpoLoss {
    beta: f64,
    label_smoothing: f64,
    reference: Arc<Likelihoods>,
}

impl CustomLoss for DpoLoss {
    fn loss_sum(&self, outputs: &ModelOutputs<'_>) -> Tensor<1> {
        let mask: Vec<f32> = outputs.batch().loss_mask.clone().into_data().iter::<f32>().collect();
        let own = likelihoods(outputs);
        let pairs = own.dims()[0] / 2;
        let device = own.device();
        let reference = self.reference.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert_eq!(reference.len(), 2 * pairs, "the reference has seen the micro-batch");
        let weights: Vec<f32> = mask.chunks(mask.len() / pairs).map(|pair| f32::from(u8::from(counts(pair)))).collect();
        // Log-ratio of each answer between the model and the reference.
        let ratios_p2 = (own - Tensor::<1>::from_data(reference.as_slice(), &device)).reshape([pairs, 2]);
        let [chosen, rejected] = [0, 1].map(|answer| ratios_p2.clone().narrow(1, answer, 1).reshape([pairs]));
        self.record(outputs, [&chosen, &rejected], &weights);
        let margins = (chosen - rejected) * self.beta;
        let right = log_sigmoid(margins.clone()) * (1.0 - self.label_smoothing);
        let wrong = log_sigmoid(-margins) * self.label_smoothing;
        -((right + wrong) * Tensor::<1>::from_data(weights.as_slice(), &device)).sum()
    }

    fn name(&self) -> &'static str {
        DPO_LOSS
    }

    fn figures(&self) -> &[&'static str] {
        &[CHOSEN, REJECTED, ACCURACIES, MARGINS]
    }
}

impl DpoLoss {
    fn record(&self, outputs: &ModelOutputs<'_>, ratios: [&Tensor<1>; 2], weights: &[f32]) {
        let rewards = ratios.map(|ratio| {
            let values = ratio.clone().without_autodiff().into_data();
            values.iter::<f64>().map(|value| self.beta * value).collect::<Vec<_>>()
        });
        let [mut chosen, mut rejected, mut right, mut count] = [0.0; 4];
        let pairs = rewards[0].iter().zip(&rewards[1]).zip(weights);
        for ((a, b), _) in pairs.filter(|(_, weight)| **weight > 0.0) {
            chosen += a;
            rejected += b;
            right += f64::from(u8::from(a > b));
            count += 1.0;
        }
        for (name, sum) in [(CHOSEN, chosen), (REJECTED, rejected), (ACCURACIES, right), (MARGINS, chosen - rejected)] {
            outputs.record(name, sum, count);
        }
    }
}
