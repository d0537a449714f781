//! A matrix in codes and scales.

use std::ops::Range;

use rayon::prelude::*;

use super::format::{CodeFormat, NF4_BORDERS, NF4_PAIRS, Quantization};
use crate::cpu::simd::vectorised;

/// Rows that one task takes.
const ROWS: usize = 16;

/// A matrix `[rows, cols]`, quantised as a [`Quantization`] says. It has no gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedMatrix {
    quantization: Quantization,
    shape: [usize; 2],
    /// Row by row.
    codes: Vec<u8>,
    /// Row by row, one a block, or two.
    scales: Vec<f32>,
}

impl QuantizedMatrix {
    /// The nearest codes for `values`, row-major. A block with a value that is not finite reads as NaN.
    ///
    /// # Panics
    /// If there are other than `rows * cols` values, or the block size is not an even number.
    pub fn new(values: &[f32], shape: [usize; 2], quantization: Quantization) -> Self {
        let [rows, cols] = shape;
        assert_eq!(values.len(), rows * cols, "values of a matrix of {shape:?}");
        let size = quantization.block_size;
        assert!(size > 0 && size.is_multiple_of(2), "expected blocks of an even size, found {size}");
        let (of_codes, of_scales) = (quantization.code_bytes(cols), quantization.scales() * quantization.blocks(cols));
        let (mut codes, mut scales) = (vec![0; rows * of_codes], vec![0.0; rows * of_scales]);
        if rows * cols > 0 {
            let rows = codes.par_chunks_mut(of_codes).zip(scales.par_chunks_mut(of_scales));
            rows.zip(values.par_chunks(cols)).with_min_len(ROWS).for_each(|((codes, scales), values)| {
                let blocks = values.chunks(size).zip(codes.chunks_mut(quantization.code_bytes(size)));
                for ((values, codes), scale) in blocks.zip(scales.chunks_mut(quantization.scales())) {
                    encode(quantization.format, values, (codes, scale));
                }
            });
        }
        Self { quantization, shape, codes, scales }
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// How it is quantised.
    pub fn quantization(&self) -> Quantization {
        self.quantization
    }

    /// Bytes of codes and scales.
    pub fn bytes(&self) -> u64 {
        self.quantization.bytes(self.shape)
    }

    /// What the codes stand for, row-major.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape[0] * self.shape[1]];
        values.par_chunks_mut(self.shape[1].max(1)).with_min_len(ROWS).enumerate().for_each(|(row, values)| {
            self.read(row..row + 1, 0, values);
        });
        values
    }

    /// What the codes of some rows stand for, row-major.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Vec<f32> {
        let mut values = vec![0.0; rows.len() * self.shape[1]];
        self.read(rows, 0, &mut values);
        values
    }

    /// Writes `rows` from column `first` on to `out`, which has as many columns as fit it. `first` is where a block begins.
    pub(crate) fn read(&self, rows: Range<usize>, first: usize, out: &mut [f32]) {
        let Self { quantization, shape: [_, cols], .. } = *self;
        let (of_codes, of_scales) = (quantization.code_bytes(cols), quantization.scales() * quantization.blocks(cols));
        let size = quantization.block_size;
        debug_assert!(first.is_multiple_of(size), "column {first} is inside a block of {size}");
        let width = out.len() / rows.len().max(1);
        let skipped = (quantization.code_bytes(first), quantization.scales() * (first / size));
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            let codes = &self.codes[row * of_codes + skipped.0..(row + 1) * of_codes];
            let scales = &self.scales[row * of_scales + skipped.1..(row + 1) * of_scales];
            let codes = codes.chunks(quantization.code_bytes(size));
            match quantization.format {
                CodeFormat::Int8 => vectorised!({
                    for ((out, codes), scale) in out.chunks_mut(size).zip(codes).zip(scales) {
                        for (out, code) in out.iter_mut().zip(codes) {
                            *out = f32::from(code.cast_signed()) * scale;
                        }
                    }
                }),
                CodeFormat::Nf4 => {
                    let pairs = &*NF4_PAIRS;
                    for ((out, codes), scale) in out.chunks_mut(size).zip(codes).zip(scales) {
                        for (out, code) in out.chunks_mut(2).zip(codes) {
                            for (out, value) in out.iter_mut().zip(&pairs[usize::from(*code)]) {
                                *out = value * scale;
                            }
                        }
                    }
                }
                CodeFormat::Int4 => vectorised!({
                    for ((out, codes), scale) in out.chunks_mut(size).zip(codes).zip(scales.as_chunks::<2>().0) {
                        for (out, code) in out.chunks_mut(2).zip(codes) {
                            for (out, code) in out.iter_mut().zip([code & 15, code >> 4]) {
                                *out = f32::from(code) * scale[0] + scale[1];
                            }
                        }
                    }
                }),
            }
        }
    }
}

/// Writes the codes of a block, and its scale or scales.
fn encode(format: CodeFormat, values: &[f32], (codes, scales): (&mut [u8], &mut [f32])) {
    let mut largest = 0.0_f32;
    for value in values {
        // Not a number stays so.
        largest = if value.abs() > largest || value.is_nan() { value.abs() } else { largest };
    }
    match format {
        CodeFormat::Int8 => {
            let scale = largest / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            for (code, value) in codes.iter_mut().zip(values) {
                *code = ((value * inverse).round_ties_even() as i8).cast_unsigned();
            }
            scales[0] = scale;
        }
        CodeFormat::Nf4 => {
            let inverse = if largest > 0.0 { 1.0 / largest } else { 0.0 };
            let borders = &*NF4_BORDERS;
            let code = |value: &f32| borders.iter().map(|border| u8::from(value * inverse > *border)).sum::<u8>();
            for (byte, pair) in codes.iter_mut().zip(values.chunks(2)) {
                *byte = code(&pair[0]) | pair.get(1).map_or(0, code) << 4;
            }
            scales[0] = largest;
        }
        CodeFormat::Int4 if !largest.is_finite() => scales.fill(f32::NAN),
        CodeFormat::Int4 => {
            let least = values.iter().copied().fold(f32::INFINITY, f32::min);
            let scale = (values.iter().copied().fold(f32::NEG_INFINITY, f32::max) - least) / 15.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            let code = |value: &f32| ((value - least) * inverse).round_ties_even() as u8;
            for (byte, pair) in codes.iter_mut().zip(values.chunks(2)) {
                *byte = code(&pair[0]).min(15) | pair.get(1).map_or(0, |value| code(value).min(15)) << 4;
            }
            scales.copy_from_slice(&[scale, least]);
        }
    }
}
