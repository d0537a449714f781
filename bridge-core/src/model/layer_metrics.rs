//! Values that layers report besides their output: a collector that the caller of a forward pass owns.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Name of a value and global number of the layer it comes from.
pub type LayerMetric = (&'static str, usize);

/// Values by name and layer of one micro-batch.
///
/// A layer that reports again, because it is recomputed, replaces what it reported. Values are those of all ranks that share the
/// micro-batch (tensor and context parallel ones): the caller averages over the others.
#[derive(Debug, Default)]
pub struct LayerMetrics(Mutex<BTreeMap<LayerMetric, Vec<f64>>>);

impl LayerMetrics {
    /// Notes what layer `layer` (global) has to say of `name`: one number, or one for each expert.
    pub fn record(&self, name: &'static str, layer: usize, values: Vec<f64>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((name, layer), values);
    }

    /// Everything recorded since the last call, ordered by name and layer.
    pub fn take(&self) -> BTreeMap<LayerMetric, Vec<f64>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
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
}
