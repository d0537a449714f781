//! Activations, plain and gated.

use bridge_kernels::activation::{
    Activation, GatedUnit, XieluParameters, activation, glu, glu_reference, reference, xielu,
};
use burn::tensor::{Device, Tensor};

use crate::common::{Case, assert_close, assert_same_on_any_threads, read, run_all, tensor, values, wide};
use crate::plain;

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
        for n in [1, 67, 131] {
            Case {
                name: &format!("{kind:?} of {n}"),
                inputs: vec![values(1, n).iter().map(|x| 3.0 * x).collect()],
                fast: &|t| activation(t[0].clone(), kind),
                reference: &|t| reference(t[0].clone(), kind),
                plain: &|v| plain::activation(&v[0], kind),
            }
            .check();
        }
        let (b, t, f) = (2, 3, 17);
        for unit in units(kind) {
            Case {
                name: &format!("{unit:?}"),
                inputs: vec![values(2, b * t * 2 * f)],
                fast: &|x| glu(x[0].clone().reshape([b, t, 2 * f]), unit).reshape([b * t * f]),
                reference: &|x| glu_reference(x[0].clone().reshape([b, t, 2 * f]), unit).reshape([b * t * f]),
                plain: &|v| plain::glu(&v[0], f, unit),
            }
            .check();
        }
    }
}

#[test]
fn xielu_has_gradients_of_its_slopes() {
    const BETA: f32 = 0.5;
    for (n, eps) in [(1, -1e-6_f32), (131, -1e-6), (67, -0.3)] {
        let parameters = |t: &[Tensor<1>]| {
            let fixed = |value: f32| tensor(&[value], [1], &Device::flex());
            let device = t[0].device();
            let fixed = |value| Tensor::from_data(fixed(value).into_data(), &device);
            XieluParameters { alpha_p: t[1].clone(), alpha_n: t[2].clone(), beta: fixed(BETA), eps: fixed(eps) }
        };
        Case {
            name: &format!("xIELU of {n}, eps {eps}"),
            inputs: vec![values(1, n).iter().map(|x| 3.0 * x).collect(), vec![0.2], vec![-1.1]],
            fast: &|t| xielu(t[0].clone(), &parameters(t)).tensor,
            reference: &|t| xielu::reference(t[0].clone(), &parameters(t)),
            plain: &|v| {
                let softplus = |x: f64| x.exp().ln_1p();
                let (beta, eps) = (f64::from(BETA), f64::from(eps));
                let (rise, fall) = (softplus(v[1][0]), beta + softplus(v[2][0]));
                let value = |x: &f64| match *x > 0.0 {
                    true => rise * x * x + beta * x,
                    false => fall * (x.min(eps).exp_m1() - x) + beta * x,
                };
                v[0].iter().map(value).collect()
            },
        }
        .check();
    }
}

/// Gated units without limits, with one of them, with both, and with a bound of the gate of its
/// own; the clamps are well within the values.
fn units(activation: Activation) -> [GatedUnit; 5] {
    let of = |clamp, linear_offset| GatedUnit { clamp, linear_offset, ..activation.into() };
    let apart = GatedUnit { gate_clamp: Some(0.6), ..of(Some(0.4), 0.0) };
    [activation.into(), of(Some(0.4), 0.0), of(None, -0.7), of(Some(0.4), 1.0), apart]
}

#[test]
fn a_clamp_stops_the_gradient_beyond_it_and_no_bound_hides_nan() {
    let unit = GatedUnit { clamp: Some(2.0), linear_offset: 1.0, ..Activation::Relu.into() };
    // Gates, then the linear half: within, at the bound, beyond it on either side, not a number.
    let x = [1.0, 2.0, 3.0, -9.0, f32::NAN, 1.5, 1.0, 5.0, -5.0, 2.0, 1.0, f32::NAN];
    let x = tensor(&x, [1, 1, 12], &Device::flex().autodiff()).require_grad();
    let y = glu(x.clone(), unit);
    let slopes = read(x.grad(&y.clone().sum().backward()).unwrap());
    let y = read(y);
    assert_eq!(y[..4], [2.0, 6.0, -2.0, 0.0]);
    assert!(y[4].is_nan() && y[5].is_nan(), "{y:?}");
    assert_eq!(slopes[..4], [2.0, 3.0, 0.0, 0.0]);
    assert_eq!(slopes[6..10], [1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn each_element_is_accurate_over_the_whole_range() {
    let x: Vec<f32> = (-24_000..=24_000).map(|i| i as f32 / 2000.0).collect();
    for kind in KINDS {
        let y = read(activation(tensor(&x, [x.len()], &Device::flex()), kind));
        for (x, y) in x.iter().zip(y) {
            let expected = plain::activation_of(f64::from(*x), kind);
            assert!(
                (f64::from(y) - expected).abs() <= 2e-6 * expected.abs() + 1e-9,
                "{kind:?}({x}) = {y}, not {expected}"
            );
        }
    }
}

#[test]
fn special_values_stay_special() {
    for kind in KINDS {
        let x = [f32::NAN, f32::INFINITY, 0.0, -1e30];
        let y = read(activation(tensor(&x, [4], &Device::flex()), kind));
        assert!(y[0].is_nan(), "{kind:?}(NaN) = {}", y[0]);
        assert_eq!((y[1], y[2].abs(), y[3].abs()), (f32::INFINITY, 0.0, 0.0), "{kind:?}");
    }
}

#[test]
fn views_and_empty_tensors() {
    let device = Device::flex();
    let x = tensor(&values(1, 3 * 5), [3, 5], &device).transpose();
    let expected = plain::activation(&wide(&read(x.clone())), Activation::Silu);
    assert_close("transposed", &read(activation(x, Activation::Silu)), &expected, 2e-6);
    assert_eq!(glu(tensor(&[], [0, 3, 4], &device), Activation::Silu).dims(), [0, 3, 2]);
}

#[test]
fn the_same_on_any_number_of_threads() {
    let x = [values(1, 50_002)];
    assert_same_on_any_threads("gelu", || run_all(&x, |t| activation(t[0].clone(), Activation::Gelu)));
    assert_same_on_any_threads("swiglu", || {
        run_all(&x, |t| glu(t[0].clone().reshape([1, 23, 2174]), Activation::Silu).reshape([25_001]))
    });
}

#[test]
#[should_panic(expected = "even last dimension, got 3")]
fn an_odd_gate_is_named() {
    glu(tensor(&[0.0; 3], [1, 1, 3], &Device::flex()), Activation::Silu);
}
