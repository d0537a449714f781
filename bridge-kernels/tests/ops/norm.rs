//! RMSNorm and LayerNorm.

use bridge_kernels::norm::{
    layer_norm, layer_norm_reference, residual_layer_norm, residual_rms_norm, rms_norm, rms_norm_reference,
};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, assert_close, assert_same_on_any_threads, read, run_all, tensor, values, wide};
use crate::plain;

const EPSILON: f64 = 1e-5;

fn check(n: usize, c: usize) {
    let inputs = [values(1, n * c), values(2, c), values(3, c)];
    Case {
        name: &format!("rms_norm {n} x {c}"),
        inputs: inputs[..2].to_vec(),
        fast: &|t| rms_norm(t[0].clone().reshape([n, c]), t[1].clone(), EPSILON).reshape([n * c]),
        reference: &|t| rms_norm_reference(t[0].clone().reshape([n, c]), t[1].clone(), EPSILON).reshape([n * c]),
        plain: &|v| plain::rms_norm(&v[0], &v[1], EPSILON),
    }
    .check();
    let bias = |t: &[Tensor<1>]| t.get(2).cloned();
    for arity in [2, 3] {
        Case {
            name: &format!("layer_norm {n} x {c} of {arity} inputs"),
            inputs: inputs[..arity].to_vec(),
            fast: &|t| layer_norm(t[0].clone().reshape([n, c]), t[1].clone(), bias(t), EPSILON).reshape([n * c]),
            reference: &|t| {
                layer_norm_reference(t[0].clone().reshape([n, c]), t[1].clone(), bias(t), EPSILON).reshape([n * c])
            },
            plain: &|v| plain::layer_norm(&v[0], &v[1], v.get(2).map(Vec::as_slice), EPSILON),
        }
        .check();
    }
}

/// `norm(x) * x`, with `x` as it comes back: both outputs have gradients of their own.
fn check_residual(n: usize, c: usize) {
    let inputs = [values(1, n * c), values(2, c), values(3, c)];
    let times = |y: Vec<f64>, x: &[f64]| y.iter().zip(x).map(|(y, x)| y * x).collect::<Vec<f64>>();
    Case {
        name: &format!("residual_rms_norm {n} x {c}"),
        inputs: inputs[..2].to_vec(),
        fast: &|t| {
            let (y, x) = residual_rms_norm(t[0].clone().reshape([n, c]), t[1].clone(), EPSILON);
            (y.tensor * x).reshape([n * c])
        },
        reference: &|t| {
            let x = t[0].clone().reshape([n, c]);
            (rms_norm_reference(x.clone(), t[1].clone(), EPSILON) * x).reshape([n * c])
        },
        plain: &|v| times(plain::rms_norm(&v[0], &v[1], EPSILON), &v[0]),
    }
    .check();
    let bias = |t: &[Tensor<1>]| t.get(2).cloned();
    for arity in [2, 3] {
        Case {
            name: &format!("residual_layer_norm {n} x {c} of {arity} inputs"),
            inputs: inputs[..arity].to_vec(),
            fast: &|t| {
                let (y, x) = residual_layer_norm(t[0].clone().reshape([n, c]), t[1].clone(), bias(t), EPSILON);
                (y.tensor * x).reshape([n * c])
            },
            reference: &|t| {
                let x = t[0].clone().reshape([n, c]);
                (layer_norm_reference(x.clone(), t[1].clone(), bias(t), EPSILON) * x).reshape([n * c])
            },
            plain: &|v| times(plain::layer_norm(&v[0], &v[1], v.get(2).map(Vec::as_slice), EPSILON), &v[0]),
        }
        .check();
    }
}

#[test]
fn outputs_and_gradients() {
    for (n, c) in [(1, 7), (3, 5), (37, 13), (2, 131)] {
        check(n, c);
        check_residual(n, c);
    }
}

#[test]
fn a_residual_adds_to_the_bits_that_two_gradients_make() {
    let (n, c) = (67, 19);
    let inputs = [values(1, n * c), values(2, c)];
    let separate = run_all(&inputs, |t| {
        let x = t[0].clone().reshape([n, c]);
        (x.clone() * 0.5 + rms_norm(x, t[1].clone(), EPSILON)).reshape([n * c])
    });
    let fused = run_all(&inputs, |t| {
        let (y, x) = residual_rms_norm(t[0].clone().reshape([n, c]), t[1].clone(), EPSILON);
        (x * 0.5 + y.tensor).reshape([n * c])
    });
    assert_eq!(fused, separate);
    // A stream that nothing is added to afterwards.
    let alone = run_all(&inputs, |t| {
        residual_rms_norm(t[0].clone().reshape([n, c]), t[1].clone(), EPSILON).0.tensor.reshape([n * c])
    });
    assert_eq!(
        alone,
        run_all(&inputs, |t| rms_norm(t[0].clone().reshape([n, c]), t[1].clone(), EPSILON).reshape([n * c]))
    );
}

#[test]
fn a_loss_on_the_stream_alone_passes_the_norm_by() {
    let (n, c) = (5, 7);
    let leaf = |seed, count| tensor(&values(seed, count), [count], &Device::flex().autodiff()).require_grad();
    let (x, weight) = (leaf(1, n * c), leaf(2, c));
    let (_, stream) = residual_rms_norm(x.clone().reshape([n, c]), weight.clone(), EPSILON);
    let gradients = (stream * 3.0).sum().backward();
    assert_eq!(read(x.grad(&gradients).unwrap()), vec![3.0; n * c]);
    assert!(weight.grad(&gradients).is_none_or(|gradient| read(gradient).iter().all(|v| *v == 0.0)));
}

#[test]
fn views_single_elements_and_empty_batches() {
    let device = Device::flex();
    let x = values(1, 5 * 3 * 7);
    let permuted = tensor(&x, [5, 7, 3], &device).swap_dims(1, 2);
    let w = values(2, 7);
    let expected = plain::rms_norm(&wide(&read(permuted.clone())), &wide(&w), EPSILON);
    assert_close("permuted", &read(rms_norm(permuted, tensor(&w, [7], &device), EPSILON)), &expected, 2e-6);
    let one = rms_norm(tensor(&[3.0], [1, 1], &device), tensor(&[2.0], [1], &device), EPSILON);
    assert_close("one element", &read(one), &[6.0 / (9.0_f64 + EPSILON).sqrt()], 2e-6);
    assert_eq!(layer_norm(tensor(&[], [0, 7], &device), tensor(&w, [7], &device), None, EPSILON).dims(), [0, 7]);
}

#[test]
fn the_same_on_any_number_of_threads() {
    let (n, c) = (401, 67);
    let inputs = [values(1, n * c), values(2, c), values(3, c)];
    assert_same_on_any_threads("layer_norm", || {
        run_all(&inputs, |t| {
            let (y, x) = residual_layer_norm(t[0].clone().reshape([n, c]), t[1].clone(), Some(t[2].clone()), EPSILON);
            (y.tensor * x).reshape([n * c])
        })
    });
}

#[test]
#[should_panic(expected = "norm: an input of [2, 3] does not fit a weight of 4")]
fn a_wrong_size_is_named() {
    let device = Device::flex();
    rms_norm(tensor(&[0.0; 6], [2, 3], &device), tensor(&[0.0; 4], [4], &device), EPSILON);
}
