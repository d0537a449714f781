//! Tensors that operations keep, moved from the device to the host and back: same outputs and
//! gradients, and the memory is free meanwhile.

use bridge_kernels::offload::{Devices, Kept, Moves, Offloader};
use bridge_kernels::{
    Activation, AttentionOptions, activation, attention, causal_conv, gated_rms_norm, glu, layer_norm, linear,
    linear_of_glu, rms_norm,
};
use burn::tensor::{DType, Device, FloatDType, Tensor};

use crate::common::{assert_close, device, read, tensor, values};

// Batch, tokens, heads, head size, width, inner width.
const B: usize = 2;
const T: usize = 13;
const H: usize = 3;
const D: usize = 6;
const C: usize = H * D;
const F: usize = 23;

/// Shapes of the matrices of a layer.
const SHAPES: [[usize; 2]; 6] = [[C, C], [C, C], [C, C], [C, C], [2 * F, C], [C, F]];

/// A layer of most operations.
fn layer(x: Tensor<3>, weights: &[Tensor<2>]) -> Tensor<3> {
    let ones = |size: usize| Tensor::<1>::ones([size], (&x.device(), x.dtype()));
    let normed = rms_norm(x.clone(), ones(C), 1e-5);
    let [q, k, v] = [0, 1, 2].map(|i| linear(normed.clone(), weights[i].clone(), None).reshape([B, T, H, D]));
    let y = attention(q, k, v, &AttentionOptions::causal(D)).reshape([B, T, C]);
    let x = x.clone() + linear(y, weights[3].clone(), None);
    let normed = layer_norm(x.clone(), ones(C), Some(ones(C)), 1e-5);
    let inner = linear(normed.clone(), weights[4].clone(), Some(ones(2 * F)));
    let first = linear(glu(inner.clone(), Activation::Silu), weights[5].clone(), None);
    let again = linear_of_glu(inner, Activation::Silu, weights[5].clone(), None);
    let taps = weights[0].clone().narrow(1, 0, 3);
    let mixed = gated_rms_norm(causal_conv(normed.clone(), taps, None, None), normed.clone(), ones(C), 3, 1e-5);
    x + first + again + mixed + activation(normed, Activation::GeluTanh)
}

/// Output and gradients of the input and the matrices, of two layers, each in a scope if there is
/// an offloader.
fn results(dtype: FloatDType, device: &Device, offloader: Option<&Offloader>) -> Vec<Vec<f32>> {
    let leaf = |seed: u64, shape: [usize; 2]| {
        let x: Vec<f32> = values(seed, shape.iter().product()).iter().map(|value| 0.4 * value).collect();
        tensor(&x, shape, device).cast(dtype).require_grad()
    };
    let weights: Vec<Tensor<2>> = SHAPES.into_iter().enumerate().map(|(i, shape)| leaf(i as u64, shape)).collect();
    let x = leaf(20, [B * T, C]);
    let mut y: Tensor<3> = (x.clone() * 1.5).reshape([B, T, C]);
    for _ in 0..2 {
        let work = || layer(y.clone(), &weights);
        y = match offloader {
            Some(offloader) => offloader.scope(work),
            None => work(),
        };
    }
    if let Some(offloader) = offloader {
        offloader.settle();
    }
    let dy = tensor(&values(21, B * T * C), [B, T, C], device).cast(dtype);
    let mut gradients = (y.clone() * dy).sum().backward();
    let mut all =
        vec![read(y.cast(FloatDType::F32)), read(x.grad_remove(&mut gradients).unwrap().cast(FloatDType::F32))];
    all.extend(weights.iter().map(|weight| read(weight.grad_remove(&mut gradients).unwrap().cast(FloatDType::F32))));
    all
}

#[test]
fn outputs_and_gradients_are_the_same() {
    let device = device().autodiff();
    let expected = results(FloatDType::F32, &device, None);
    let offloader = Offloader::new(Moves::FromElements(1), Devices::Accelerators);
    let found = results(FloatDType::F32, &device, Some(&offloader));
    for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_close(&format!("tensor {place}"), found, expected, 1e-6);
    }
    let moved = offloader.moved();
    assert!(moved.tensors >= 2 * 10, "{moved:?}");
    assert_eq!((moved.returned, moved.staying), (moved.bytes, 0), "{moved:?}");
    let counting = Offloader::new(Moves::Nothing, Devices::Accelerators);
    results(FloatDType::F32, &device, Some(&counting));
    assert_eq!(counting.moved().staying, moved.bytes);
}

/// Tensors of 16 bits with odd numbers of elements, which do not fill a word.
#[test]
fn tensors_of_16_bits_come_back_bit_for_bit() {
    let device = device();
    let offloader = Offloader::new(Moves::FromElements(1), Devices::Accelerators);
    let shapes = [(FloatDType::F16, [3, 5, 7]), (FloatDType::BF16, [1, 1, 1]), (FloatDType::F32, [2, 3, 11])];
    let shapes: Vec<_> = shapes.into_iter().filter(|(dtype, _)| device.supports_dtype(*dtype)).collect();
    for (dtype, shape) in shapes.iter().copied() {
        let count = shape.iter().product();
        let host = tensor(&values(5, count), shape, &Device::flex()).cast(dtype).into_data();
        let x = Tensor::<3>::from_data(host.clone(), (&device, DType::from(dtype)));
        // A part, whose elements are not side by side.
        let kept = offloader.scope(|| [Kept::from_tensor(&x), Kept::from_tensor(&x.clone().swap_dims(0, 2))]);
        drop(x);
        offloader.settle();
        let [x, turned] = kept.map(Kept::into_tensor::<3>);
        assert_eq!(turned.swap_dims(0, 2).into_data(), host, "{dtype:?}");
        assert_eq!(x.into_data(), host, "{dtype:?}");
    }
    assert_eq!(offloader.moved().tensors, 2 * shapes.len() as u64);
}
