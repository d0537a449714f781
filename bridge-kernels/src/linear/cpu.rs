//! Linear layer: `y = x w^T + bias` and its three gradients.

use rayon::prelude::*;

use crate::cpu::bf16::{self, Factors};
use crate::cpu::buffer::filled;
use crate::cpu::element::Element;
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm, multiplied};
use crate::cpu::simd::vectorised;

/// Rows that one task fills with the bias, at least.
const BIAS_ROWS: usize = 16;

/// `x [n, i]` times `weight [o, i]` transposed, plus `bias [o]`, plus `residual [n, o]`: `[n, o]`.
pub fn forward<E: Element>(
    x: Matrix<'_, E>,
    weight: Matrix<'_, E>,
    bias: Option<&[f32]>,
    residual: Option<&[E]>,
) -> Vec<E> {
    let (rows, outputs) = (x.rows(), weight.rows());
    filled(rows * outputs, |y| match (x.wide(), weight.wide()) {
        (Some(x), Some(weight)) => {
            let y = bytemuck::cast_slice_mut(y);
            let output = begin(y, outputs, bias, residual.map(bytemuck::cast_slice));
            gemm(MatrixMut::new(y, rows, outputs), output, 1.0, x, weight.t(), Threads::All);
        }
        _ => {
            let residual = residual.map(|x| Matrix::new(bytemuck::cast_slice(x), rows, outputs));
            let factors = Factors { bias, residual, ..Factors::new(x, weight.t()) };
            bf16::product(MatrixMut::new(y, rows, outputs), Output::Set, factors, Threads::All);
        }
    })
}

/// Fills `y [n, o]` with bias and residual, if any, to which the product is added.
pub fn begin(y: &mut [f32], outputs: usize, bias: Option<&[f32]>, residual: Option<&[f32]>) -> Output {
    // Adding the product to prefilled memory is cheaper than another pass over the result.
    let y_rows = y.par_chunks_exact_mut(outputs.max(1)).with_min_len(BIAS_ROWS);
    let residual_rows = residual.map(|residual| residual.par_chunks_exact(outputs.max(1)));
    match (bias, residual_rows) {
        (Some(bias), Some(residual)) => {
            y_rows.zip(residual).for_each(|(y, x)| {
                vectorised!(y.iter_mut().zip(x).zip(bias).for_each(|((y, x), b)| *y = x + b));
            });
            Output::Add
        }
        (Some(bias), None) => {
            y_rows.for_each(|row| row.copy_from_slice(bias));
            Output::Add
        }
        (None, Some(residual)) => {
            y_rows.zip(residual).for_each(|(y, x)| y.copy_from_slice(x));
            Output::Add
        }
        (None, None) => Output::Set,
    }
}

/// Gradient of the input: `dy [n, o]` times `weight [o, i]`.
pub fn grad_input<E: Element>(dy: Matrix<'_, E>, weight: Matrix<'_, E>) -> Vec<E> {
    multiplied(1.0, dy, weight, Threads::All)
}

/// Gradient of the weight: `dy [n, o]` transposed times `x [n, i]`.
pub fn grad_weight<E: Element>(dy: Matrix<'_, E>, x: Matrix<'_, E>) -> Vec<E> {
    multiplied(1.0, dy.t(), x, Threads::All)
}

/// Columns that one task adds up.
const COLUMNS: usize = 256;
/// Rows added in float32 before the sum moves to float64.
const ROWS: usize = 32;

/// Sums of the columns of `x [n, c]`: the gradient of a bias.
pub fn column_sums<E: Element>(x: &[E], columns: usize) -> Vec<f32> {
    let mut sums = vec![0.0; columns];
    if columns == 0 {
        return sums;
    }
    sums.par_chunks_mut(COLUMNS).enumerate().for_each(|(i, sums)| {
        let from = i * COLUMNS;
        let to = from + sums.len();
        vectorised!({
            let mut total = [0.0_f64; COLUMNS];
            for rows in x.chunks(ROWS * columns) {
                let mut partial = [0.0_f32; COLUMNS];
                for row in rows.chunks_exact(columns) {
                    partial.iter_mut().zip(&row[from..to]).for_each(|(p, v)| *p += v.wide());
                }
                total.iter_mut().zip(&partial).for_each(|(t, p)| *t += f64::from(*p));
            }
            sums.iter_mut().zip(&total).for_each(|(s, t)| *s = *t as f32);
        });
    });
    sums
}
