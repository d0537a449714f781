//! Activations, plain and gated.

use bridge_kernels::activation::{
    Activation, GatedUnit, XieluParameters, activation, cube, glu, glu_reference, reference, xielu,
};
use burn::tensor::Tensor;

use crate::common::{Case, device, read, tensor, values};

const KINDS: [Activation; 6] = [
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Silu,
    Activation::Relu,
    Activation::SquaredRelu,
    Activation::QuickGelu,
];

#[test]
fn outputs_and_gradients() {
    for kind in KINDS {
        Case {
            name: &format!("{kind:?}"),
            inputs: vec![values(1, 601)],
            fused: &|x, _| cube::activation(&x[0], kind).expect("it applies"),
            reference: &|x, _| reference(x[0].clone(), kind),
        }
        .check();
        let (b, t, f) = (2, 5, 37);
        let pairs = |x: &[Tensor<1>]| -> Tensor<3> { x[0].clone().reshape([b, t, 2 * f]) };
        let limited = |clamp, linear_offset| GatedUnit { clamp, linear_offset, ..kind.into() };
        let apart = GatedUnit { gate_clamp: Some(0.6), ..limited(Some(0.4), 0.0) };
        for unit in [kind.into(), limited(Some(0.4), 1.0), limited(None, -0.7), apart] {
            Case {
                name: &format!("{unit:?}"),
                inputs: vec![values(2, b * t * 2 * f)],
                fused: &|x, _| cube::glu(&pairs(x), unit).expect("it applies").reshape([b * t * f]),
                reference: &|x, _| glu_reference(pairs(x), unit).reshape([b * t * f]),
            }
            .check();
        }
    }
}

#[test]
fn xielu_has_gradients_of_its_slopes() {
    let parameters = |x: &[Tensor<1>]| {
        let fixed = |value: f32| tensor(&[value], [1], &x[0].device());
        XieluParameters { alpha_p: x[1].clone(), alpha_n: x[2].clone(), beta: fixed(0.5), eps: fixed(-0.3) }
    };
    Case {
        name: "xIELU",
        inputs: vec![values(1, 601), vec![0.2], vec![-1.1]],
        fused: &|x, _| xielu(x[0].clone(), &parameters(x)).tensor,
        reference: &|x, _| xielu::reference(x[0].clone(), &parameters(x)),
    }
    .check();
}

#[test]
fn far_from_zero() {
    let x = [-100.0, -30.0, 30.0, 100.0];
    for kind in KINDS {
        let x_tensor = tensor(&x, [4], &device().autodiff()).require_grad();
        let y = cube::activation(&x_tensor, kind).expect("it applies");
        let gradients = y.clone().sum().backward();
        let slope = read(x_tensor.grad(&gradients).expect("it is tracked"));
        let square = kind == Activation::SquaredRelu;
        for (i, (y, slope)) in read(y).into_iter().zip(slope).enumerate() {
            let (value, rise) = match (x[i] > 0.0, square) {
                (true, true) => (x[i] * x[i], 2.0 * x[i]),
                (true, false) => (x[i], 1.0),
                (false, _) => (0.0, 0.0),
            };
            assert!((y - value).abs() <= 1e-6 * value.abs() + 1e-6, "{kind:?} of {} is {y}", x[i]);
            assert!((slope - rise).abs() <= 1e-6 * rise.abs() + 1e-6, "slope of {kind:?} at {} is {slope}", x[i]);
        }
    }
}

#[test]
fn the_public_functions_take_the_kernels() {
    let x = tensor(&values(3, 3 * 7 * 10), [3, 7, 10], &device()).swap_dims(0, 1);
    let y = cube::activation(&x, Activation::Silu).expect("it applies");
    assert_eq!(read(activation(x.clone(), Activation::Silu)), read(y));
    let y = cube::glu(&x, Activation::Silu).expect("it applies");
    assert_eq!(read(glu(x, Activation::Silu)), read(y));
}
