//! The 16-bit paths, which run the references: inputs and outputs in bfloat16, arithmetic in
//! float32, rounded once.

use bridge_kernels::dropout::reference as dropout_reference;
use bridge_kernels::{Activation, DropoutKey, Philox, activation, embedding, glu, layer_norm, rms_norm};
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
