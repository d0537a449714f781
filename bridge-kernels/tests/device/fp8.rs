//! Products of 8-bit operands: the form of plain operations, which devices take, casts to the same values as the one on the CPU.

use bridge_kernels::fp8::reference;
use bridge_kernels::{Fp8Format, Fp8Pass, Fp8Rule, Fp8Scales, Fp8Scaling, fp8_linear};
use burn::tensor::Tensor;

use crate::common::{Case, values};

#[test]
fn outputs_and_gradients() {
    let scales = Fp8Scales { input: 96.0, weight: 90.0, gradient: 3000.0 };
    for (scaling, gradient, weight_gradient) in [
        (Fp8Scaling::Current, Fp8Format::E5M2, true),
        (Fp8Scaling::Delayed, Fp8Format::E4M3, false),
        (Fp8Scaling::Microscaling, Fp8Format::E4M3, true),
        (Fp8Scaling::Blockwise, Fp8Format::E5M2, true),
    ] {
        let pass = Fp8Pass { rule: Fp8Rule { gradient, scaling, weight_gradient }, scales, maxima: None };
        for [n, i, o] in [[1, 3, 2], [37, 130, 65]] {
            let shaped = |x: &[Tensor<1>]| -> (Tensor<2>, Tensor<2>, Option<Tensor<1>>) {
                (x[0].clone().reshape([n, i]), x[1].clone().reshape([o, i]), Some(x[2].clone()))
            };
            Case {
                name: &format!("{scaling:?} of {n} x {i} x {o}"),
                inputs: vec![values(1, n * i), values(2, o * i), values(3, o)],
                fused: &|x, _| {
                    let (x, weight, bias) = shaped(x);
                    fp8_linear(x, weight, bias, &pass).reshape([n * o])
                },
                reference: &|x, _| {
                    let (x, weight, bias) = shaped(x);
                    reference(x, weight, bias, &pass).reshape([n * o])
                },
            }
            .check();
        }
    }
}
