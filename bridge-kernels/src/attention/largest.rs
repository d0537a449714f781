//! The largest score of attention, taken where scores are made.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Tensor;

/// The largest attention score that was seen: scaled, capped and with its bias, as it enters the
/// softmax, of keys that are not hidden.
///
/// Many tasks may note scores at once; a score that is noted again, by a recomputed layer, changes
/// nothing.
#[derive(Default)]
pub struct LargestScore {
    /// Largest score so far, encoded by [`place`]; 0 before the first.
    seen: AtomicU32,
    /// Scores that have not been read from the device yet: a read waits for all earlier work of the
    /// device.
    on_device: Mutex<Vec<Tensor<1>>>,
}

/// A number that orders as floats do, above 0 for all of them.
fn place(score: f32) -> u32 {
    let bits = score.to_bits();
    if score.is_sign_negative() { !bits } else { bits | 1 << 31 }
}

impl LargestScore {
    /// Notes a score. What is not a number is passed over: the loss tells of it.
    pub fn note(&self, score: f32) {
        if !score.is_nan() {
            self.seen.fetch_max(place(score), Ordering::Relaxed);
        }
    }

    /// Notes the largest element of a tensor of scores, without waiting for the device.
    pub fn note_largest<const D: usize>(&self, scores: Tensor<D>) {
        if scores.shape().num_elements() > 0 {
            let largest = scores.detach().max();
            self.on_device.lock().unwrap_or_else(PoisonError::into_inner).push(largest);
        }
    }

    /// The largest so far; `None` before the first.
    pub fn value(&self) -> Option<f32> {
        for largest in std::mem::take(&mut *self.on_device.lock().unwrap_or_else(PoisonError::into_inner)) {
            largest.into_data().iter::<f32>().for_each(|score| self.note(score));
        }
        match self.seen.load(Ordering::Relaxed) {
            0 => None,
            place if place >> 31 == 1 => Some(f32::from_bits(place & !(1 << 31))),
            place => Some(f32::from_bits(!place)),
        }
    }
}

impl fmt::Debug for LargestScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LargestScore").field("seen", &self.seen).finish_non_exhaustive()
    }
}

/// Whose scores an attention notes, and where.
#[derive(Clone, Debug)]
pub struct ScoreWatch {
    /// Destination of the scores.
    pub largest: Arc<LargestScore>,
    /// The first query that counts; those before it are there to fill a shape.
    pub first_query: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_all_signs_is_kept() {
        let largest = LargestScore::default();
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
            largest.note(score);
            assert_eq!(largest.value().map(f32::to_bits), expected.map(f32::to_bits), "after {score}");
        }
    }

    #[test]
    fn tensors_are_read_when_the_value_is_asked_for() {
        let largest = LargestScore::default();
        let device = burn::tensor::Device::flex();
        largest.note(-3.0);
        largest.note_largest(Tensor::<2>::from_floats([[-5.0, -2.5], [-9.0, -8.0]], &device));
        largest.note_largest(Tensor::<1>::zeros([0], &device));
        assert_eq!(largest.value(), Some(-2.5));
        largest.note_largest(Tensor::<1>::from_floats([0.5], &device));
        assert_eq!((largest.value(), largest.value()), (Some(0.5), Some(0.5)));
    }
}
