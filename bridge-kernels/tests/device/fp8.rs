//! Products of 8-bit operands: the form of plain operations, which devices take, casts to the same values as the one on the CPU.

use std::sync::Arc;

use bridge_kernels::fp8::reference;
use bridge_kernels::{Fp8Format, Fp8Pass, Fp8Rule, Fp8Scaling, OperandMaxima, fp8_linear};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, device, tensor, values};

/// A pass whose scales, of input, weight and gradient, are on a device.
fn pass(rule: Fp8Rule, device: &Device) -> Fp8Pass {
    let scales = || Tensor::from_data([96.0_f32, 90.0, 3000.0], &device.clone().without_autodiff());
    Fp8Pass { rule, scales: (rule.scaling == Fp8Scaling::Delayed).then(scales), maxima: None }
}

#[test]
fn outputs_and_gradients() {
    for (scaling, gradient, weight_gradient) in [
        (Fp8Scaling::Current, Fp8Format::E5M2, true),
        (Fp8Scaling::Delayed, Fp8Format::E4M3, false),
        (Fp8Scaling::Microscaling, Fp8Format::E4M3, true),
        (Fp8Scaling::Blockwise, Fp8Format::E5M2, true),
    ] {
        let rule = Fp8Rule { gradient, scaling, weight_gradient };
        for [n, i, o] in [[1, 3, 2], [37, 130, 65]] {
            let shaped = |x: &[Tensor<1>]| -> (Tensor<2>, Tensor<2>, Option<Tensor<1>>) {
                (x[0].clone().reshape([n, i]), x[1].clone().reshape([o, i]), Some(x[2].clone()))
            };
            Case {
                name: &format!("{scaling:?} of {n} x {i} x {o}"),
                inputs: vec![values(1, n * i), values(2, o * i), values(3, o)],
                fused: &|x, device| {
                    let (x, weight, bias) = shaped(x);
                    fp8_linear(x, weight, bias, &pass(rule, device)).reshape([n * o])
                },
                reference: &|x, device| {
                    let (x, weight, bias) = shaped(x);
                    reference(x, weight, bias, &pass(rule, device)).reshape([n * o])
                },
            }
            .check();
        }
    }
}

#[test]
fn magnitudes_are_those_of_the_values_on_the_device() {
    let rule = Fp8Rule { gradient: Fp8Format::E5M2, scaling: Fp8Scaling::Delayed, weight_gradient: true };
    let [n, i, o] = [37, 130, 65];
    let noted = |device: Device| {
        let maxima = Arc::new(OperandMaxima::default());
        let pass = Fp8Pass { maxima: Some(Arc::clone(&maxima)), ..pass(rule, &device) };
        let device = device.autodiff();
        let x = tensor(&values(1, n * i), [n, i], &device).require_grad();
        let weight = tensor(&values(2, o * i), [o, i], &device).require_grad();
        let dy = tensor(&values(4, n * o), [n, o], &device);
        (fp8_linear(x, weight, None, &pass) * dy).sum().backward();
        OperandMaxima::take_all([maxima.as_ref()])
    };
    assert_eq!(noted(device()), noted(Device::flex()));
}
