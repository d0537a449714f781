//! Attaching a hand-written backward to the graph.

use bridge_kernels::vjp::{attach, attach_all, attach_some};
use burn::tensor::{Device, Tensor};

use crate::common::{assert_close, read, tensor, values, wide};

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

/// Rows and columns of the matrices below, and elements of the vectors.
const ROWS: usize = 5;
const COLUMNS: usize = 3;
const LENGTH: usize = 7;

/// Six inputs, flat: vectors `a`, `b`, `c`, matrices `d`, `e`, a scalar `f`.
fn six(tracked: [bool; 6]) -> [Tensor<1>; 6] {
    let sizes = [LENGTH, LENGTH, LENGTH, ROWS * COLUMNS, ROWS * COLUMNS, 1];
    std::array::from_fn(|i| {
        let input = tensor(&values(1 + i as u64, sizes[i]), [sizes[i]], &Device::flex().autodiff());
        if tracked[i] { input.require_grad() } else { input }
    })
}

type Outputs = (Tensor<1>, Tensor<2>, Tensor<1>);

/// `a b + c`, `d e f`, `c f` in plain operations.
fn plain_outputs([a, b, c, d, e, f]: [Tensor<1>; 6]) -> Outputs {
    let matrix = |x: Tensor<1>| x.reshape([ROWS, COLUMNS]);
    (a * b + c.clone(), matrix(d) * matrix(e) * f.clone().reshape([1, 1]), c * f)
}

/// The outputs computed by one attached operation.
fn attached_outputs(inputs: [Tensor<1>; 6]) -> Outputs {
    let inner = inputs.clone().map(Tensor::without_autodiff);
    let (x, y, z) = plain_outputs(inner.clone());
    let outputs = vec![x.into_dispatch(), y.into_dispatch(), z.into_dispatch()];
    let attached = attach_all(outputs, inputs.map(Tensor::into_dispatch).into(), move |gradients| {
        let [a, b, c, d, e, f] = inner;
        let [dx, dy, dz] = <[_; 3]>::try_from(gradients).expect("one for each output");
        let zeros = || c.zeros_like();
        let vector = |gradient: Option<_>| gradient.map_or_else(zeros, Tensor::from_dispatch);
        let (dx, dz) = (vector(dx), vector(dz));
        let dy = dy.map_or_else(|| d.zeros_like(), |dy| Tensor::<2>::from_dispatch(dy).reshape([ROWS * COLUMNS]));
        let df = (dy.clone() * d.clone() * e.clone()).sum() + (dz.clone() * c.clone()).sum();
        let gradients =
            [dx.clone() * b, dx.clone() * a, dx + dz * f.clone(), dy.clone() * e * f.clone(), dy * d * f, df];
        gradients.map(|gradient| Some(gradient.into_dispatch())).into()
    });
    let [x, y, z] = <[_; 3]>::try_from(attached).expect("as many as were given");
    (Tensor::from_dispatch(x), Tensor::from_dispatch(y), Tensor::from_dispatch(z))
}

/// Gradients of the six inputs for a loss on the outputs that are `used`; an input used twice, too.
fn gradients(operation: fn([Tensor<1>; 6]) -> Outputs, tracked: [bool; 6], used: [bool; 3]) -> Vec<Option<Vec<f32>>> {
    let inputs = six(tracked);
    let (x, y, z) = operation(inputs.clone());
    let flat = [x, y.reshape([ROWS * COLUMNS]), z];
    let losses = flat.into_iter().zip(used).filter(|(_, used)| *used).map(|(output, _)| {
        let weights = tensor(&values(11, output.dims()[0]), output.dims(), &Device::flex());
        (output.clone() * output * weights).sum()
    });
    let loss = losses.reduce(|a, b| a + b).expect("an output is used") + inputs[0].clone().sum();
    let gradients = loss.backward();
    inputs.iter().map(|input| input.grad(&gradients).map(read)).collect()
}

#[test]
fn six_inputs_and_three_outputs_have_the_gradients_of_plain_operations() {
    let all = [true; 6];
    for (tracked, used) in [
        (all, [true; 3]),
        (all, [false, true, false]),
        (all, [true, false, true]),
        ([true, false, false, false, true, true], [true; 3]),
        ([true, false, true, false, false, false], [false, false, true]),
        ([true, false, false, false, false, true], [false, true, false]),
    ] {
        let found = gradients(attached_outputs, tracked, used);
        let expected = gradients(plain_outputs, tracked, used);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let what = format!("input {i} of {tracked:?}, outputs {used:?}");
            match (found, expected) {
                (Some(found), Some(expected)) => assert_close(&what, found, &wide(expected), 1e-6),
                // Plain operations have no gradient for inputs that the loss does not depend on; a
                // pullback may have zeros.
                (Some(found), None) => assert!(tracked[i] && found.iter().all(|v| *v == 0.0), "{what}: {found:?}"),
                (found, expected) => assert_eq!(found, expected, "{what}"),
            }
        }
    }
}

#[test]
fn any_number_of_inputs_get_their_gradients() {
    for count in [1, 4, 5, 8, 13] {
        let inputs: Vec<Tensor<1>> = (0..count).map(|i| leaf(&[1.0 + i as f32])).collect();
        let operands = inputs.iter().map(|input| input.clone().into_dispatch()).collect();
        let sum = tensor(&[(count * (count + 1) / 2) as f32], [1], &Device::flex());
        let sum = attach(sum, operands, move |dy: Tensor<1>| {
            (0..count).map(|i| (dy.clone() * (i + 2) as f32).into_dispatch()).collect()
        });
        let gradients = (sum * 3.0).sum().backward();
        for (i, input) in inputs.iter().enumerate() {
            assert_eq!(read(input.grad(&gradients).unwrap()), [3.0 * (i + 2) as f32], "input {i} of {count}");
        }
    }
}

#[test]
fn without_tracked_inputs_no_output_is_recorded() {
    let (x, y, z) = attached_outputs(six([false; 6]));
    assert!(x.is_autodiff() && !x.is_tracked() && !y.is_tracked() && !z.is_tracked());
    let (x, _, _) = attached_outputs(six([false; 6]).map(Tensor::without_autodiff));
    assert!(!x.is_autodiff());
}
