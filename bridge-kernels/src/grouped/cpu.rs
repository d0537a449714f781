//! Products of the rows of each expert with the expert's matrix, on slices.
//!
//! Each expert's product is cut like any other, and those of different experts run beside each other. A sum is that of a product by itself.

use rayon::prelude::*;

use crate::cpu::buffer::filled;
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm};
use crate::linear::cpu::{begin, column_sums, grad_weight};

/// Experts that have rows, with these.
fn busy<T>(rows: Vec<T>, counts: &[usize]) -> Vec<(usize, T)> {
    rows.into_iter().enumerate().filter(|(expert, _)| counts[*expert] > 0).collect()
}

/// Cuts `values`, rows of `width`, by experts.
fn parts<'a>(mut values: &'a [f32], counts: &[usize], width: usize) -> Vec<&'a [f32]> {
    let cut = |count: &usize| values.split_off(..count * width).expect("as many rows as the experts have");
    counts.iter().map(cut).collect()
}

/// As [`parts`], to be written.
fn parts_mut<'a>(mut values: &'a mut [f32], counts: &[usize], width: usize) -> Vec<&'a mut [f32]> {
    let cut = |count: &usize| values.split_off_mut(..count * width).expect("as many rows as the experts have");
    counts.iter().map(cut).collect()
}

/// `x [m, i]` times each expert's weight `[o, i]` transposed, plus its bias `[o]`, if there is one: `[m, o]`.
pub fn forward(x: &[f32], counts: &[usize], weights: &[Matrix<'_>], biases: &[&[f32]]) -> Vec<f32> {
    let (outputs, inputs) = (weights[0].rows(), weights[0].cols());
    filled(counts.iter().sum::<usize>() * outputs, |y| {
        let rows = parts_mut(y, counts, outputs).into_iter().zip(parts(x, counts, inputs)).collect();
        busy(rows, counts).into_par_iter().with_max_len(1).for_each(|(expert, (y, x))| {
            let count = counts[expert];
            let output = begin(y, outputs, biases.get(expert).copied(), None);
            let x = Matrix::new(x, count, inputs);
            gemm(MatrixMut::new(y, count, outputs), output, 1.0, x, weights[expert].t(), Threads::All);
        });
    })
}

/// The gradient of the input: `dy [m, o]` times each expert's weight `[o, i]`.
pub fn grad_input(dy: &[f32], counts: &[usize], weights: &[Matrix<'_>]) -> Vec<f32> {
    let (outputs, inputs) = (weights[0].rows(), weights[0].cols());
    filled(counts.iter().sum::<usize>() * inputs, |dx| {
        let rows = parts_mut(dx, counts, inputs).into_iter().zip(parts(dy, counts, outputs)).collect();
        busy(rows, counts).into_par_iter().with_max_len(1).for_each(|(expert, (dx, dy))| {
            let count = counts[expert];
            let dy = Matrix::new(dy, count, outputs);
            gemm(MatrixMut::new(dx, count, inputs), Output::Set, 1.0, dy, weights[expert], Threads::All);
        });
    })
}

/// The gradients of the weights, `[o, i]` each, of those that are wanted: each expert's `dy` transposed times its `x`.
pub fn grad_weights(
    (dy, x): (&[f32], &[f32]),
    counts: &[usize],
    [outputs, inputs]: [usize; 2],
    wanted: &[bool],
) -> Vec<Option<Vec<f32>>> {
    let rows = parts(dy, counts, outputs).into_par_iter().zip(parts(x, counts, inputs)).enumerate();
    let of_expert = |(expert, (dy, x)): (usize, (&[f32], &[f32]))| {
        let count = counts[expert];
        wanted[expert].then(|| match count {
            0 => vec![0.0; outputs * inputs],
            _ => grad_weight(Matrix::new(dy, count, outputs), Matrix::new(x, count, inputs)),
        })
    };
    rows.with_max_len(1).map(of_expert).collect()
}

/// The gradients of the biases, `[o]` each.
pub fn grad_biases(dy: &[f32], counts: &[usize], outputs: usize) -> Vec<Vec<f32>> {
    parts(dy, counts, outputs).into_par_iter().map(|dy| column_sums(dy, outputs)).collect()
}
