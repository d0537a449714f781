//! The scales and least values of blocks, in 16 bits.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Scales of [`super::CodeFormat::Int8`] are stored in this unit: about the largest magnitude of a
/// block, for which float16 has the range.
pub(super) const INT8_UNIT: f32 = 1.0 / 128.0;
/// As [`INT8_UNIT`], of [`super::CodeFormat::Int4`].
pub(super) const INT4_UNIT: f32 = 1.0 / 16.0;

/// Scales of a matrix, in the narrowest float format that holds them exactly.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scales {
    Half(Vec<f16>),
    /// Some are beyond float16.
    Single(Vec<f32>),
}

impl Scales {
    /// Scales that [`nearest`] or [`below`] made.
    pub fn new(scales: Vec<f32>) -> Self {
        let fits = |scale: &f32| !scale.is_finite() || scale.abs() <= f32::from(f16::MAX);
        if scales.iter().all(fits) {
            Self::Half(scales.into_iter().map(f16::from_f32).collect())
        } else {
            Self::Single(scales)
        }
    }

    pub fn bytes(&self) -> u64 {
        (match self {
            Self::Half(scales) => size_of_val(scales.as_slice()),
            Self::Single(scales) => size_of_val(scales.as_slice()),
        }) as u64
    }

    /// Some of them, which are written to `room` unless they are held so.
    pub fn read<'a>(&'a self, range: Range<usize>, room: &'a mut Vec<f32>) -> &'a [f32] {
        match self {
            Self::Half(scales) => {
                room.resize(range.len(), 0.0);
                scales[range].convert_to_f32_slice(room);
                room
            }
            Self::Single(scales) => &scales[range],
        }
    }
}

/// The float16 nearest to a number, or the number if it is beyond them.
pub(super) fn nearest(x: f32) -> f32 {
    let half = f16::from_f32(x);
    if half.is_finite() { f32::from(half) } else { x }
}

/// The largest float16 that is not above a number, or the number if it is beyond them.
pub(super) fn below(x: f32) -> f32 {
    let half = f16::from_f32(x);
    if !half.is_finite() {
        return x;
    }
    if f32::from(half) <= x {
        return f32::from(half);
    }
    // Numbers of one sign are in the order of their bits.
    let bits = if half > f16::ZERO { half.to_bits() - 1 } else { (half.to_bits() | f16::NEG_ZERO.to_bits()) + 1 };
    let next = f16::from_bits(bits);
    if next.is_finite() { f32::from(next) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_from_below() {
        let cases = [
            (1.0, 1.0),
            (1.000_5, 1.0),
            (1.000_9, 1.0),
            (-1.000_1, -1.0 - 1.0 / 1024.0),
            (0.0, 0.0),
            (1e-9, 0.0),
            (-1e-9, -f32::from(f16::MIN_POSITIVE_SUBNORMAL)),
            (65504.0, 65504.0),
            (-65504.0, -65504.0),
            (-65510.0, -65510.0),
            (1e6, 1e6),
            (-1e6, -1e6),
        ];
        for (x, expected) in cases {
            assert_eq!(below(x), expected, "{x}");
        }
        for bits in 0..f16::INFINITY.to_bits() - 1 {
            let (low, high) = (f32::from(f16::from_bits(bits)), f32::from(f16::from_bits(bits + 1)));
            assert_eq!((below(low), below(low.midpoint(high)), below(-low)), (low, low, -low));
            assert_eq!(below(-low.midpoint(high)), -high);
        }
    }
}
