//! The linear layer whose weight gradient comes later.

use std::sync::mpsc::channel;

use bridge_kernels::{WeightGradient, linear, linear_deferred};
use burn::tensor::{Device, Tensor};

use crate::common::{assert_close, read, tensor, values, wide};

struct Operands {
    x: Tensor<3>,
    weight: Tensor<2>,
    bias: Tensor<1>,
}

fn operands() -> Operands {
    let device = Device::flex().autodiff();
    Operands {
        x: tensor(&values(1, 2 * 5 * 7), [2, 5, 7], &device).require_grad(),
        weight: tensor(&values(2, 11 * 7), [11, 7], &device).require_grad(),
        bias: tensor(&values(3, 11), [11], &device).require_grad(),
    }
}

#[test]
fn the_weight_gradient_is_left_out_of_backward_and_given_later() {
    let cotangent = tensor(&values(4, 2 * 5 * 11), [2, 5, 11], &Device::flex().autodiff());
    let Operands { x, weight, bias } = operands();
    let y = linear(x.clone(), weight.clone(), Some(bias.clone()));
    let output = read(y.clone());
    let gradients = (y * cotangent.clone()).sum().backward();
    let expected = [x.grad(&gradients).map(read), weight.grad(&gradients).map(read), bias.grad(&gradients).map(read)];
    let expected = expected.map(|gradient| wide(&gradient.expect("all are tracked")));

    let Operands { x, weight, bias } = operands();
    let (deferred, later) = channel::<WeightGradient>();
    let y = linear_deferred(x.clone(), weight.clone(), Some(bias.clone()), move |gradient| {
        deferred.send(gradient).expect("the test waits for it");
    });
    assert_eq!(read(y.clone()), output);
    assert!(later.try_recv().is_err(), "nothing is deferred before backward");
    let gradients = (y * cotangent).sum().backward();
    assert!(weight.grad(&gradients).is_none());
    let deferred = later.recv().expect("backward put it off");
    assert_close("x", &read(x.grad(&gradients).expect("tracked")), &expected[0], 2e-6);
    assert_close("weight", &read(deferred()), &expected[1], 2e-6);
    assert_close("bias", &read(bias.grad(&gradients).expect("tracked")), &expected[2], 2e-6);
}

#[test]
fn a_frozen_weight_puts_nothing_off() {
    let Operands { x, weight, .. } = operands();
    let (deferred, later) = channel::<WeightGradient>();
    let frozen = weight.without_autodiff();
    let y = linear_deferred(x.clone(), frozen.autodiff(), None, move |gradient| {
        deferred.send(gradient).expect("the test waits for it");
    });
    let gradients = y.sum().backward();
    assert!(x.grad(&gradients).is_some());
    assert!(later.recv().is_err(), "the closure was dropped without a gradient");
}
