//! Attaching a hand-written backward to the graph.

use bridge_kernels::vjp::{attach, attach_some};
use burn::tensor::{Device, Tensor};

use crate::common::{read, tensor};

/// `a * b` element by element, by hand.
fn product(a: Tensor<1>, b: Tensor<1>) -> Tensor<1> {
    let (inner_a, inner_b) = (a.clone().without_autodiff(), b.clone().without_autodiff());
    let output = inner_a.clone() * inner_b.clone();
    attach(output, vec![a.into_dispatch(), b.into_dispatch()], move |dy: Tensor<1>| {
        vec![(dy.clone() * inner_b).into_dispatch(), (dy * inner_a).into_dispatch()]
    })
}

fn leaf(values: &[f32]) -> Tensor<1> {
    tensor(values, [values.len()], &Device::flex().autodiff()).require_grad()
}

#[test]
fn both_inputs_get_their_gradients() {
    let (a, b) = (leaf(&[2.0, 3.0]), leaf(&[5.0, 7.0]));
    let y = product(a.clone(), b.clone());
    assert!(y.is_tracked());
    let gradients = (y * 10.0).sum().backward();
    assert_eq!(read(a.grad(&gradients).unwrap()), [50.0, 70.0]);
    assert_eq!(read(b.grad(&gradients).unwrap()), [20.0, 30.0]);
}

#[test]
fn an_input_used_twice_gets_the_sum() {
    let a = leaf(&[2.0, 3.0]);
    let y = product(a.clone(), a.clone());
    let y = product(y, a.clone());
    let gradients = y.sum().backward();
    assert_eq!(read(a.grad(&gradients).unwrap()), [12.0, 27.0], "3 a^2");
}

#[test]
fn untracked_and_plain_inputs_are_constants() {
    let a = leaf(&[2.0, 3.0]);
    let constant = tensor(&[5.0, 7.0], [2], &Device::flex().autodiff());
    let plain = tensor(&[11.0, 13.0], [2], &Device::flex());
    let y = product(product(a.clone(), constant.clone()), plain.clone());
    assert_eq!(read(y.clone()), [110.0, 273.0]);
    let gradients = y.sum().backward();
    assert_eq!(read(a.grad(&gradients).unwrap()), [55.0, 91.0]);
    assert!(constant.grad(&gradients).is_none());
    // The tracked input may come second, after a plain one.
    let gradients = product(plain, a.clone()).sum().backward();
    assert_eq!(read(a.grad(&gradients).unwrap()), [11.0, 13.0]);
}

#[test]
fn without_autodiff_or_tracked_inputs_nothing_is_recorded() {
    let plain = tensor(&[2.0], [1], &Device::flex());
    let y = product(plain.clone(), plain);
    assert!(!y.is_autodiff());
    let constant = tensor(&[2.0], [1], &Device::flex().autodiff());
    let y = product(constant.clone(), constant);
    assert!(y.is_autodiff() && !y.is_tracked());
}

#[test]
fn a_missing_gradient_is_left_out() {
    let (a, b) = (leaf(&[2.0]), leaf(&[3.0]));
    let inputs = vec![a.clone().into_dispatch(), b.clone().into_dispatch()];
    let output = a.clone().without_autodiff();
    let y = attach_some(output, inputs, |dy: Tensor<1>| vec![Some(dy.into_dispatch()), None]);
    let gradients = y.sum().backward();
    assert_eq!(read(a.grad(&gradients).unwrap()), [1.0]);
    assert!(b.grad(&gradients).is_none());
}
