//! Operations in bfloat16: inputs and outputs in 16 bits, arithmetic in float32, rounded once.

use bridge_kernels::dropout::reference as dropout_reference;
use bridge_kernels::rotary::{Positions, RotaryPairing, RotaryTable};
use bridge_kernels::{
    Activation, AttentionOptions, CrossEntropyOptions, DropoutKey, PackedHeads, Philox, activation, attention, dropout,
    embedding, glu, layer_norm, linear, linear_activation, linear_cross_entropy, linear_glu, linear_of_activation,
    linear_of_glu, linear_residual, packed_attention, residual_rms_norm, rms_norm, split,
};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

/// Half a unit in the last place of bfloat16, relative.
const HALF_ULP: f64 = 1.0 / 256.0;

fn values(count: usize) -> Vec<f32> {
    Philox::new(11).normal(count, 2.0)
}

fn bf16<const D: usize>(values: &[f32], shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::<D>::from_data(TensorData::new(values.to_vec(), shape), device).cast(FloatDType::BF16)
}

fn read<const D: usize>(x: Tensor<D>) -> Vec<f64> {
    x.cast(FloatDType::F32).into_data().iter::<f64>().collect()
}

/// Fails unless every element is within one rounding of float32 arithmetic on the same (rounded)
/// inputs.
fn assert_rounded_once(narrow: Vec<f64>, wide: Vec<f64>) {
    for (i, (narrow, wide)) in narrow.iter().zip(&wide).enumerate() {
        let bound = wide.abs() * HALF_ULP * 1.01 + 3e-7;
        assert!((narrow - wide).abs() <= bound, "element {i}: {narrow} is not {wide} rounded to bfloat16");
    }
}

#[test]
fn activations_round_once() {
    let device = Device::flex();
    let x = bf16(&values(3 * 5 * 14), [3, 5, 14], &device);
    let wide = x.clone().cast(FloatDType::F32);
    let kinds =
        [Activation::Gelu, Activation::GeluTanh, Activation::Silu, Activation::QuickGelu, Activation::SquaredRelu];
    for kind in kinds {
        assert_rounded_once(read(activation(x.clone(), kind)), read(activation(wide.clone(), kind)));
        assert_rounded_once(read(glu(x.clone(), kind)), read(glu(wide.clone(), kind)));
    }
}

#[test]
fn norms_round_once() {
    let device = Device::flex();
    let (x, weight, bias) =
        (bf16(&values(7 * 13), [7, 13], &device), bf16(&values(13), [13], &device), bf16(&values(13), [13], &device));
    let wide = |x: &Tensor<1>| x.clone().cast(FloatDType::F32);
    let wide_x = x.clone().cast(FloatDType::F32);
    assert_rounded_once(
        read(rms_norm(x.clone(), weight.clone(), 1e-5)),
        read(rms_norm(wide_x.clone(), wide(&weight), 1e-5)),
    );
    let y = read(layer_norm(wide_x, wide(&weight), Some(wide(&bias)), 1e-5));
    assert_rounded_once(read(layer_norm(x, weight, Some(bias), 1e-5)), y);
}

#[test]
fn dropout_keeps_the_mean_in_16_bits() {
    let device = Device::flex();
    let ones = bf16(&[1.0; 64], [64], &device);
    let key = DropoutKey(Philox::new(3));
    // 1 / 0.9 rounds to the nearest bfloat16, not to the product with a rounded factor, which is
    // off by 2 ulp.
    let expected = read(Tensor::<1>::from_data(TensorData::from([1.0 / 0.9_f32]), &device).cast(FloatDType::BF16))[0];
    let kept: Vec<f64> = read(dropout_reference(ones, 0.1, key)).into_iter().filter(|y| *y != 0.0).collect();
    assert!(kept.len() > 40 && kept.iter().all(|y| *y == expected), "{kept:?}");
}

#[test]
fn a_common_ids_gradient_does_not_stall() {
    let device = Device::flex().autodiff();
    let (v, c, n) = (3, 2, 4096);
    let table = bf16(&values(v * c), [v, c], &device).require_grad();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(vec![1_i64; n], [1, n]), &device.clone().without_autodiff());
    let gradients = embedding(table.clone(), ids).cast(FloatDType::F32).sum().backward();
    let gradient = read(table.grad(&gradients).expect("the table was used"));
    assert_eq!(gradient, [0.0, 0.0, 4096.0, 4096.0, 0.0, 0.0]);
}

/// Compares the output of `f` and the gradients of its inputs in bfloat16 with those in float32 on
/// the same inputs: they differ by roundings.
fn assert_close_to_float32<const N: usize>(shapes: [[usize; 3]; N], f: impl Fn([Tensor<3>; N]) -> Tensor<3>) {
    let device = Device::flex().autodiff();
    let run = |dtype: FloatDType| {
        let mut key = 20;
        let leaves = shapes.map(|shape| {
            key += 1;
            let values = Philox::new(key).normal(shape.iter().product(), 0.7);
            bf16(&values, shape, &device).cast(dtype).detach().require_grad()
        });
        let y = f(leaves.clone());
        assert_eq!(FloatDType::from(y.dtype()), dtype, "the output has the dtype of the inputs");
        let weights = Philox::new(5).normal(y.shape().num_elements(), 1.0);
        let weights = bf16(&weights, y.dims(), &device).cast(FloatDType::F32);
        let gradients = (y.clone().cast(FloatDType::F32) * weights).sum().backward();
        let of_leaf = |leaf: Tensor<3>| {
            let gradient = leaf.grad(&gradients).expect("every input was used");
            assert_eq!(FloatDType::from(gradient.dtype()), dtype, "a gradient has the dtype of its tensor");
            read(gradient)
        };
        let mut found = vec![read(y)];
        found.extend(leaves.map(of_leaf));
        found
    };
    for (which, (narrow, wide)) in run(FloatDType::BF16).iter().zip(run(FloatDType::F32)).enumerate() {
        let largest = wide.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        for (i, (narrow, wide)) in narrow.iter().zip(&wide).enumerate() {
            assert!((narrow - wide).abs() <= largest / 64.0, "tensor {which}, element {i}: {narrow}, not {wide}");
        }
    }
}

#[test]
fn linear_layers_are_close_to_float32() {
    let matrix = |x: Tensor<3>| -> Tensor<2> {
        let [_, o, i] = x.dims();
        x.reshape([o, i])
    };
    let bias = |x: Tensor<3>| Some(x.flatten::<1>(0, 2));
    let shapes = [[2, 7, 19], [1, 10, 19], [1, 1, 10]];
    assert_close_to_float32(shapes, |[x, w, b]| linear(x, matrix(w), bias(b)));
    assert_close_to_float32([shapes[0], shapes[1]], |[x, w]| linear(x, matrix(w), None));
    assert_close_to_float32([shapes[0], [1, 19, 10]], |[x, w]| linear(x, matrix(w).transpose(), None));
    let with_residual = [shapes[0], shapes[1], shapes[2], [2, 7, 10]];
    assert_close_to_float32(with_residual, |[x, w, b, r]| linear_residual(x, matrix(w), bias(b), r));
    let kind = Activation::GeluTanh;
    assert_close_to_float32(shapes, |[x, w, b]| linear_activation(x, matrix(w), bias(b), kind));
    assert_close_to_float32(shapes, |[x, w, b]| linear_of_activation(x, kind, matrix(w), bias(b)));
    assert_close_to_float32(shapes, |[x, w, b]| linear_glu(x, matrix(w), bias(b), Activation::Silu));
    let gated = [[2, 7, 38], shapes[1], shapes[2]];
    assert_close_to_float32(gated, |[x, w, b]| linear_of_glu(x, Activation::Silu, matrix(w), bias(b)));
}

#[test]
fn other_operations_are_close_to_float32() {
    let device = Device::flex();
    assert_close_to_float32([[2, 5, 14]], |[x]| dropout(x, 0.3, DropoutKey(Philox::new(3))));
    assert_close_to_float32([[2, 5, 14]], |[x]| {
        let [a, b] = split(x, [5, 9]);
        Tensor::cat(vec![b, a], 2)
    });
    assert_close_to_float32([[3, 5, 26], [1, 1, 26]], |[x, w]| {
        let (y, x) = residual_rms_norm(x, w.flatten(0, 2), 1e-5);
        y.tensor + x
    });
    // Grouped queries, a window, and another number of keys than of queries.
    assert_close_to_float32([[2, 70, 12], [2, 75, 6], [2, 75, 6]], |[q, k, v]| {
        let heads = |x: Tensor<3>, heads| -> Tensor<4> {
            let [b, t, c] = x.dims();
            x.reshape([b, t, heads, c / heads])
        };
        let options = AttentionOptions { window: Some(40), ..AttentionOptions::causal(3) };
        attention(heads(q, 4), heads(k, 2), heads(v, 2), &options).reshape([2, 70, 12])
    });
    let packed = PackedHeads { groups: 3, queries_per_group: 1, head_size: 6 };
    let table = RotaryTable::new(&[1.0, 0.3, 0.1], 13, RotaryPairing::Halves, &device);
    assert_close_to_float32([[2, 13, packed.width()]], |[x]| {
        let rotary = Some((&table, &Positions::From(0)));
        packed_attention(x, packed, rotary, &AttentionOptions::causal(6)).reshape([2, 13, 18])
    });
}

#[test]
fn cross_entropy_is_close_to_float32() {
    let device = Device::flex();
    let targets = Tensor::<1, Int>::from_data(TensorData::from([3_i64, 0, 16, 5, 5]), &device);
    let mask = Tensor::<1>::from_data(TensorData::from([1.0_f32, 1.0, 0.0, 0.5, 1.0]), &device);
    for softcap in [None, Some(3.0)] {
        let options = CrossEntropyOptions { softcap, z_loss: Some(1e-3) };
        let loss = |[x, w]: [Tensor<3>; 2]| {
            let (dtype, x, w) = (FloatDType::from(x.dtype()), x.reshape([5, 7]), w.reshape([17, 7]));
            linear_cross_entropy(x, w, targets.clone(), mask.clone(), &options).reshape([1, 1, 1]).cast(dtype)
        };
        assert_close_to_float32([[1, 5, 7], [1, 17, 7]], loss);
    }
}
