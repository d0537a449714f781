//! A matrix in codes and scales.

use std::ops::Range;

use rayon::prelude::*;

use super::encoding::encode;
use super::format::{CodeFormat, NF4_PAIRS, Quantization};
use super::scales::{INT4_UNIT, INT8_UNIT, Scales};
use crate::cpu::simd::vectorised;

/// Rows that one task takes.
const ROWS: usize = 16;

/// A matrix `[rows, cols]`, quantised as a [`Quantization`] says. It has no gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedMatrix {
    quantization: Quantization,
    shape: [usize; 2],
    /// Codes in row-major order.
    codes: Vec<u8>,
    /// Row by row, one a block, or two.
    scales: Scales,
}

impl QuantizedMatrix {
    /// The nearest codes for `values`, row-major. A block with a value that is not finite reads as
    /// NaN.
    ///
    /// Values that were quantized before keep their bits, as do values of files with float16 scales
    /// (GGUF's `Q4_1` with [`CodeFormat::Int4`], `Q8_0` with [`CodeFormat::Int8`]), if blocks are
    /// the same and reach the ends of the codes' range.
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
                    encode(quantization.format, values, codes, scale);
                }
            });
        }
        Self { quantization, shape, codes, scales: Scales::new(scales) }
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Quantization of the matrix.
    pub fn quantization(&self) -> Quantization {
        self.quantization
    }

    /// Bytes of codes and scales.
    pub fn bytes(&self) -> u64 {
        self.codes.len() as u64 + self.scales.bytes()
    }

    /// Dequantized values, row-major.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.shape[0] * self.shape[1]];
        values.par_chunks_mut(self.shape[1].max(1)).with_min_len(ROWS).enumerate().for_each(|(row, values)| {
            self.read(row..row + 1, 0, values);
        });
        values
    }

    /// Dequantized values of some rows, row-major.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Vec<f32> {
        let mut values = vec![0.0; rows.len() * self.shape[1]];
        self.read(rows, 0, &mut values);
        values
    }

    /// Writes `rows` from column `first` on to `out`, which has as many columns as fit it. `first`
    /// is where a block begins.
    pub(crate) fn read(&self, rows: Range<usize>, first: usize, out: &mut [f32]) {
        let Self { quantization, shape: [_, cols], .. } = *self;
        let (of_codes, of_scales) = (quantization.code_bytes(cols), quantization.scales() * quantization.blocks(cols));
        let size = quantization.block_size;
        debug_assert!(first.is_multiple_of(size), "column {first} is inside a block of {size}");
        let width = out.len() / rows.len().max(1);
        let skipped = (quantization.code_bytes(first), quantization.scales() * (first / size));
        let mut widened = Vec::new();
        for (row, out) in rows.zip(out.chunks_exact_mut(width.max(1))) {
            let codes = &self.codes[row * of_codes + skipped.0..(row + 1) * of_codes];
            let start = row * of_scales + skipped.1;
            let scales = self.scales.read(start..start + quantization.scales() * width.div_ceil(size), &mut widened);
            let codes = codes.chunks(quantization.code_bytes(size));
            match quantization.format {
                CodeFormat::Int8 => vectorised!({
                    for ((out, codes), scale) in out.chunks_mut(size).zip(codes).zip(scales) {
                        let scale = scale * INT8_UNIT;
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
                        let (scale, least) = (scale[0] * INT4_UNIT, scale[1]);
                        for (out, code) in out.chunks_mut(2).zip(codes) {
                            for (out, code) in out.iter_mut().zip([code & 15, code >> 4]) {
                                *out = f32::from(code) * scale + least;
                            }
                        }
                    }
                }),
            }
        }
    }
}
