//! Output projection with cross-entropy.

use bridge_kernels::cross_entropy::{CrossEntropyOptions, OutputLayer, cube, linear_cross_entropy, reference};
use burn::tensor::{Device, Int, Tensor};

use crate::common::{Case, device, ints, read, tensor, values};

fn targets(n: usize, v: usize) -> Vec<i64> {
    (0..n).map(|i| (i * 7919 % v) as i64).collect()
}

fn masks(n: usize) -> Vec<f32> {
    (0..n).map(|i| [1.0, 0.0, 0.5, 1.0, 2.0][i % 5]).collect()
}

fn check(n: usize, c: usize, v: usize, options: CrossEntropyOptions, rows: Option<usize>) {
    // A token that does not count has an invalid target.
    let mut target = targets(n, v);
    if n > 1 {
        target[1] = -100;
    }
    type Arguments = (Tensor<2>, Tensor<2>, Tensor<1, Int>, Tensor<1>);
    let arguments = |t: &[Tensor<1>], device: &Device| -> Arguments {
        let mask = tensor(&masks(n), [n], device).without_autodiff();
        (t[0].clone().reshape([n, c]), t[1].clone().reshape([v, c]), ints(&target, [n], device), mask)
    };
    Case {
        name: &format!("loss of {n} x {c} x {v}, {options:?}, {rows:?} tokens at once"),
        inputs: vec![values(1, n * c), values(2, v * c)],
        fused: &|t, device| {
            let (x, w, targets, mask) = arguments(t, device);
            cube::linear_cross_entropy(&x, &w, &targets, &mask, &options, rows).expect("it applies")
        },
        reference: &|t, device| {
            let (x, w, targets, mask) = arguments(t, device);
            reference(x, w, targets, mask, &options)
        },
    }
    .check();
}

#[test]
fn loss_and_gradients() {
    for softcap in [None, Some(2.5)] {
        for z_loss in [None, Some(0.03)] {
            check(7, 5, 11, CrossEntropyOptions { softcap, z_loss }, None);
            check(13, 3, 601, CrossEntropyOptions { softcap, z_loss }, None);
        }
    }
    check(1, 2, 3, CrossEntropyOptions::default(), None);
    // As many columns as there are in memory.
    check(9, 6, 264, CrossEntropyOptions::default(), None);
}

#[test]
fn a_bias_is_a_column_of_the_weight() {
    let (n, c, v) = (7, 5, 11);
    for softcap in [None, Some(2.5)] {
        let options = CrossEntropyOptions { softcap, z_loss: None };
        let of = |device: &Device| {
            let mask = tensor(&masks(n), [n], device).without_autodiff();
            (ints(&targets(n, v), [n], device), mask)
        };
        Case {
            name: &format!("loss with a bias, {options:?}"),
            inputs: vec![values(1, n * c), values(2, v * c), values(3, v)],
            fused: &|t, device| {
                let ((targets, mask), weight_vc) = (of(device), t[1].clone().reshape([v, c]));
                let x_nc = t[0].clone().reshape([n, c]);
                let output = (&weight_vc, Some(&t[2]));
                cube::output_cross_entropy(&x_nc, output, &targets, &mask, &options).expect("it applies")
            },
            reference: &|t, device| {
                let (targets, mask) = of(device);
                let weight_vc = t[1].clone().reshape([v, c]).into();
                let output = OutputLayer { weight_vc, bias_v: Some(t[2].clone()) };
                reference(t[0].clone().reshape([n, c]), output, targets, mask, &options)
            },
        }
        .check();
    }
}

#[test]
fn several_chunks() {
    let options = CrossEntropyOptions { softcap: None, z_loss: Some(0.01) };
    // Chunks of one size, and the last one shorter.
    check(23, 5, 601, options, Some(6));
    check(8, 3, 16, options, Some(4));
    check(3, 3, 9, options, Some(1));
}

#[test]
fn masked_rows_may_hold_anything() {
    let device = device().autodiff();
    let mut x = values(1, 3 * 2);
    x[2] = f32::INFINITY;
    let x = tensor(&x, [3, 2], &device).require_grad();
    let weight = tensor(&values(2, 5 * 2), [5, 2], &device);
    let mask = tensor(&[1.0, 0.0, 1.0], [3], &device).without_autodiff();
    let targets = ints(&[1, 99, 4], [3], &device);
    let loss = linear_cross_entropy(x.clone(), weight, targets, mask, &CrossEntropyOptions::default());
    let gradient = read(x.grad(&loss.clone().backward()).expect("it is tracked"));
    assert!(read(loss)[0].is_finite());
    assert_eq!(gradient[2..4], [0.0, 0.0]);
}

#[test]
fn a_target_outside_the_vocabulary_gives_no_finite_loss() {
    for target in [5, -1] {
        let (x, weight) = (tensor(&[1.0, 2.0], [1, 2], &device()), tensor(&values(2, 10), [5, 2], &device()));
        let (targets, mask) = (ints(&[target], [1], &device()), tensor(&[1.0], [1], &device()));
        let loss = linear_cross_entropy(x, weight, targets, mask, &CrossEntropyOptions::default());
        assert!(!read(loss)[0].is_finite(), "target {target}");
    }
}
