//! How elements are stored, and their values in float32: floats of 8 to 64 bits, scaled by blocks, and blocks of 4 bits with a scale each. Files
//! and names belong to `checkpoint`.

use half::{bf16, f16};
use safetensors::Dtype;

/// dtypes of floats that can be read.
pub(super) const FLOATS: &str = "F64, F32, F16, BF16, F8_E4M3 or F8_E5M2";

/// Bytes of an element, where it is a float that can be read.
pub(super) fn float_size(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F64 => Some(8),
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => Some(1),
        _ => None,
    }
}

/// Whether values of a dtype are read with a scale beside them.
pub(super) fn is_f8(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2)
}

/// The floats in `bytes`, one for each place of `target`.
///
/// # Panics
/// If the dtype is none of [`FLOATS`].
pub(super) fn decode(dtype: Dtype, bytes: &[u8], target: &mut [f32]) {
    match dtype {
        Dtype::F64 => fill(bytes, target, |b| f64::from_le_bytes(b) as f32),
        Dtype::F32 => fill(bytes, target, f32::from_le_bytes),
        Dtype::F16 => fill(bytes, target, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::BF16 => fill(bytes, target, |b| bf16::from_le_bytes(b).to_f32()),
        Dtype::F8_E4M3 => fill(bytes, target, |[b]| e4m3(b)),
        Dtype::F8_E5M2 => fill(bytes, target, |[b]| f16::from_bits(u16::from(b) << 8).to_f32()),
        other => panic!("{other} is none of {FLOATS}"),
    }
}

fn fill<const N: usize>(bytes: &[u8], target: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
    for (value, chunk) in target.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *value = convert(*chunk);
    }
}

/// The value of an E4M3 float: four bits of exponent with bias 7, three of mantissa, no infinities (arXiv:2209.05433, section 3).
fn e4m3(bits: u8) -> f32 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 3 & 0xf), f32::from(bits & 7));
    sign * match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2.0_f32.powi(-9),
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    }
}

/// The largest E4M3 float.
const E4M3_MAX: f32 = 448.0;

/// The E4M3 float nearest to `value`; of two the one with an even mantissa. Values beyond the largest become the largest.
fn to_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let size = value.abs().min(E4M3_MAX);
    // The step between neighbours: 2^-9 below the smallest normal number, 2^-6.
    let exponent = if size < 2.0_f32.powi(-6) { -6 } else { (size.to_bits() >> 23) as i32 - 127 };
    let steps = (size / 2.0_f32.powi(exponent - 3)).round_ties_even() as u8;
    // 16 steps are the next exponent's 8, whose bits follow.
    sign | ((exponent + 6) as u8 * 8 + steps)
}

/// A matrix of `columns` columns in E4M3 with a scale for each block of `block` rows and columns: what to multiply its values by. Returns values and
/// scales, both row-major.
pub(super) fn to_scaled_e4m3(values: &[f32], columns: usize, block: [usize; 2]) -> (Vec<u8>, Vec<f32>) {
    let grid = columns.div_ceil(block[1]);
    let rows = values.len() / columns.max(1);
    let mut largest = vec![0.0_f32; rows.div_ceil(block[0]) * grid];
    let place = |index: usize| index / columns / block[0] * grid + index % columns / block[1];
    for (index, value) in values.iter().enumerate() {
        let largest = &mut largest[place(index)];
        *largest = largest.max(value.abs());
    }
    let scales: Vec<f32> =
        largest.into_iter().map(|largest| if largest > 0.0 { largest / E4M3_MAX } else { 1.0 }).collect();
    let stored = values.iter().enumerate().map(|(index, value)| to_e4m3(value / scales[place(index)]));
    (stored.collect(), scales)
}

/// The values of 4-bit floats (E2M1), by their bits.
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
/// Values that share a scale in MXFP4.
pub(super) const MXFP4_BLOCK: usize = 32;

/// Value number `index` of blocks of 32 floats of 4 bits, two in a byte, the lower half first; `scales` has an exponent with bias 127 for each block
/// (OCP Microscaling Formats 1.0, section 5.2).
pub(super) fn mxfp4(blocks: &[u8], scales: &[u8], index: usize) -> f32 {
    let byte = blocks[index / 2];
    let bits = if index.is_multiple_of(2) { byte & 0xf } else { byte >> 4 };
    E2M1[usize::from(bits)] * 2.0_f32.powi(i32::from(scales[index / MXFP4_BLOCK]) - 127)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_eight_bits_have_the_values_of_their_bits() {
        let known = [(0x00, 0.0), (0x01, 0.001_953_125), (0x08, 0.015_625), (0x38, 1.0), (0x7e, 448.0), (0xc4, -3.0)];
        assert!(known.iter().all(|(bits, value)| e4m3(*bits) == *value) && e4m3(0x7f).is_nan());
        let mut values = [0.0; 4];
        decode(Dtype::F8_E5M2, &[0x3c, 0xc0, 0x7b, 0x01], &mut values);
        assert_eq!(values, [1.0, -2.0, 57_344.0, 2.0_f32.powi(-16)]);
        for bits in (0..=255_u8).filter(|bits| bits & 0x7f != 0x7f) {
            assert_eq!(to_e4m3(e4m3(bits)), bits, "{bits:#x}");
        }
        // Between two neighbours, and beyond the largest.
        assert_eq!(
            [17.0, 19.0, 500.0, -1e9, 0.017].map(|value| e4m3(to_e4m3(value))),
            [16.0, 20.0, 448.0, -448.0, 0.017_578_125]
        );
    }

    #[test]
    fn blocks_have_a_scale_each() {
        let values: Vec<f32> = (0..15).map(|i| (i as f32 - 4.0) * if i % 5 < 3 { 1.0 } else { 1e-3 }).collect();
        let (stored, scales) = to_scaled_e4m3(&values, 5, [2, 3]);
        assert_eq!(scales.len(), 4);
        for (index, bits) in stored.iter().enumerate() {
            let value = e4m3(*bits) * scales[index / 5 / 2 * 2 + index % 5 / 3];
            assert!((value - values[index]).abs() <= values[index].abs() / 15.0, "{index}: {value}, {}", values[index]);
        }
    }

    #[test]
    fn four_bits_and_a_scale() {
        let blocks: Vec<u8> = [vec![0x21; 16], vec![0xf7; 16]].concat();
        assert_eq!([0, 1, 31, 32, 33].map(|i| mxfp4(&blocks, &[127, 129], i)), [0.5, 1.0, 1.0, 24.0, -24.0]);
    }
}
