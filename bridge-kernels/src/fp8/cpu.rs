//! Casts to 8 bits, and float32 products of dequantized values: each product is what an 8-bit
//! matrix unit computes, up to the order of its sum.

use rayon::prelude::*;

use super::format::Fp8Format;
use super::rule::Share;
use crate::cpu::buffer::filled;
use crate::cpu::gemm::{Matrix, MatrixMut, Threads, gemm, multiplied};
use crate::cpu::simd::{larger_magnitude, vectorised};
use crate::linear::cpu::begin;

/// Elements that one task casts, at least.
const PIECE: usize = 16 * 1024;

/// A matrix in 8 bits.
pub(crate) struct Codes {
    format: Fp8Format,
    codes: Vec<u8>,
    /// Rows and columns.
    shape: [usize; 2],
    /// Rows and columns of the elements that share a scale.
    block: [usize; 2],
    /// Scale factors that turn decoded values into those of the matrix, block by block along rows.
    inverses: Vec<f32>,
    /// The largest magnitude of the matrix, where there is one scale for all.
    pub largest: Option<f32>,
}

/// Decoded values, without their scale factor.
pub(crate) struct Decoded {
    values: Vec<f32>,
    shape: [usize; 2],
    factor: f32,
}

impl Codes {
    /// Casts `x`, row-major.
    pub fn new(x: &[f32], shape: [usize; 2], format: Fp8Format, share: Share<f32>) -> Self {
        let [rows, columns] = shape;
        let (block, largest, scale) = match share {
            Share::Block(block) => (block, None, None),
            Share::Tensor(given) => {
                let largest = largest_magnitude(x);
                ([rows.max(1), columns.max(1)], Some(largest), Some(given.unwrap_or_else(|| format.scale(largest))))
            }
        };
        let mut codes = vec![0_u8; x.len()];
        let inverses = match scale {
            Some(scale) => {
                codes.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE)).for_each(|(codes, x)| {
                    vectorised!(codes.iter_mut().zip(x).for_each(|(code, x)| *code = cast(format, *x, scale)));
                });
                vec![1.0 / scale]
            }
            None => {
                let across = columns.div_ceil(block[1]);
                let mut inverses = vec![1.0; rows.div_ceil(block[0]) * across];
                let strip = (block[0] * columns).max(1);
                let strips = codes.par_chunks_mut(strip).zip(x.par_chunks(strip));
                let at_least = (PIECE / strip).max(1);
                strips
                    .zip(inverses.par_chunks_mut(across.max(1)))
                    .with_min_len(at_least)
                    .for_each(|((codes, x), inverses)| cast_strip(format, codes, x, columns, block[1], inverses));
                inverses
            }
        };
        Self { format, codes, shape, block, inverses, largest }
    }

    /// Decodes the codes.
    pub fn decode(&self) -> Decoded {
        let (values, [_, columns]) = (self.format.values(), self.shape);
        let is_whole = self.largest.is_some();
        let [block_rows, block_columns] = self.block;
        let across = columns.div_ceil(block_columns);
        let decoded = filled(self.codes.len(), |decoded: &mut [f32]| {
            if is_whole {
                let pieces = decoded.par_chunks_mut(PIECE).zip(self.codes.par_chunks(PIECE));
                pieces.for_each(|(decoded, codes)| {
                    decoded.iter_mut().zip(codes).for_each(|(value, code)| *value = values[usize::from(*code)]);
                });
                return;
            }
            let rows = decoded.par_chunks_mut(columns).zip(self.codes.par_chunks(columns)).enumerate();
            rows.with_min_len((PIECE / columns.max(1)).max(1)).for_each(|(row, (decoded, codes))| {
                let inverses = &self.inverses[row / block_rows * across..][..across];
                if block_columns == 1 {
                    let scaled = decoded.iter_mut().zip(codes).zip(inverses);
                    scaled.for_each(|((value, code), inverse)| *value = values[usize::from(*code)] * inverse);
                    return;
                }
                let blocks = decoded.chunks_mut(block_columns).zip(codes.chunks(block_columns)).zip(inverses);
                for ((decoded, codes), inverse) in blocks {
                    let scaled = decoded.iter_mut().zip(codes);
                    scaled.for_each(|(value, code)| *value = values[usize::from(*code)] * inverse);
                }
            });
        });
        Decoded { values: decoded, shape: self.shape, factor: if is_whole { self.inverses[0] } else { 1.0 } }
    }
}

impl Decoded {
    fn matrix(&self) -> Matrix<'_> {
        Matrix::new(&self.values, self.shape[0], self.shape[1])
    }
}

/// The code of `x` times a scale. Infinite values become NaN: if they were saturated, an overflow
/// would look like a valid value, and the step would not be skipped.
#[inline(always)]
pub(super) fn cast(format: Fp8Format, x: f32, scale: f32) -> u8 {
    format.code(if x.is_infinite() { f32::NAN } else { x * scale })
}

/// Casts the rows of one row of blocks, `columns` each, of which `width` share a scale.
fn cast_strip(format: Fp8Format, codes: &mut [u8], x: &[f32], columns: usize, width: usize, inverses: &mut [f32]) {
    let mut scales = vec![0.0_f32; inverses.len()];
    for row in x.chunks_exact(columns) {
        if width == 1 {
            vectorised!(scales.iter_mut().zip(row).for_each(|(largest, x)| *largest = larger_magnitude(*largest, *x)));
            continue;
        }
        for (largest, block) in scales.iter_mut().zip(row.chunks(width)) {
            *largest = block.iter().fold(*largest, |largest, x| larger_magnitude(largest, *x));
        }
    }
    for (scale, inverse) in scales.iter_mut().zip(inverses) {
        *scale = format.power_of_two_scale(*scale);
        *inverse = 1.0 / *scale;
    }
    for (codes, row) in codes.chunks_exact_mut(columns).zip(x.chunks_exact(columns)) {
        if width == 1 {
            let scaled = codes.iter_mut().zip(row).zip(&scales);
            vectorised!(scaled.for_each(|((code, x), scale)| *code = cast(format, *x, *scale)));
            continue;
        }
        for ((codes, row), scale) in codes.chunks_mut(width).zip(row.chunks(width)).zip(&scales) {
            vectorised!(codes.iter_mut().zip(row).for_each(|(code, x)| *code = cast(format, *x, *scale)));
        }
    }
}

/// The largest magnitude; NaN if one is.
pub(super) fn largest_magnitude(x: &[f32]) -> f32 {
    let of_piece = |x: &[f32]| {
        vectorised!({
            let mut lanes = [0.0_f32; 64];
            let (whole, rest) = x.as_chunks::<64>();
            for chunk in whole {
                lanes.iter_mut().zip(chunk).for_each(|(largest, x)| *largest = larger_magnitude(*largest, *x));
            }
            lanes.iter().chain(rest).fold(0.0, |largest, x| larger_magnitude(largest, *x))
        })
    };
    x.par_chunks(PIECE).map(of_piece).reduce(|| 0.0, larger_magnitude)
}

/// `x w^T + bias`, `[n, o]`.
pub(crate) fn forward(x: &Decoded, weight: &Decoded, bias: Option<&[f32]>) -> Vec<f32> {
    let (rows, outputs) = (x.shape[0], weight.shape[0]);
    filled(rows * outputs, |y| {
        let output = begin(y, outputs, bias, None);
        let factor = x.factor * weight.factor;
        gemm(MatrixMut::new(y, rows, outputs), output, factor, x.matrix(), weight.matrix().t(), Threads::All);
    })
}

/// `dy w`, `[n, i]`.
pub(crate) fn grad_input(dy: &Decoded, weight: &Decoded) -> Vec<f32> {
    multiplied(dy.factor * weight.factor, dy.matrix(), weight.matrix(), Threads::All)
}

/// `dy^T x`, `[o, i]`.
pub(crate) fn grad_weight(dy: &Decoded, x: &Decoded) -> Vec<f32> {
    multiplied(dy.factor * x.factor, dy.matrix().t(), x.matrix(), Threads::All)
}
