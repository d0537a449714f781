//! Weighted sums of rows.

use bridge_kernels::weighted_rows::{reference, weighted_rows};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, assert_same_on_any_threads, read, run_all, tensor, values};

/// Rows in some order, each at most once; every seventh term has none.
fn places(m: usize, terms: usize) -> Vec<Option<usize>> {
    let mut rows = (0..m).map(|i| i * 7 % m);
    (0..terms).map(|term| if term % 7 == 3 { None } else { rows.next() }).collect()
}

fn check([m, c, n, k]: [usize; 4]) {
    let places = places(m, n * k);
    let shaped = |t: &[Tensor<1>]| (t[0].clone().reshape([m, c]), t[1].clone().reshape([n, k]));
    Case {
        name: &format!("weighted_rows of {m} x {c}, {n} x {k}"),
        inputs: vec![values(1, m * c), values(2, n * k)],
        fast: &|t| {
            let (rows, weights) = shaped(t);
            weighted_rows(rows, weights, places.clone()).reshape([n * c])
        },
        reference: &|t| {
            let (rows, weights) = shaped(t);
            reference(rows, weights, &places).reshape([n * c])
        },
        plain: &|v| {
            let mut y = vec![0.0; n * c];
            for (term, place) in places.iter().enumerate() {
                let Some(place) = place else { continue };
                for column in 0..c {
                    y[term / k * c + column] += v[1][term] * v[0][place * c + column];
                }
            }
            y
        },
    }
    .check();
}

#[test]
fn sums_and_gradients() {
    check([1, 3, 1, 1]);
    // Rows that are in no sum.
    check([29, 5, 11, 2]);
    // Terms that are left over.
    check([23, 7, 37, 3]);
}

#[test]
fn the_same_on_any_number_of_threads() {
    let [m, c, n, k] = [303, 67, 173, 2];
    let places = places(m, n * k);
    assert_same_on_any_threads("weighted_rows", || {
        run_all(&[values(1, m * c), values(2, n * k)], |t| {
            let (rows, weights) = (t[0].clone().reshape([m, c]), t[1].clone().reshape([n, k]));
            weighted_rows(rows, weights, places.clone()).reshape([n * c])
        })
    });
}

#[test]
fn without_rows_all_sums_are_zero() {
    let device = Device::flex().autodiff();
    let weights = tensor(&[1.0, 2.0, 3.0, 4.0], [2, 2], &device).require_grad();
    let sums = weighted_rows(Tensor::zeros([0, 3], &device), weights.clone(), vec![None; 4]);
    assert_eq!(read(sums.clone()), [0.0; 6]);
    let gradients = sums.sum().backward();
    assert_eq!(read(weights.grad(&gradients).expect("it has its place in the graph")), [0.0; 4]);
}

#[test]
#[should_panic(expected = "weighted_rows: row 1 has two places")]
fn a_row_in_two_sums_is_named() {
    let device = Device::flex();
    weighted_rows(Tensor::zeros([2, 3], &device), Tensor::zeros([2, 1], &device), vec![Some(1), Some(1)]);
}
