//! From values to codes: the scales come first, as they are stored, then the nearest codes for
//! them.

use super::format::{CodeFormat, NF4_BORDERS};
#[cfg(doc)]
use super::scales::Scales;
use super::scales::{INT4_UNIT, INT8_UNIT, below, nearest};
use crate::cpu::simd::larger_magnitude;

/// Writes the codes of a block, and its scale or scales, as [`Scales`] holds them.
pub(super) fn encode(format: CodeFormat, values: &[f32], codes: &mut [u8], scales: &mut [f32]) {
    let largest = values.iter().fold(0.0, |largest, value| larger_magnitude(largest, *value));
    match format {
        CodeFormat::Int8 => {
            scales[0] = nearest(largest / 127.0 / INT8_UNIT);
            let inverse = inverse(scales[0] * INT8_UNIT);
            for (code, value) in codes.iter_mut().zip(values) {
                *code = ((value * inverse).round_ties_even().clamp(-127.0, 127.0) as i8).cast_unsigned();
            }
        }
        CodeFormat::Nf4 => {
            scales[0] = nearest(largest);
            let inverse = inverse(scales[0]);
            let borders = &*NF4_BORDERS;
            let code = |value: &f32| borders.iter().map(|border| u8::from(value * inverse > *border)).sum::<u8>();
            for (byte, pair) in codes.iter_mut().zip(values.chunks(2)) {
                *byte = code(&pair[0]) | pair.get(1).map_or(0, code) << 4;
            }
        }
        CodeFormat::Int4 if !largest.is_finite() => scales.fill(f32::NAN),
        CodeFormat::Int4 => {
            // From below, so that the least value is not cut off where values are near to each
            // other and far from zero.
            let least = below(values.iter().copied().fold(f32::INFINITY, f32::min));
            let range = values.iter().copied().fold(f32::NEG_INFINITY, f32::max) - least;
            scales.copy_from_slice(&[nearest(range / 15.0 / INT4_UNIT), least]);
            let inverse = inverse(scales[0] * INT4_UNIT);
            let code = |value: &f32| ((value - least) * inverse).round_ties_even() as u8;
            for (byte, pair) in codes.iter_mut().zip(values.chunks(2)) {
                *byte = code(&pair[0]).min(15) | pair.get(1).map_or(0, |value| code(value).min(15)) << 4;
            }
        }
    }
}

/// Factor that turns values into codes. A block without a scale has only zeros.
fn inverse(scale: f32) -> f32 {
    if scale > 0.0 { 1.0 / scale } else { 0.0 }
}
