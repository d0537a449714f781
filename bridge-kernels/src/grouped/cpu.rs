//! Products of the rows of each expert with the expert's matrix, on slices.
//!
//! Products of different experts run in parallel, each on one thread, so that its operands are
//! packed once; the last products are split, so that threads end together. Each sum has the same
//! order as in a single product.

use std::cmp::Reverse;

use rayon::prelude::*;

use crate::cpu::buffer::filled;
use crate::cpu::gemm::{Matrix, MatrixMut, Output, Threads, gemm, multiplied};
use crate::linear::cpu::{begin, column_sums};

/// Calls `f` with each expert that has rows, the expert's item, and the threads of its product;
/// experts with many rows come first.
fn each_busy<T: Send>(items: Vec<T>, counts: &[usize], f: impl Fn(usize, T, Threads) + Sync) {
    let items = items.into_iter().enumerate();
    let mut busy: Vec<(usize, T)> = items.filter(|(expert, _)| counts[*expert] > 0).collect();
    busy.sort_by_key(|(expert, _)| Reverse(counts[*expert]));
    let whole = busy.len().saturating_sub(rayon::current_num_threads());
    rayon::in_place_scope_fifo(|scope| {
        for (place, (expert, item)) in busy.into_iter().enumerate() {
            let (f, threads) = (&f, if place < whole { Threads::One } else { Threads::All });
            scope.spawn_fifo(move |_| f(expert, item, threads));
        }
    });
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

/// `x [m, i]` times each expert's weight `[o, i]` transposed, plus its bias `[o]`, if there is one:
/// `[m, o]`.
pub fn forward(x: &[f32], counts: &[usize], weights: &[Matrix<'_>], biases: &[&[f32]]) -> Vec<f32> {
    let (outputs, inputs) = (weights[0].rows(), weights[0].cols());
    filled(counts.iter().sum::<usize>() * outputs, |y| {
        let rows = parts_mut(y, counts, outputs).into_iter().zip(parts(x, counts, inputs)).collect();
        each_busy(rows, counts, |expert, (y, x): (&mut [f32], &[f32]), threads| {
            let count = counts[expert];
            let output = begin(y, outputs, biases.get(expert).copied(), None);
            let x = Matrix::new(x, count, inputs);
            gemm(MatrixMut::new(y, count, outputs), output, 1.0, x, weights[expert].t(), threads);
        });
    })
}

/// The gradient of the input: `dy [m, o]` times each expert's weight `[o, i]`.
pub fn grad_input(dy: &[f32], counts: &[usize], weights: &[Matrix<'_>]) -> Vec<f32> {
    let (outputs, inputs) = (weights[0].rows(), weights[0].cols());
    filled(counts.iter().sum::<usize>() * inputs, |dx| {
        let rows = parts_mut(dx, counts, inputs).into_iter().zip(parts(dy, counts, outputs)).collect();
        each_busy(rows, counts, |expert, (dx, dy): (&mut [f32], &[f32]), threads| {
            let count = counts[expert];
            let dy = Matrix::new(dy, count, outputs);
            gemm(MatrixMut::new(dx, count, inputs), Output::Set, 1.0, dy, weights[expert], threads);
        });
    })
}

/// The gradients of the weights, `[o, i]` each, of those that are wanted: each expert's `dy`
/// transposed times its `x`.
pub fn grad_weights(
    dy: &[f32],
    x: &[f32],
    counts: &[usize],
    [outputs, inputs]: [usize; 2],
    wanted: &[bool],
) -> Vec<Option<Vec<f32>>> {
    let of = |expert: usize| (wanted[expert] && counts[expert] == 0).then(|| vec![0.0; outputs * inputs]);
    let mut gradients: Vec<Option<Vec<f32>>> = (0..counts.len()).map(of).collect();
    let rows = parts(dy, counts, outputs).into_iter().zip(parts(x, counts, inputs)).zip(&mut gradients).collect();
    type Item<'a> = ((&'a [f32], &'a [f32]), &'a mut Option<Vec<f32>>);
    each_busy(rows, counts, |expert, ((dy, x), gradient): Item<'_>, threads| {
        let count = counts[expert];
        *gradient = wanted[expert]
            .then(|| multiplied(1.0, Matrix::new(dy, count, outputs).t(), Matrix::new(x, count, inputs), threads));
    });
    gradients
}

/// The gradients of the biases, `[o]` each.
pub fn grad_biases(dy: &[f32], counts: &[usize], outputs: usize) -> Vec<Vec<f32>> {
    parts(dy, counts, outputs).into_par_iter().map(|dy| column_sums(dy, outputs)).collect()
}
