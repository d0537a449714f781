//! RMSNorm and LayerNorm.

use bridge_kernels::norm::{cube, layer_norm_reference, rms_norm, rms_norm_reference};
use burn::tensor::Tensor;

use crate::common::{Case, assert_close, device, read, tensor, values};

const EPSILON: f64 = 1e-5;

fn check(n: usize, c: usize) {
    let inputs = [values(1, n * c), values(2, c), values(3, c)];
    let rows = |t: &[Tensor<1>]| -> Tensor<2> { t[0].clone().reshape([n, c]) };
    Case {
        name: &format!("rms_norm {n} x {c}"),
        inputs: inputs[..2].to_vec(),
        fused: &|t, _| cube::rms_norm(&rows(t), &t[1], EPSILON).expect("it applies").reshape([n * c]),
        reference: &|t, _| rms_norm_reference(rows(t), t[1].clone(), EPSILON).reshape([n * c]),
    }
    .check();
    for arity in [2, 3] {
        Case {
            name: &format!("layer_norm {n} x {c} of {arity} inputs"),
            inputs: inputs[..arity].to_vec(),
            fused: &|t, _| cube::layer_norm(&rows(t), &t[1], t.get(2), EPSILON).expect("it applies").reshape([n * c]),
            reference: &|t, _| layer_norm_reference(rows(t), t[1].clone(), t.get(2).cloned(), EPSILON).reshape([n * c]),
        }
        .check();
    }
}

#[test]
fn outputs_and_gradients() {
    check(1, 7);
    check(3, 5);
    // Fewer columns than a cube has units.
    check(137, 13);
    // More columns than a cube has units.
    check(2, 601);
    // Several rows a cube, the last cube with fewer, and several vectors of columns a unit.
    check(1030, 1100);
    // Enough cubes that their sums are added up in two passes.
    check(20_003, 5);
}

/// A stream's norm and the stream, whose gradients meet in one kernel.
fn check_residual(n: usize, c: usize) {
    let inputs = [values(1, n * c), values(2, c), values(3, c)];
    let rows = |t: &[Tensor<1>]| -> Tensor<2> { t[0].clone().reshape([n, c]) };
    let both = |normed: Tensor<2>, stream: Tensor<2>| Tensor::cat(vec![normed, stream], 0).reshape([2 * n * c]);
    Case {
        name: &format!("residual rms_norm {n} x {c}"),
        inputs: inputs[..2].to_vec(),
        fused: &|t, _| {
            let (normed, stream) = cube::residual_rms_norm(&rows(t), &t[1], EPSILON).expect("it applies");
            both(normed, stream)
        },
        reference: &|t, _| both(rms_norm_reference(rows(t), t[1].clone(), EPSILON), rows(t)),
    }
    .check();
    for arity in [2, 3] {
        Case {
            name: &format!("residual layer_norm {n} x {c} of {arity} inputs"),
            inputs: inputs[..arity].to_vec(),
            fused: &|t, _| {
                let outputs = cube::residual_layer_norm(&rows(t), &t[1], t.get(2), EPSILON);
                let (normed, stream) = outputs.expect("it applies");
                both(normed, stream)
            },
            reference: &|t, _| both(layer_norm_reference(rows(t), t[1].clone(), t.get(2).cloned(), EPSILON), rows(t)),
        }
        .check();
    }
}

#[test]
fn norms_of_a_stream() {
    check_residual(7, 12);
    check_residual(1030, 33);
}

/// Only one of the norm's output and the stream contributes to the loss.
#[test]
fn one_output_of_two() {
    for (is_normed, expected) in [(true, true), (false, false)] {
        let x = tensor(&values(1, 3 * 5), [3, 5], &device().autodiff()).require_grad();
        let weight = tensor(&values(2, 5), [5], &device().autodiff()).require_grad();
        let (normed, stream) = cube::residual_rms_norm(&x, &weight, EPSILON).expect("it applies");
        let gradients = if is_normed { normed } else { stream }.sum().backward();
        assert_eq!(weight.grad(&gradients).is_some(), expected);
        let alone = cube::rms_norm(&x, &weight, EPSILON).expect("it applies").sum().backward();
        let expected = if is_normed { read(x.grad(&alone).unwrap()) } else { vec![1.0; 15] };
        assert_eq!(read(x.grad(&gradients).unwrap()), expected);
    }
}

#[test]
fn one_column() {
    let x = tensor(&[3.0, -2.0], [2, 1], &device());
    let y = cube::rms_norm(&x, &tensor(&[2.0], [1], &device()), EPSILON).expect("it applies");
    assert_close("rms", &read(y), &[6.0 / 9.00001_f32.sqrt(), -4.0 / 4.00001_f32.sqrt()], 2e-6);
}

#[test]
fn views_and_more_dimensions() {
    let x = tensor(&values(1, 5 * 3 * 7), [5, 7, 3], &device()).swap_dims(1, 2);
    let weight = tensor(&values(2, 14), [14], &device()).narrow(0, 7, 7);
    let expected = rms_norm_reference(x.clone(), weight.clone(), EPSILON);
    let y = cube::rms_norm(&x, &weight, EPSILON).expect("it applies");
    assert_eq!(y.dims(), [5, 3, 7]);
    assert_close("permuted", &read(y.clone()), &read(expected), 2e-6);
    assert_eq!(read(rms_norm(x, weight, EPSILON)), read(y), "the public function takes the kernel");
}

#[test]
fn it_does_not_apply_to_empty_tensors_and_other_back_ends() {
    let weight = tensor(&values(2, 7), [7], &device());
    let empty = tensor(&[], [0, 7], &device());
    assert!(cube::rms_norm(&empty, &weight, EPSILON).is_none());
    let on_cpu = tensor(&values(1, 7), [1, 7], &burn::tensor::Device::flex());
    assert!(cube::rms_norm(&on_cpu, &tensor(&values(2, 7), [7], &burn::tensor::Device::flex()), EPSILON).is_none());
}
