//! Losses of the layers of multi-token prediction in a step, one for each depth.

use bridge_dist::comm::CommError;
use bridge_dist::mesh::ProcessGroups;

use crate::config::RunConfig;
use crate::model::{LayerMetric, PREDICTION_LOSS};
use crate::train::engine::forward_step::Ratio;
use crate::train::ranks::agreement;

/// Sums of this rank's micro-batches so far, one for each depth.
pub(in crate::train) struct PredictionSums {
    /// Global number of the first of these layers.
    first_layer: usize,
    sums: Vec<Ratio>,
}

impl PredictionSums {
    pub(in crate::train) fn new(config: &RunConfig) -> Self {
        let depth = config.model.mtp_num_layers.unwrap_or(0);
        Self { first_layer: config.model.num_layers, sums: vec![Ratio::default(); depth] }
    }

    /// Adds a layer's report on a micro-batch.
    pub(in crate::train) fn add(&mut self, (name, layer): LayerMetric, values: &[f64]) {
        let place = layer.checked_sub(self.first_layer).filter(|_| name == PREDICTION_LOSS);
        if let (Some(sum), [numerator, denominator]) = (place.and_then(|place| self.sums.get_mut(place)), values) {
            *sum += Ratio { numerator: *numerator, denominator: *denominator };
        }
    }

    /// The mean losses over all ranks, that of the first depth first. All ranks call this together.
    pub(in crate::train) fn all_reduce(self, groups: &ProcessGroups) -> Result<Vec<Ratio>, CommError> {
        let mut figures: Vec<f64> = self.sums.iter().flat_map(|sum| [sum.numerator, sum.denominator]).collect();
        if !figures.is_empty() {
            agreement::share_from_last_stage(groups, &mut figures)?;
        }
        let ratio = |figures: &[f64]| Ratio { numerator: figures[0], denominator: figures[1] };
        Ok(figures.chunks_exact(2).map(ratio).collect())
    }
}

/// The name of a loss of depth `depth`, from 1.
pub(in crate::train) fn loss_name(depth: usize) -> String {
    format!("mtp_{depth} loss")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_micro_batches_by_depth() {
        let mut sums = PredictionSums { first_layer: 3, sums: vec![Ratio::default(); 2] };
        for (name, layer, values) in [
            (PREDICTION_LOSS, 3, [6.0, 4.0]),
            (PREDICTION_LOSS, 4, [9.0, 3.0]),
            (PREDICTION_LOSS, 3, [2.0, 1.0]),
            (PREDICTION_LOSS, 2, [90.0, 1.0]),
            (PREDICTION_LOSS, 5, [90.0, 1.0]),
            ("z_loss", 3, [90.0, 1.0]),
        ] {
            sums.add((name, layer), &values);
        }
        let losses = sums.all_reduce(&ProcessGroups::single()).unwrap();
        let [first, second] = [(8.0, 5.0), (9.0, 3.0)].map(|(numerator, denominator)| Ratio { numerator, denominator });
        assert_eq!(losses, [first, second]);
        assert_eq!(loss_name(1), "mtp_1 loss");
    }
}
