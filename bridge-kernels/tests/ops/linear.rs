//! Linear layer.

use bridge_kernels::linear::{add_weight_gradient, linear, linear_activation, linear_glu, linear_residual, reference};
use bridge_kernels::{Activation, activation};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, assert_close, assert_same_on_any_threads, read, run_all, tensor, values, wide};
use crate::plain;

fn check(n: usize, inputs: usize, outputs: usize) {
    let x_w_b = vec![values(1, n * inputs), values(2, outputs * inputs), values(3, outputs)];
    let shaped = |t: &[Tensor<1>]| (t[0].clone().reshape([n, inputs]), t[1].clone().reshape([outputs, inputs]));
    Case {
        name: &format!("linear {n} x {inputs} -> {outputs}"),
        inputs: x_w_b.clone(),
        fast: &|t| linear(shaped(t).0, shaped(t).1, Some(t[2].clone())).reshape([n * outputs]),
        reference: &|t| reference(shaped(t).0, shaped(t).1, Some(t[2].clone())).reshape([n * outputs]),
        plain: &|v| plain::linear(&v[0], &v[1], Some(&v[2]), inputs),
    }
    .check();
    Case {
        name: "linear without bias",
        inputs: x_w_b[..2].to_vec(),
        fast: &|t| linear(shaped(t).0, shaped(t).1, None).reshape([n * outputs]),
        reference: &|t| reference(shaped(t).0, shaped(t).1, None).reshape([n * outputs]),
        plain: &|v| plain::linear(&v[0], &v[1], None, inputs),
    }
    .check();
}

/// The product with operations that are fused into it.
fn check_epilogues(n: usize, inputs: usize, outputs: usize) {
    let x_w_b_r = vec![values(1, n * inputs), values(2, outputs * inputs), values(3, outputs), values(4, n * outputs)];
    let shaped = |t: &[Tensor<1>]| (t[0].clone().reshape([n, inputs]), t[1].clone().reshape([outputs, inputs]));
    Case {
        name: &format!("linear_residual {n} x {inputs} -> {outputs}"),
        inputs: x_w_b_r.clone(),
        fast: &|t| {
            let residual = t[3].clone().reshape([n, outputs]);
            linear_residual(shaped(t).0, shaped(t).1, Some(t[2].clone()), residual).reshape([n * outputs])
        },
        reference: &|t| reference(shaped(t).0, shaped(t).1, Some(t[2].clone())).reshape([n * outputs]) + t[3].clone(),
        plain: &|v| {
            let y = plain::linear(&v[0], &v[1], Some(&v[2]), inputs);
            y.iter().zip(&v[3]).map(|(y, x)| y + x).collect()
        },
    }
    .check();
    Case {
        name: "linear_residual without bias",
        inputs: [&x_w_b_r[..2], &x_w_b_r[3..]].concat(),
        fast: &|t| {
            let residual = t[2].clone().reshape([n, outputs]);
            linear_residual(shaped(t).0, shaped(t).1, None, residual).reshape([n * outputs])
        },
        reference: &|t| reference(shaped(t).0, shaped(t).1, None).reshape([n * outputs]) + t[2].clone(),
        plain: &|v| {
            let y = plain::linear(&v[0], &v[1], None, inputs);
            y.iter().zip(&v[2]).map(|(y, x)| y + x).collect()
        },
    }
    .check();
    for kind in [Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
        let flat = |t: Tensor<2>| t.reshape([n * outputs]);
        Case {
            name: &format!("linear_activation {kind:?} {n} x {inputs} -> {outputs}"),
            inputs: x_w_b_r[..3].to_vec(),
            fast: &|t| flat(linear_activation(shaped(t).0, shaped(t).1, Some(t[2].clone()), kind)),
            reference: &|t| flat(activation::reference(reference(shaped(t).0, shaped(t).1, Some(t[2].clone())), kind)),
            plain: &|v| plain::activation(&plain::linear(&v[0], &v[1], Some(&v[2]), inputs), kind),
        }
        .check();
        if outputs % 2 == 1 {
            continue;
        }
        let width = outputs / 2;
        let batch = |t: &[Tensor<1>]| t[0].clone().reshape([1, n, inputs]);
        Case {
            name: &format!("linear_glu {kind:?} {n} x {inputs} -> {width}"),
            inputs: x_w_b_r[..3].to_vec(),
            fast: &|t| linear_glu(batch(t), shaped(t).1, Some(t[2].clone()), kind).reshape([n * width]),
            reference: &|t| {
                let product = reference(batch(t), shaped(t).1, Some(t[2].clone()));
                activation::glu_reference(product, kind).reshape([n * width])
            },
            plain: &|v| plain::glu(&plain::linear(&v[0], &v[1], Some(&v[2]), inputs), width, kind),
        }
        .check();
    }
}

#[test]
fn epilogues_outputs_and_gradients() {
    check_epilogues(1, 1, 1);
    check_epilogues(7, 3, 2);
    check_epilogues(13, 17, 5);
    check_epilogues(23, 19, 30);
}

#[test]
fn epilogues_are_the_same_on_any_number_of_threads() {
    let (n, i, o) = (301, 257, 522);
    let inputs = [values(1, n * i), values(2, o * i), values(3, o), values(4, n * o)];
    assert_same_on_any_threads("linear_residual", || {
        run_all(&inputs, |t| {
            let (x, w) = (t[0].clone().reshape([n, i]), t[1].clone().reshape([o, i]));
            linear_residual(x, w, Some(t[2].clone()), t[3].clone().reshape([n, o])).reshape([n * o])
        })
    });
    assert_same_on_any_threads("linear_glu", || {
        run_all(&inputs[..3], |t| {
            let (x, w) = (t[0].clone().reshape([1, n, i]), t[1].clone().reshape([o, i]));
            linear_glu(x, w, Some(t[2].clone()), Activation::Silu).reshape([n * o / 2])
        })
    });
}

#[test]
#[should_panic(expected = "linear: the residual stream does not fit the product")]
fn a_wrong_residual_is_refused() {
    let device = Device::flex();
    let (x, w) = (tensor(&[0.0; 6], [2, 3], &device), tensor(&[0.0; 12], [4, 3], &device));
    linear_residual(x, w, None, tensor(&[0.0; 6], [2, 3], &device));
}

/// Sums of a weight's gradient over micro-batches, against float64.
#[test]
fn weight_gradients_add_up() {
    let device = Device::flex();
    let (n, i, o) = (13, 5, 7);
    let (mut sum, mut expected) = (None, vec![0f64; o * i]);
    for batch in 0..3 {
        let (dy, x) = (values(10 + batch, n * o), values(20 + batch, n * i));
        sum = Some(add_weight_gradient(sum, &tensor(&dy, [n, o], &device), &tensor(&x, [n, i], &device)));
        for (at, sum) in expected.iter_mut().enumerate() {
            *sum += (0..n).map(|t| f64::from(dy[t * o + at / i]) * f64::from(x[t * i + at % i])).sum::<f64>();
        }
    }
    assert_close("sum", &read(sum.unwrap()), &expected, 2e-6);
}

#[test]
#[should_panic(expected = "gradients add up in float32")]
fn a_sum_of_another_shape_is_refused() {
    let device = Device::flex();
    let (dy, x) = (tensor(&[0.0; 6], [2, 3], &device), tensor(&[0.0; 8], [2, 4], &device));
    add_weight_gradient(Some(tensor(&[0.0; 12], [4, 3], &device)), &dy, &x);
}

#[test]
fn outputs_and_gradients() {
    check(1, 1, 1);
    check(1, 7, 3);
    check(11, 1, 5);
    check(13, 17, 1);
    check(23, 19, 29);
}

#[test]
fn leading_dimensions_and_empty_batches() {
    let device = Device::flex();
    let (x, w) =
        (tensor(&values(1, 2 * 3 * 5 * 7), [2, 3, 5, 7], &device), tensor(&values(2, 11 * 7), [11, 7], &device));
    let y = linear(x.clone(), w.clone(), None);
    assert_eq!(y.dims(), [2, 3, 5, 11]);
    assert_close("rank 4", &read(y), &plain::linear(&wide(&read(x)), &wide(&read(w.clone())), None, 7), 2e-6);
    assert_eq!(linear(tensor(&[], [0, 7], &device), w, None).dims(), [0, 11]);
}

#[test]
fn views_are_read_where_they_are() {
    let device = Device::flex();
    let (x, w) = (values(1, 7 * 13), values(2, 40 * 7));
    let expected =
        plain::linear(&wide(&read(tensor(&x, [7, 13], &device).transpose())), &wide(&w[3 * 7..14 * 7]), None, 7);
    let rows = tensor(&w, [40, 7], &device).narrow(0, 3, 11);
    let transposed = tensor(&x, [7, 13], &device).transpose();
    assert_close("slice of rows", &read(linear(transposed.clone(), rows.clone(), None)), &expected, 2e-6);
    let stored_transposed: Tensor<2> = tensor(&read(rows.transpose()), [7, 11], &device).transpose();
    assert_close("transposed", &read(linear(transposed, stored_transposed, None)), &expected, 2e-6);
    let flipped = tensor(&w, [40, 7], &device).flip([0]);
    let expected = plain::linear(&wide(&x[..7]), &wide(&read(flipped.clone())), None, 7);
    assert_close("flipped", &read(linear(tensor(&x[..7], [1, 7], &device), flipped, None)), &expected, 2e-6);
}

#[test]
fn the_same_on_any_number_of_threads() {
    // Long, flat, deep and narrow ones: products are cut by rows, by columns, by both or not at
    // all.
    for (n, i, o) in [
        (301, 257, 523),
        (5, 900, 2000),
        (1501, 700, 70),
        (66, 1030, 1400),
        (97, 1100, 129),
        (1, 2048, 512),
        (1, 960, 2561),
        (2, 2048, 259),
    ] {
        let inputs = [values(1, n * i), values(2, o * i), values(3, o)];
        assert_same_on_any_threads(&format!("linear {n} x {i} -> {o}"), || {
            run_all(&inputs, |t| {
                linear(t[0].clone().reshape([n, i]), t[1].clone().reshape([o, i]), Some(t[2].clone())).reshape([n * o])
            })
        });
    }
}

#[test]
#[should_panic(expected = "linear: an input of [2, 3] does not fit a weight of [5, 4]")]
fn a_wrong_inner_size_is_named() {
    let device = Device::flex();
    linear(tensor(&[0.0; 6], [2, 3], &device), tensor(&[0.0; 20], [5, 4], &device), None);
}
