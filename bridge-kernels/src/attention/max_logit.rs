//! Max logit of attention: the largest score, recorded where scores are computed.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Tensor;

/// Largest attention score so far, of keys that are not masked: scaled, capped and with its bias,
/// as it enters the softmax.
///
/// Many tasks may record scores at once. Recording a score again, in a recomputed layer, changes
/// nothing.
#[derive(Default)]
pub struct MaxLogit {
    /// Largest score so far, encoded by [`sortable_bits`]; 0 before the first.
    bits: AtomicU32,
    /// Scores that have not been read from the device yet: a read waits for all earlier work of the
    /// device.
    on_device: Mutex<Vec<Tensor<1>>>,
}

/// Bits that sort as unsigned integers in the order of the floats; above 0 for all floats.
fn sortable_bits(score: f32) -> u32 {
    let bits = score.to_bits();
    if score.is_sign_negative() { !bits } else { bits | 1 << 31 }
}

impl MaxLogit {
    /// Records a score. NaN is skipped: it shows in the loss.
    pub fn record(&self, score: f32) {
        if !score.is_nan() {
            self.bits.fetch_max(sortable_bits(score), Ordering::Relaxed);
        }
    }

    /// Records the largest element of a tensor of scores, without waiting for the device.
    pub fn record_max<const D: usize>(&self, scores: Tensor<D>) {
        if scores.shape().num_elements() > 0 {
            let largest = scores.detach().max();
            self.on_device.lock().unwrap_or_else(PoisonError::into_inner).push(largest);
        }
    }

    /// The largest so far; `None` before the first.
    pub fn value(&self) -> Option<f32> {
        for largest in std::mem::take(&mut *self.on_device.lock().unwrap_or_else(PoisonError::into_inner)) {
            largest.into_data().iter::<f32>().for_each(|score| self.record(score));
        }
        match self.bits.load(Ordering::Relaxed) {
            0 => None,
            bits if bits >> 31 == 1 => Some(f32::from_bits(bits & !(1 << 31))),
            bits => Some(f32::from_bits(!bits)),
        }
    }
}

impl fmt::Debug for MaxLogit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaxLogit").field("bits", &self.bits).finish_non_exhaustive()
    }
}

/// Queries whose max logit an attention records, and its destination.
#[derive(Clone, Debug)]
pub struct MaxLogitProbe {
    /// Destination of the max logit.
    pub max_logit: Arc<MaxLogit>,
    /// First query that counts. Earlier queries are padding.
    pub first_query: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_all_signs_is_kept() {
        let largest = MaxLogit::default();
        assert_eq!(largest.value(), None);
        for (score, expected) in [
            (f32::NAN, None),
            (f32::NEG_INFINITY, Some(f32::NEG_INFINITY)),
            (-7.5, Some(-7.5)),
            (-9.0, Some(-7.5)),
            (-0.0, Some(-0.0)),
            (0.0, Some(0.0)),
            (1e-30, Some(1e-30)),
            (3.25, Some(3.25)),
            (f32::NAN, Some(3.25)),
            (-4.0, Some(3.25)),
            (f32::INFINITY, Some(f32::INFINITY)),
        ] {
            largest.record(score);
            assert_eq!(largest.value().map(f32::to_bits), expected.map(f32::to_bits), "after {score}");
        }
    }

    #[test]
    fn tensors_are_read_when_the_value_is_asked_for() {
        let largest = MaxLogit::default();
        let device = burn::tensor::Device::flex();
        largest.record(-3.0);
        largest.record_max(Tensor::<2>::from_floats([[-5.0, -2.5], [-9.0, -8.0]], &device));
        largest.record_max(Tensor::<1>::zeros([0], &device));
        assert_eq!(largest.value(), Some(-2.5));
        largest.record_max(Tensor::<1>::from_floats([0.5], &device));
        assert_eq!((largest.value(), largest.value()), (Some(0.5), Some(0.5)));
    }
}
