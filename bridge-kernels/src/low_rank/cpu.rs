//! Low-rank branches of a linear layer: their output and its gradients.
//!
//! Branches lie side by side: `a` `[R, i]` has the rows of all branches, `u = scale * x a^T` `[n,
//! R]` their columns. Work is divided by shape only.

use std::ops::Range;

use rayon::prelude::*;

use super::Run;
use crate::cpu::buffer::{Shared, filled};
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm, multiplied};
use crate::cpu::simd::{LANES, vectorised};
use crate::linear::cpu::column_sums;

/// Rows of input that one task takes.
const ROWS: usize = 128;
/// Rows of a weight that one task takes.
const WEIGHT_ROWS: usize = 64;

/// The branches of a layer.
pub struct Branches<'a> {
    /// `[R, i]`.
    pub a: &'a [f32],
    pub inputs: usize,
    /// Matrix `b` of each branch, `[p, r]`.
    pub b: Vec<Matrix<'a>>,
    /// Columns of `u` that belong to each branch.
    pub columns: &'a [Range<usize>],
    /// Scale of each branch.
    pub scales: &'a [f32],
    pub runs: &'a [Run],
}

impl<'a> Branches<'a> {
    fn rank(&self) -> usize {
        self.columns.last().map_or(0, |columns| columns.end)
    }

    fn a(&self) -> Matrix<'a> {
        Matrix::new(self.a, self.rank(), self.inputs)
    }

    fn b_of(&self, run: &Run) -> Matrix<'a> {
        self.b[run.branch].row_range(run.row, run.len)
    }

    fn scale(&self, u: &mut [f32]) {
        let rank = self.rank();
        for row in u.chunks_exact_mut(rank.max(1)) {
            for (columns, scale) in self.columns.iter().zip(self.scales) {
                row[columns.clone()].iter_mut().for_each(|value| *value *= scale);
            }
        }
    }

    /// `scale * x a^T`, `[n, R]`.
    pub fn inner(&self, x: Matrix<'_>) -> Vec<f32> {
        let mut u = multiplied(1.0, x, self.a().t(), Threads::All);
        self.scale(&mut u);
        u
    }

    /// Adds `u b^T` to the outputs of the branches, `y` `[n, o]`.
    pub fn add(&self, u: &[f32], y: &mut [f32], outputs: usize) {
        let rank = self.rank();
        if rank == 0 || outputs == 0 {
            return;
        }
        y.par_chunks_mut(ROWS * outputs).zip(u.par_chunks(ROWS * rank)).for_each(|(y, u)| {
            let rows = y.len() / outputs;
            let (y, u) = (Shared::new(y), Matrix::new(u, rows, rank));
            for run in self.runs {
                let columns = &self.columns[run.branch];
                // SAFETY: the task has these rows of `y`, and runs are done one after the other.
                let out = unsafe { MatrixMut::shared(y, run.output, rows, run.len, outputs) };
                let u = u.col_range(columns.start, columns.len());
                gemm(out, Output::Add, 1.0, u, self.b_of(run).t(), Threads::One);
            }
        });
    }

    /// The gradient of `x a^T`, `[n, R]`, from that of the sum, `[n, o]`.
    pub fn grad_inner(&self, dz: &[f32], outputs: usize) -> Vec<f32> {
        let (rank, rows) = (self.rank(), dz.len() / outputs.max(1));
        let mut du = vec![0.0; rows * rank];
        if rank == 0 || outputs == 0 {
            return du;
        }
        du.par_chunks_mut(ROWS * rank).zip(dz.par_chunks(ROWS * outputs)).for_each(|(du, dz)| {
            let rows = dz.len() / outputs;
            let (du, dz) = (Shared::new(du), Matrix::new(dz, rows, outputs));
            for run in self.runs {
                let columns = &self.columns[run.branch];
                // SAFETY: the task has these rows of `du`, and runs are done one after the other.
                let out = unsafe { MatrixMut::shared(du, columns.start, rows, columns.len(), rank) };
                gemm(out, Output::Add, 1.0, dz.col_range(run.output, run.len), self.b_of(run), Threads::One);
            }
        });
        self.scale(&mut du);
        du
    }

    /// Adds `du a` to the gradient of the input, `[n, i]`.
    pub fn add_grad_input(&self, du: &[f32], dx: &mut [f32]) {
        let rows = dx.len() / self.inputs.max(1);
        let out = MatrixMut::new(dx, rows, self.inputs);
        gemm(out, Output::Add, 1.0, Matrix::new(du, rows, self.rank()), self.a(), Threads::All);
    }

    /// The gradient of all `a`, `[R, i]`.
    pub fn grad_a(&self, du: &[f32], x: Matrix<'_>) -> Vec<f32> {
        multiplied(1.0, Matrix::new(du, x.rows(), self.rank()).t(), x, Threads::All)
    }

    /// The gradient of each `b`, `[p, r]`.
    pub fn grad_b(&self, dz: &[f32], outputs: usize, u: &[f32]) -> Vec<Vec<f32>> {
        let (rank, rows) = (self.rank(), dz.len() / outputs.max(1));
        let (dz, u) = (Matrix::new(dz, rows, outputs), Matrix::new(u, rows, rank));
        let width = |branch: usize| self.columns[branch].len();
        let mut all: Vec<Vec<f32>> = self.b.iter().map(|b| vec![0.0; b.rows() * b.cols()]).collect();
        let shared: Vec<Shared<'_>> = all.iter_mut().map(|values| Shared::new(values)).collect();
        self.pieces().into_par_iter().for_each(|(run, start, len)| {
            let width = width(run.branch);
            // SAFETY: no row of `b` is in two pieces.
            let out = unsafe { MatrixMut::shared(shared[run.branch], (run.row + start) * width, len, width, width) };
            let u = u.col_range(self.columns[run.branch].start, width);
            gemm(out, Output::Set, 1.0, dz.col_range(run.output + start, len).t(), u, Threads::One);
        });
        all
    }

    /// The squares of the lengths of the rows of `weight + scale * b a`, `weight` `[o, i]`, for
    /// rows with a branch; all others are zero. `weight(first, count)` returns rows of the weight.
    pub fn row_squares(&self, outputs: usize, weight: impl Fn(usize, usize) -> Vec<f32> + Sync) -> Vec<f32> {
        let inputs = self.inputs.max(1);
        let mut squares = vec![0.0; outputs];
        let shared = Shared::new(&mut squares);
        self.pieces().into_par_iter().for_each(|(run, start, len)| {
            let columns = &self.columns[run.branch];
            let first = run.output + start;
            let mut rows = weight(first, len);
            let b = self.b[run.branch].row_range(run.row + start, len);
            let a = self.a().row_range(columns.start, columns.len());
            let scale = self.scales[run.branch];
            gemm(MatrixMut::new(&mut rows, len, inputs), Output::Add, scale, b, a, Threads::One);
            // SAFETY: no output is in two pieces.
            let squares = unsafe { shared.part(first, len) };
            for (square, row) in squares.iter_mut().zip(rows.chunks_exact(inputs)) {
                *square = squared_length(row);
            }
        });
        squares
    }

    /// The runs, in pieces of so few outputs that several tasks have some: the run, its first
    /// output, their number.
    fn pieces(&self) -> Vec<(Run, usize, usize)> {
        let of_run = |run: &Run| {
            let run = *run;
            (0..run.len).step_by(WEIGHT_ROWS).map(move |start| (run, start, WEIGHT_ROWS.min(run.len - start)))
        };
        self.runs.iter().flat_map(of_run).collect()
    }
}

/// The sum of squares: of sixteen at a time in float32, of those in float64.
fn squared_length(row: &[f32]) -> f32 {
    let mut total = 0.0_f64;
    for part in row.chunks(16 * LANES) {
        let mut lanes = [0.0_f32; LANES];
        vectorised!({
            for values in part.chunks(LANES) {
                lanes.iter_mut().zip(values).for_each(|(sum, w)| *sum += w * w);
            }
        });
        total += lanes.iter().map(|sum| f64::from(*sum)).sum::<f64>();
    }
    total as f32
}

/// `residual + factors * z + bias` of rows `z` `[n, o]`.
pub fn scaled(z: &[f32], factors: &[f32], bias: Option<&[f32]>, residual: Option<&[f32]>) -> Vec<f32> {
    let outputs = factors.len().max(1);
    filled(z.len(), |y| {
        y.par_chunks_mut(ROWS * outputs).enumerate().for_each(|(chunk, rows)| {
            let from = chunk * ROWS * outputs;
            vectorised!({
                for (index, row) in rows.chunks_exact_mut(outputs).enumerate() {
                    let at = from + index * outputs;
                    let z = &z[at..at + outputs];
                    row.iter_mut().zip(z).zip(factors).for_each(|((y, z), f)| *y = z * f);
                    if let Some(bias) = bias {
                        row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                    }
                    if let Some(residual) = residual {
                        row.iter_mut().zip(&residual[at..at + outputs]).for_each(|(y, x)| *y += x);
                    }
                }
            });
        });
    })
}

/// Sum over rows of the products of each column of `dy` `[n, o]` with that of `y`.
pub fn column_products(dy: &[f32], y: &[f32], outputs: usize) -> Vec<f32> {
    let products = filled(dy.len(), |products| {
        products.par_chunks_mut(ROWS * outputs.max(1)).enumerate().for_each(|(chunk, out)| {
            let from = chunk * ROWS * outputs;
            let (dy, y) = (&dy[from..from + out.len()], &y[from..from + out.len()]);
            vectorised!(out.iter_mut().zip(dy).zip(y).for_each(|((p, a), b)| *p = a * b));
        });
    });
    column_sums(&products, outputs)
}
