//! Output projection with cross-entropy.

use bridge_kernels::cross_entropy::{CrossEntropyOptions, OutputLayer, linear_cross_entropy, reference};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, assert_close, assert_same_on_any_threads, ints, run_all, tensor, values, wide};
use crate::plain;

fn targets(n: usize, v: usize) -> Vec<i64> {
    (0..n).map(|i| (i * 7919 % v) as i64).collect()
}

fn masks(n: usize) -> Vec<f32> {
    (0..n).map(|i| [1.0, 0.0, 0.5, 1.0, 2.0][i % 5]).collect()
}

fn check(n: usize, c: usize, v: usize, options: CrossEntropyOptions) {
    let (target, mask) = (targets(n, v), masks(n));
    let arguments = |t: &[Tensor<1>]| {
        let mask = tensor(&mask, [n], &Device::flex());
        (t[0].clone().reshape([n, c]), t[1].clone().reshape([v, c]), ints(&target, [n]), mask)
    };
    Case {
        name: &format!("loss of {n} x {c} x {v}, {options:?}"),
        inputs: vec![values(1, n * c), values(2, v * c)],
        fast: &|t| {
            let (x, w, targets, mask) = arguments(t);
            linear_cross_entropy(x, w, targets, mask, &options)
        },
        reference: &|t| {
            let (x, w, targets, mask) = arguments(t);
            reference(x, w, targets, mask, &options)
        },
        plain: &|x| vec![plain::cross_entropy(&x[0], &x[1], &target, &wide(&mask), c, options.softcap, options.z_loss)],
    }
    .check();
}

/// The loss with a bias: the plain form has it as one more column of the weight.
fn check_with_bias(n: usize, c: usize, v: usize, options: CrossEntropyOptions) {
    let (target, mask) = (targets(n, v), masks(n));
    let arguments = |t: &[Tensor<1>]| {
        let weight_vc = t[1].clone().reshape([v, c]);
        let output = OutputLayer { weight_vc: weight_vc.into(), bias_v: Some(t[2].clone()) };
        (t[0].clone().reshape([n, c]), output, ints(&target, [n]), tensor(&mask, [n], &Device::flex()))
    };
    let with_column = |rows: &[f64], column: &[f64]| -> Vec<f64> {
        rows.chunks(c).zip(column).flat_map(|(row, last)| row.iter().chain([last]).copied()).collect()
    };
    Case {
        name: &format!("loss of {n} x {c} x {v} with a bias, {options:?}"),
        inputs: vec![values(1, n * c), values(2, v * c), values(3, v)],
        fast: &|t| {
            let (x, output, targets, mask) = arguments(t);
            linear_cross_entropy(x, output, targets, mask, &options)
        },
        reference: &|t| {
            let (x, output, targets, mask) = arguments(t);
            reference(x, output, targets, mask, &options)
        },
        plain: &|x| {
            let (hidden, weight) = (with_column(&x[0], &vec![1.0; n]), with_column(&x[1], &x[2]));
            let CrossEntropyOptions { softcap, z_loss } = options;
            vec![plain::cross_entropy(&hidden, &weight, &target, &wide(&mask), c + 1, softcap, z_loss)]
        },
    }
    .check();
}

#[test]
fn a_bias_has_the_loss_and_gradients_of_a_column() {
    for softcap in [None, Some(2.5)] {
        check_with_bias(7, 5, 13, CrossEntropyOptions { softcap, z_loss: None });
    }
    check_with_bias(5, 3, 1_031, CrossEntropyOptions { softcap: None, z_loss: Some(0.03) });
}

#[test]
fn loss_and_gradients() {
    for softcap in [None, Some(2.5)] {
        for z_loss in [None, Some(0.03)] {
            check(7, 5, 13, CrossEntropyOptions { softcap, z_loss });
        }
    }
    check(1, 1, 3, CrossEntropyOptions::default());
    check(3, 7, 1, CrossEntropyOptions::default());
    check(11, 3, 131, CrossEntropyOptions::default());
}

#[test]
fn chunks_of_tokens_make_one_loss() {
    // So large a vocabulary that the tokens take two chunks.
    let (n, c, v) = (300, 2, 80_021);
    let (x, w) = (values(1, n * c), values(2, v * c));
    let (target, mask) = (targets(n, v), masks(n));
    let run = |operation: &dyn Fn(Tensor<2>, Tensor<2>) -> Tensor<1>| {
        run_all(&[x.clone(), w.clone()], |t| operation(t[0].clone().reshape([n, c]), t[1].clone().reshape([v, c])))
    };
    let arguments = || (ints(&target, [n]), tensor(&mask, [n], &Device::flex()));
    let options = CrossEntropyOptions::default();
    let fast = run(&|x, w| linear_cross_entropy(x, w, arguments().0, arguments().1, &options));
    let expected = plain::cross_entropy(&wide(&x), &wide(&w), &target, &wide(&mask), c, None, None);
    assert_close("loss", &fast[0], &[expected], 2e-6);
    let reference = run(&|x, w| reference(x, w, arguments().0, arguments().1, &options));
    assert_close("gradient of x", &fast[1], &wide(&reference[1]), 2e-5);
    assert_close("gradient of the weight", &fast[2], &wide(&reference[2]), 2e-5);
}

#[test]
fn masked_tokens_may_hold_anything() {
    let device = Device::flex();
    let mut x = values(1, 2 * 3);
    let w = tensor(&values(2, 5 * 3), [5, 3], &device);
    let loss = |x: &[f32], targets: &[i64]| {
        let mask = tensor(&[1.0, 0.0], [2], &device);
        linear_cross_entropy(
            tensor(x, [2, 3], &device),
            w.clone(),
            ints(targets, [2]),
            mask,
            &CrossEntropyOptions::default(),
        )
        .into_scalar::<f32>()
    };
    let expected = loss(&x, &[4, 0]);
    x[3] = f32::INFINITY;
    assert_eq!(loss(&x, &[4, -100]), expected);
}

#[test]
fn large_logits_do_not_overflow() {
    let device = Device::flex();
    let x = tensor(&[1.0e4], [1, 1], &device);
    let w = tensor(&[1.0, 0.0, -1.0], [3, 1], &device);
    let loss =
        linear_cross_entropy(x, w, ints(&[1], [1]), tensor(&[1.0], [1], &device), &CrossEntropyOptions::default());
    assert_eq!(loss.into_scalar::<f32>(), 1.0e4);
}

#[test]
fn the_same_on_any_number_of_threads() {
    let (n, c, v) = (211, 37, 1009);
    let inputs = [values(1, n * c), values(2, v * c)];
    assert_same_on_any_threads("linear_cross_entropy", || {
        run_all(&inputs, |t| {
            let (x, w) = (t[0].clone().reshape([n, c]), t[1].clone().reshape([v, c]));
            let mask = tensor(&masks(n), [n], &Device::flex());
            linear_cross_entropy(x, w, ints(&targets(n, v), [n]), mask, &CrossEntropyOptions::default())
        })
    });
}

#[test]
#[should_panic(expected = "target 5 of token 1 is not in 0..5, the vocabulary")]
fn a_target_outside_the_vocabulary_is_named() {
    let device = Device::flex();
    let mask = tensor(&[1.0, 1.0], [2], &device);
    let (x, w) = (tensor(&[0.0; 2], [2, 1], &device), tensor(&[0.0; 5], [5, 1], &device));
    linear_cross_entropy(x, w, ints(&[0, 5], [2]), mask, &CrossEntropyOptions::default());
}
