//! Output projection and cross-entropy in chunks of tokens: the logits of one chunk are all that
//! exists.

use std::ops::Range;

use rayon::prelude::*;

use super::accuracy::TokenAccuracy;
use super::chunks::chunk_rows;
use super::options::CrossEntropyOptions;
use crate::activation::cpu::softcap_in_place;
use crate::cpu::buffer::filled;
use crate::cpu::element::Element;
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use crate::cpu::simd::{exp_in_place, exp_or_zero, max, sum_map, vectorised};
use crate::quantized::{QuantizedMatrix, cpu as quantized};

/// The output projection `[v, c]`.
#[derive(Clone, Copy)]
pub enum Projection<'a, E = f32> {
    /// A matrix.
    Whole(Matrix<'a, E>),
    /// Held quantised, without a gradient: for float32 only.
    Quantized(&'a QuantizedMatrix),
}

impl<E: Element> Projection<'_, E> {
    /// Rows: the vocabulary.
    pub fn rows(self) -> usize {
        match self {
            Self::Whole(weight) => weight.rows(),
            Self::Quantized(weight) => weight.shape()[0],
        }
    }

    /// `[n, v]` of `x [n, c]`.
    fn logits(self, x: Matrix<'_, E>, logits: &mut [f32]) {
        match self {
            Self::Whole(weight) => {
                let out = MatrixMut::new(logits, x.rows(), weight.rows());
                gemm(out, Output::Set, 1.0, x, weight.t(), Threads::All);
            }
            Self::Quantized(weight) => {
                let x = x.wide().expect("a quantized projection multiplies float32");
                quantized::product(logits, Output::Set, x, weight);
            }
        }
    }

    /// The gradient of `x`, `[n, c]`, from that of the logits.
    fn grad_x(self, grad_logits: Matrix<'_>, out: &mut [f32]) {
        match self {
            Self::Whole(weight) => {
                let out = MatrixMut::new(out, grad_logits.rows(), weight.cols());
                gemm(out, Output::Set, 1.0, grad_logits, weight, Threads::All);
            }
            Self::Quantized(weight) => quantized::write_grad_input(out, grad_logits, weight),
        }
    }
}

/// Inputs of the loss.
#[derive(Clone, Copy)]
pub struct Problem<'a, E = f32> {
    /// `[n, c]`.
    pub x: Matrix<'a, E>,
    /// `[v, c]`.
    pub weight: Projection<'a, E>,
    /// `[v]`, added to the logits.
    pub bias: Option<&'a [f32]>,
    /// `[n]`, each below `v`.
    pub targets: &'a [usize],
    /// `[n]`.
    pub mask: &'a [f32],
    /// Soft cap and z-loss.
    pub options: CrossEntropyOptions,
    /// Counts tokens, on one rank with the whole vocabulary.
    pub accuracy: Option<&'a TokenAccuracy>,
}

/// Gradients to compute with the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedGradients {
    /// Gradient of the hidden states.
    pub x: bool,
    /// Gradient of the projection.
    pub weight: bool,
    /// Gradient of the bias.
    pub bias: bool,
}

impl WantedGradients {
    fn any(self) -> bool {
        self.x || self.weight || self.bias
    }
}

/// The loss, and its gradients for an upstream gradient of one.
pub struct LossAndGradients {
    /// Sum of the masked losses.
    pub loss: f64,
    /// `[n, c]`, if wanted.
    pub x: Option<Vec<f32>>,
    /// `[v, c]`, if wanted.
    pub weight: Option<Vec<f32>>,
    /// `[v]`, if wanted.
    pub bias: Option<Vec<f32>>,
}

/// Sum over tokens of the masked loss, with gradients.
pub fn solve<E: Element>(problem: Problem<'_, E>, wanted: WantedGradients) -> LossAndGradients {
    let v = problem.weight.rows();
    in_chunks(problem, wanted, |range, logits, losses| {
        let (targets, mask) = (&problem.targets[range.clone()], &problem.mask[range]);
        logits.par_chunks_mut(v.max(1)).zip(losses.par_iter_mut()).enumerate().for_each(|(i, (row, loss))| {
            let (row_loss, is_right) = vectorised!(row_loss(row, targets[i], mask[i], problem.options, wanted));
            *loss = row_loss;
            if let Some(accuracy) = problem.accuracy.filter(|_| mask[i] != 0.0) {
                accuracy.add(is_right);
            }
        });
    })
}

/// Takes the tokens in chunks. `chunk` is given the tokens' range, their logits, `[count, v]`, and
/// a place for the loss of each; it fills those, and turns the logits into their gradients.
pub fn in_chunks<E: Element>(
    problem: Problem<'_, E>,
    wanted: WantedGradients,
    mut chunk: impl FnMut(Range<usize>, &mut [f32], &mut [f64]),
) -> LossAndGradients {
    let (n, c, v) = (problem.x.rows(), problem.x.cols(), problem.weight.rows());
    let rows = chunk_rows(n, v);
    let mut logits = filled(rows * v, |_| {});
    let mut losses = vec![0.0_f64; n];
    let mut grad_x = wanted.x.then(|| vec![0.0; n * c]);
    let mut grad_weight = wanted.weight.then(|| match n {
        0 => vec![0.0; v * c],
        // The first chunk overwrites all of it.
        _ => filled(v * c, |_| {}),
    });
    let mut grad_bias = wanted.bias.then(|| vec![0.0; v]);
    for start in (0..n).step_by(rows) {
        let count = rows.min(n - start);
        let logits = &mut logits[..count * v];
        let x = problem.x.row_range(start, count);
        problem.weight.logits(x, logits);
        if let Some(bias) = problem.bias {
            logits.par_chunks_mut(v.max(1)).for_each(|row| row.iter_mut().zip(bias).for_each(|(l, b)| *l += b));
        }
        chunk(start..start + count, logits, &mut losses[start..start + count]);
        if let Some(grad_bias) = &mut grad_bias {
            add_column_sums(grad_bias, logits);
        }
        let grad_logits = Matrix::new(logits, count, v);
        if let Some(grad_x) = &mut grad_x {
            problem.weight.grad_x(grad_logits, &mut grad_x[start * c..(start + count) * c]);
        }
        if let Some(grad_weight) = &mut grad_weight {
            let output = if start == 0 { Output::Set } else { Output::Add };
            gemm(MatrixMut::new(grad_weight, v, c), output, 1.0, grad_logits.t(), x, Threads::All);
        }
    }
    LossAndGradients { loss: losses.iter().sum(), x: grad_x, weight: grad_weight, bias: grad_bias }
}

/// Adds the sums of the columns of `values`, rows of which are as long as `sums`. Each sum has a
/// fixed order, on any number of threads.
fn add_column_sums(sums: &mut [f32], values: &[f32]) {
    const COLUMNS: usize = 1 << 10;
    let v = sums.len();
    sums.par_chunks_mut(COLUMNS).enumerate().for_each(|(chunk, sums)| {
        for row in values.chunks_exact(v) {
            let part = &row[chunk * COLUMNS..][..sums.len()];
            sums.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
        }
    });
}

/// Loss of one token, and if its label has the largest logit; its logits become their gradients if
/// any gradient is wanted.
#[inline(always)]
fn row_loss(
    logits: &mut [f32],
    target: usize,
    mask: f32,
    options: CrossEntropyOptions,
    wanted: WantedGradients,
) -> (f64, bool) {
    let gradients = wanted.any();
    if mask == 0.0 {
        // A token that does not count may hold anything, infinities included.
        if gradients {
            logits.fill(0.0);
        }
        return (0.0, false);
    }
    match options.softcap {
        None => plain_row(logits, target, mask, options.z_loss),
        Some(cap) => capped_row(logits, target, mask, cap as f32, options.z_loss),
    }
}

/// `log sum exp` of a row in float64, leaving exponentials in the row; also returns their sum and
/// the largest logit.
#[inline(always)]
fn exponentials(row: &mut [f32]) -> (f64, f32, f32) {
    let top = max(row);
    let sum = exp_in_place(row, top);
    (f64::from(top) + f64::from(sum).ln(), sum, top)
}

/// Loss of a token with log-partition `log_z`, and the factor that turns probabilities into
/// gradients.
#[inline(always)]
pub fn token_loss(log_z: f64, target_logit: f32, mask: f32, z_loss: Option<f64>) -> (f64, f32) {
    let weight = z_loss.unwrap_or(0.0);
    let loss = log_z - f64::from(target_logit) + weight * log_z * log_z;
    (loss * f64::from(mask), (f64::from(mask) * (1.0 + 2.0 * weight * log_z)) as f32)
}

#[inline(always)]
fn plain_row(logits: &mut [f32], target: usize, mask: f32, z_loss: Option<f64>) -> (f64, bool) {
    let target_logit = logits[target];
    let (log_z, sum, top) = exponentials(logits);
    let (loss, factor) = token_loss(log_z, target_logit, mask, z_loss);
    let factor = factor / sum;
    logits.iter_mut().for_each(|p| *p *= factor);
    logits[target] -= mask;
    (loss, target_logit >= top)
}

#[inline(always)]
fn capped_row(logits: &mut [f32], target: usize, mask: f32, cap: f32, z_loss: Option<f64>) -> (f64, bool) {
    softcap_in_place(logits, cap);
    let target_logit = logits[target];
    let top = max(logits);
    // The capped logits are needed again for the slope of the cap, so exponentials are formed
    // twice.
    let sum = sum_map(logits, |l| exp_or_zero(l - top));
    let (loss, factor) = token_loss(f64::from(top) + f64::from(sum).ln(), target_logit, mask, z_loss);
    let (factor, inverse) = (factor / sum, 1.0 / cap);
    let slope = |l: f32| 1.0 - (l * inverse) * (l * inverse);
    let at_target = (exp_or_zero(target_logit - top) * factor - mask) * slope(target_logit);
    logits.iter_mut().for_each(|l| *l = exp_or_zero(*l - top) * factor * slope(*l));
    logits[target] = at_target;
    (loss, target_logit >= top)
}
