//! Linear layers: on CUDA devices products by cuBLASLt, elsewhere Burn's.

use bridge_kernels::linear::{add_weight_gradient, linear, linear_activation, linear_residual, reference};
use bridge_kernels::{Activation, activation};
use burn::tensor::{FloatDType, Tensor};

use crate::common::{Case, assert_close, device, read, tensor, values};
use crate::half;

fn check(n: usize, inputs: usize, outputs: usize) {
    let operands = vec![values(1, n * inputs), values(2, outputs * inputs), values(3, outputs), values(4, n * outputs)];
    let x = move |t: &[Tensor<1>]| t[0].clone().reshape([1, n, inputs]);
    let w = move |t: &[Tensor<1>]| t[1].clone().reshape([outputs, inputs]);
    let b = |t: &[Tensor<1>]| Some(t[2].clone());
    let r = move |t: &[Tensor<1>]| t[3].clone().reshape([1, n, outputs]);
    let flat = move |y: Tensor<3>| y.reshape([n * outputs]);
    let gelu = Activation::GeluTanh;
    Case {
        name: &format!("linear {n} x {inputs} -> {outputs}"),
        inputs: operands[..3].to_vec(),
        fused: &|t, _| flat(linear(x(t), w(t), b(t))),
        reference: &|t, _| flat(reference(x(t), w(t), b(t))),
    }
    .check();
    Case {
        name: &format!("linear {n} x {inputs} -> {outputs}, no bias, weight transposed"),
        inputs: operands[..2].to_vec(),
        fused: &|t, _| flat(linear(x(t), t[1].clone().reshape([inputs, outputs]).transpose(), None)),
        reference: &|t, _| flat(reference(x(t), t[1].clone().reshape([inputs, outputs]).transpose(), None)),
    }
    .check();
    Case {
        name: &format!("linear_residual {n} x {inputs} -> {outputs}"),
        inputs: operands.clone(),
        fused: &|t, _| flat(linear_residual(x(t), w(t), b(t), r(t))),
        reference: &|t, _| flat(r(t) + reference(x(t), w(t), b(t))),
    }
    .check();
    Case {
        name: &format!("linear_activation {n} x {inputs} -> {outputs}"),
        inputs: operands[..3].to_vec(),
        fused: &|t, _| flat(linear_activation(x(t), w(t), b(t), gelu)),
        reference: &|t, _| flat(activation::reference(reference(x(t), w(t), b(t)), gelu)),
    }
    .check();
}

#[test]
fn outputs_and_gradients() {
    check(1, 1, 1);
    check(13, 17, 5);
    check(23, 19, 29);
    check(64, 48, 40);
    check(257, 128, 72);
}

#[test]
fn weight_gradients_add_up_in_float32() {
    let device = device();
    let (n, inputs, outputs) = (67, 19, 29);
    let dtypes = std::iter::once((FloatDType::F32, 0.0)).chain(half::dtypes());
    for (dtype, half_ulp) in dtypes {
        let (mut sum, mut expected) = (None, vec![0f64; outputs * inputs]);
        for batch in 0..5 {
            let dy = tensor::<2>(&values(20 + batch, n * outputs), [n, outputs], &device).cast(dtype);
            let x = tensor::<2>(&values(30 + batch, n * inputs), [n, inputs], &device).cast(dtype);
            sum = Some(add_weight_gradient(sum, &dy, &x));
            let (dy, x) = (read(dy.cast(FloatDType::F32)), read(x.cast(FloatDType::F32)));
            for (i, sum) in expected.iter_mut().enumerate() {
                let term = |t: usize| f64::from(dy[t * outputs + i / inputs]) * f64::from(x[t * inputs + i % inputs]);
                *sum += (0..n).map(term).sum::<f64>();
            }
        }
        let expected: Vec<f32> = expected.iter().map(|x| *x as f32).collect();
        // Burn's product rounds each batch to 16 bits before it is added.
        let tolerance = if cfg!(feature = "cuda") { 2e-6 } else { 2e-6_f64.max(2.0 * f64::from(half_ulp)) };
        assert_close("sum", &read(sum.unwrap()), &expected, tolerance);
    }
}

/// Products between kernels, on several streams at once, with memory of other streams: every
/// product runs after the work that it reads.
#[test]
fn products_are_ordered_with_kernels() {
    let device = device();
    let (n, rounds) = (512, 40);
    let w = tensor::<2>(&values(1, n * n), [n, n], &device) / (n as f32).sqrt();
    let x = tensor::<2>(&values(2, n * n), [n, n], &device);
    let chain =
        |multiply: &dyn Fn(Tensor<2>) -> Tensor<2>| (0..rounds).fold(x.clone(), |x, _| multiply(x + 0.25) * 0.5);
    let expected = read(chain(&|x| reference(x, w.clone(), None)));
    let found: Vec<_> = std::thread::scope(|scope| {
        let one = || read(chain(&|x| linear(x, w.clone(), None)));
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for found in &found {
        assert_close("chain", found, &expected, 1e-4);
    }
}

#[cfg(feature = "cuda")]
#[test]
fn the_library_is_there() {
    let x = tensor::<1>(&[1.0], [1], &device());
    assert!(
        bridge_kernels::cublaslt::cuda::CublasLt::from_tensor(&x).is_some(),
        "products are Burn's: the tests of this file show nothing"
    );
}
