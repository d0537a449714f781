//! Storage of elements, and their values in float32: floats of 8 to 64 bits, scaled by blocks, and
//! blocks of 4 bits with a scale each. Files and names belong to `checkpoint`.

use bridge_kernels::Fp8Format;
use half::{bf16, f16};
use safetensors::Dtype;

/// dtypes of floats that can be read, besides tables of integers.
pub(super) const FLOATS: &str = "F64, F32, F16, BF16, F8_E4M3 or F8_E5M2";

/// Bytes of an element, where it is a float that can be read.
pub(super) fn float_size(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F64 | Dtype::I64 => Some(8),
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => Some(1),
        _ => None,
    }
}

/// True if values of a dtype are read with a scale beside them.
pub(super) fn is_f8(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2)
}

/// The floats in `bytes`, one for each place of `target`. Panics if the dtype is not in [`FLOATS`].
pub(super) fn decode(dtype: Dtype, bytes: &[u8], target: &mut [f32]) {
    match dtype {
        Dtype::F64 => fill(bytes, target, |b| f64::from_le_bytes(b) as f32),
        Dtype::I64 => fill(bytes, target, |b| i64::from_le_bytes(b) as f32),
        Dtype::F32 => fill(bytes, target, f32::from_le_bytes),
        Dtype::F16 => fill(bytes, target, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::BF16 => fill(bytes, target, |b| bf16::from_le_bytes(b).to_f32()),
        Dtype::F8_E4M3 => fill(bytes, target, |[b]| Fp8Format::E4M3.value(b)),
        Dtype::F8_E5M2 => fill(bytes, target, |[b]| f16::from_bits(u16::from(b) << 8).to_f32()),
        other => panic!("{other} is none of {FLOATS}"),
    }
}

fn fill<const N: usize>(bytes: &[u8], target: &mut [f32], convert: impl Fn([u8; N]) -> f32) {
    for (value, chunk) in target.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *value = convert(*chunk);
    }
}

/// A matrix of `columns` columns in E4M3 with a scale for each block of `block` rows and columns,
/// by which its values are multiplied. Returns values and scales, both row-major. NaN stays NaN,
/// and a block with an infinite value becomes NaN.
pub(super) fn to_scaled_e4m3(values: &[f32], columns: usize, block: [usize; 2]) -> (Vec<u8>, Vec<f32>) {
    let grid = columns.div_ceil(block[1]);
    let rows = values.len() / columns.max(1);
    let mut largest = vec![0.0_f32; rows.div_ceil(block[0]) * grid];
    let place = |index: usize| index / columns / block[0] * grid + index % columns / block[1];
    for (index, value) in values.iter().enumerate() {
        let largest = &mut largest[place(index)];
        *largest = largest.max(value.abs());
    }
    // Never so small that float32 could not divide by it.
    let scale = |largest: f32| (largest / Fp8Format::E4M3.largest()).max(f32::MIN_POSITIVE);
    let scales: Vec<f32> =
        largest.into_iter().map(|largest| if largest > 0.0 { scale(largest) } else { 1.0 }).collect();
    let stored = values.iter().enumerate().map(|(index, value)| Fp8Format::E4M3.code(value / scales[place(index)]));
    (stored.collect(), scales)
}

/// The values of 4-bit floats (E2M1), by their bits.
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
/// Values that share a scale in MXFP4.
pub(super) const MXFP4_BLOCK: usize = 32;

/// Value number `index` of blocks of 32 floats of 4 bits, two in a byte, the lower half first;
/// `scales` has an exponent with bias 127 for each block (OCP Microscaling Formats 1.0, section
/// 5.2).
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
        let mut values = [0.0; 7];
        decode(Dtype::F8_E4M3, &[0x00, 0x01, 0x08, 0x38, 0x7e, 0xc4, 0x7f], &mut values);
        assert_eq!(values[..6], [0.0, 0.001_953_125, 0.015_625, 1.0, 448.0, -3.0]);
        assert!(values[6].is_nan());
        let mut values = [0.0; 4];
        decode(Dtype::F8_E5M2, &[0x3c, 0xc0, 0x7b, 0x01], &mut values);
        assert_eq!(values, [1.0, -2.0, 57_344.0, 2.0_f32.powi(-16)]);
    }

    #[test]
    fn values_that_are_not_finite_stay_so_and_tiny_ones_become_zeros() {
        let (nan, infinite) = (f32::NAN, f32::INFINITY);
        let read = |values: &[f32]| {
            let (stored, scales) = to_scaled_e4m3(values, values.len(), [1, values.len()]);
            let mut read = vec![0.0; stored.len()];
            decode(Dtype::F8_E4M3, &stored, &mut read);
            read.into_iter().map(|value| value * scales[0]).collect::<Vec<_>>()
        };
        let found = read(&[nan, 1.0, 0.0]);
        assert!(found[0].is_nan() && found[1..] == [1.0, 0.0], "{found:?}");
        assert!(read(&[infinite, 1.0]).iter().all(|value| value.is_nan()));
        assert_eq!(read(&[1e-44, 0.0, 0.0]), [0.0; 3]);
    }

    #[test]
    fn blocks_have_a_scale_each() {
        let values: Vec<f32> = (0..15).map(|i| (i as f32 - 4.0) * if i % 5 < 3 { 1.0 } else { 1e-3 }).collect();
        let (stored, scales) = to_scaled_e4m3(&values, 5, [2, 3]);
        assert_eq!(scales.len(), 4);
        for (index, bits) in stored.iter().enumerate() {
            let value = Fp8Format::E4M3.value(*bits) * scales[index / 5 / 2 * 2 + index % 5 / 3];
            assert!((value - values[index]).abs() <= values[index].abs() / 15.0, "{index}: {value}, {}", values[index]);
        }
    }

    #[test]
    fn four_bits_and_a_scale() {
        let blocks: Vec<u8> = [vec![0x21; 16], vec![0xf7; 16]].concat();
        assert_eq!([0, 1, 31, 32, 33].map(|i| mxfp4(&blocks, &[127, 129], i)), [0.5, 1.0, 1.0, 24.0, -24.0]);
    }
}
