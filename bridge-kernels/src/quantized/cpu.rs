//! Products with a quantised weight. Each thread dequantizes one tile at a time; the tiling depends
//! only on the shape.

use rayon::prelude::*;

use super::matrix::QuantizedMatrix;
use crate::cpu::buffer::{Shared, filled};
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use crate::linear::cpu::begin;

/// Rows, or columns, of a tile. It is large enough that the other operand of a product is read only
/// a few times.
const TILE: usize = 128;
/// Most rows of a tile for the gradient of the input: those of a vocabulary are taken in parts.
const TALLEST: usize = 4096;

/// `x [n, i]` times `weight [o, i]` transposed, plus `bias [o]`, plus `residual [n, o]`: `[n, o]`.
pub fn forward(x: Matrix<'_>, weight: &QuantizedMatrix, bias: Option<&[f32]>, residual: Option<&[f32]>) -> Vec<f32> {
    let (rows, [outputs, _]) = (x.rows(), weight.shape());
    filled(rows * outputs, |y| {
        let output = begin(y, outputs, bias, residual);
        product(y, output, x, weight);
    })
}

/// Writes `x [n, i]` times `weight [o, i]` transposed to `y [n, o]`, or adds it.
pub fn product(y: &mut [f32], output: Output, x: Matrix<'_>, weight: &QuantizedMatrix) {
    let (rows, [outputs, inputs]) = (x.rows(), weight.shape());
    if rows == 0 {
        return;
    }
    let y = Shared::new(y);
    (0..outputs.div_ceil(TILE)).into_par_iter().with_max_len(1).for_each(|tile| {
        let first = tile * TILE;
        let count = TILE.min(outputs - first);
        let mut weight_ti = vec![0.0; count * inputs];
        weight.read(first..first + count, 0, &mut weight_ti);
        // SAFETY: no output is in two tiles.
        let out = unsafe { MatrixMut::shared(y, first, rows, count, outputs) };
        gemm(out, output, 1.0, x, Matrix::new(&weight_ti, count, inputs).t(), Threads::One);
    });
}

/// Gradient of the input: `dy [n, o]` times `weight [o, i]`.
pub fn grad_input(dy: Matrix<'_>, weight: &QuantizedMatrix) -> Vec<f32> {
    filled(dy.rows() * weight.shape()[1], |dx| write_grad_input(dx, dy, weight))
}

/// Writes the gradient of the input to `dx [n, i]`, see [`grad_input`].
pub fn write_grad_input(dx: &mut [f32], dy: Matrix<'_>, weight: &QuantizedMatrix) {
    let (rows, [outputs, inputs]) = (dy.rows(), weight.shape());
    if rows == 0 {
        return;
    }
    if outputs == 0 {
        dx.fill(0.0);
        return;
    }
    let block_size = weight.quantization().block_size;
    let width = block_size * TILE.div_ceil(block_size);
    let dx = Shared::new(dx);
    (0..inputs.div_ceil(width)).into_par_iter().with_max_len(1).for_each(|tile| {
        let first = tile * width;
        let count = width.min(inputs - first);
        let mut weight_ot = vec![0.0; outputs.min(TALLEST) * count];
        for top in (0..outputs).step_by(TALLEST) {
            let height = TALLEST.min(outputs - top);
            let weight_ot = &mut weight_ot[..height * count];
            weight.read(top..top + height, first, weight_ot);
            let output = if top == 0 { Output::Set } else { Output::Add };
            // SAFETY: no input is in two tiles, and the parts of one follow each other.
            let out = unsafe { MatrixMut::shared(dx, first, rows, count, inputs) };
            gemm(out, output, 1.0, dy.col_range(top, height), Matrix::new(weight_ot, height, count), Threads::One);
        }
    });
}
