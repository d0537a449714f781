//! Values that layers report besides their output: a collector that the caller of a forward pass
//! owns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bridge_kernels::MaxLogit;

/// Name of a value and global number of the layer it comes from.
pub type LayerMetric = (&'static str, usize);

/// Names of the losses that routers report, as on the console. A model reports only the losses that
/// it has.
pub const ROUTER_LOSSES: [&str; 4] =
    ["load_balancing_loss", "z_loss", "seq_load_balancing_loss", "global_load_balancing_loss"];

/// Figure of a layer of multi-token prediction: the sum of its loss over the tokens of this rank,
/// and their number.
pub const PREDICTION_LOSS: &str = "mtp_loss";

/// Figure of a layer whose attention chooses keys: the sum of the divergence of the choosing scores
/// from attention over the queries of this rank, and their number.
pub const INDEXER_LOSS: &str = "indexer_loss";

/// Figure of the head's loss, if it can be computed: the tokens of this rank that the model
/// predicts correctly, and all that count.
pub const TOKEN_ACCURACY: &str = "token accuracy";

/// Figure of a layer with attention, if it is recorded: its largest score.
pub const ATTENTION_LOGIT: &str = "max_attention_logit";

/// Values by name and layer of one micro-batch.
///
/// If a recomputed layer reports again, its new value replaces the old one. Values of routers cover
/// all ranks that share the micro-batch (tensor and context parallel ones): the caller averages
/// over other ranks. A sum with its number of summands may be one rank's.
#[derive(Debug, Default)]
pub struct LayerMetrics {
    values: Mutex<BTreeMap<LayerMetric, Vec<f64>>>,
    /// The step that the micro-batch is of, and its number there.
    step: Option<(Arc<StepValues>, usize)>,
    /// Largest attention score by layer, if it is recorded.
    scores: Option<Mutex<BTreeMap<usize, Arc<MaxLogit>>>>,
}

/// Values by name, layer and micro-batch of a step. They give the layers access to the values of
/// earlier micro-batches.
#[derive(Debug, Default)]
pub struct StepValues(Mutex<BTreeMap<LayerMetric, BTreeMap<usize, Vec<f64>>>>);

impl LayerMetrics {
    /// Collector for micro-batch `number` of a step.
    pub fn of_micro_batch(step: &Arc<StepValues>, number: usize) -> Self {
        Self { step: Some((Arc::clone(step), number)), ..Self::default() }
    }

    /// Adds the largest attention score of each layer to the collected values.
    #[must_use]
    pub fn with_attention_scores(self) -> Self {
        Self { scores: Some(Mutex::default()), ..self }
    }

    /// Record of the attention scores of layer `layer` (global); `None` if they are not recorded.
    /// They are reported as [`ATTENTION_LOGIT`].
    pub fn attention_scores_of(&self, layer: usize) -> Option<Arc<MaxLogit>> {
        let mut scores = self.scores.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(scores.entry(layer).or_default()))
    }

    /// The mean of a vector over the micro-batches of the step up to this one, whose vector `own`
    /// computes. A recomputed layer finds the vector of its first run, and `own` is not called. All
    /// ranks that run a layer together agree on whether `own` is called.
    pub fn mean_of_step(&self, name: &'static str, layer: usize, own: impl FnOnce() -> Vec<f64>) -> Vec<f64> {
        let Some((step, number)) = &self.step else { return own() };
        let known = |values: &StepValues| {
            let values = values.0.lock().unwrap_or_else(PoisonError::into_inner);
            values.get(&(name, layer)).is_some_and(|by_number| by_number.contains_key(number))
        };
        // `own` may wait for other ranks: not under the lock.
        let own = if known(step) { None } else { Some(own()) };
        let mut values = step.0.lock().unwrap_or_else(PoisonError::into_inner);
        let by_number = values.entry((name, layer)).or_default();
        if let Some(own) = own {
            by_number.insert(*number, own);
        }
        let so_far: Vec<&Vec<f64>> = by_number.range(..=number).map(|(_, values)| values).collect();
        let mean = |place: usize| so_far.iter().map(|values| values[place]).sum::<f64>() / so_far.len() as f64;
        (0..so_far[0].len()).map(mean).collect()
    }

    /// Records values called `name` of layer `layer` (global): one number, or one for each expert.
    pub fn record(&self, name: &'static str, layer: usize, values: Vec<f64>) {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).insert((name, layer), values);
    }

    /// Everything recorded since the last call, ordered by name and layer.
    pub fn take(&self) -> BTreeMap<LayerMetric, Vec<f64>> {
        let mut values = std::mem::take(&mut *self.values.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(scores) = &self.scores {
            let scores = std::mem::take(&mut *scores.lock().unwrap_or_else(PoisonError::into_inner));
            let largest = scores.into_iter().filter_map(|(layer, score)| Some((layer, f64::from(score.value()?))));
            values.extend(largest.map(|(layer, score)| ((ATTENTION_LOGIT, layer), vec![score])));
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_reports_twice_counts_once() {
        let metrics = LayerMetrics::default();
        metrics.record("z_loss", 3, vec![1.0]);
        metrics.record("z_loss", 3, vec![2.0]);
        metrics.record("z_loss", 1, vec![5.0]);
        assert_eq!(
            metrics.take().into_iter().collect::<Vec<_>>(),
            [(("z_loss", 1), vec![5.0]), (("z_loss", 3), vec![2.0])]
        );
        assert!(metrics.take().is_empty());
    }

    #[test]
    fn scores_are_noted_where_they_are_asked_for() {
        assert!(LayerMetrics::default().attention_scores_of(0).is_none());
        let metrics = LayerMetrics::default().with_attention_scores();
        for (layer, score) in [(4, -2.0), (1, 0.5), (4, -1.5), (4, -3.0)] {
            metrics.attention_scores_of(layer).unwrap().record(score);
        }
        metrics.attention_scores_of(2).unwrap();
        let found: Vec<_> = metrics.take().into_iter().collect();
        assert_eq!(found, [((ATTENTION_LOGIT, 1), vec![0.5]), ((ATTENTION_LOGIT, 4), vec![-1.5])]);
        assert!(metrics.take().is_empty());
    }

    #[test]
    fn a_mean_of_a_step_is_of_the_micro_batches_so_far() {
        let step = Arc::default();
        let of = |number, value: f64| {
            let metrics = LayerMetrics::of_micro_batch(&step, number);
            metrics.mean_of_step("tokens", 2, || vec![value, 1.0])
        };
        assert_eq!(of(0, 4.0), [4.0, 1.0]);
        assert_eq!(of(1, 8.0), [6.0, 1.0]);
        assert_eq!(of(0, 100.0), [4.0, 1.0], "a layer that is recomputed sees what it saw");
        assert_eq!(LayerMetrics::default().mean_of_step("tokens", 2, || vec![3.0]), [3.0], "no step, no others");
    }
}
