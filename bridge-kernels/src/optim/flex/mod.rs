//! Optimizer arithmetic on Flex, in place if the memory is exclusive.

pub(super) mod low_precision;

use burn::tensor::Tensor;
use half::bf16;

use super::cpu as kernel;
use super::steps::{AdamWConstants, AdamWState, UpdateStep};
use crate::cpu::element::Element;
use crate::flex::{Typed, Values, by_element, tensor};

/// The tensor's elements, without a copy if the memory is exclusive.
fn take<E: Element>(x: Tensor<1>) -> Vec<E> {
    Typed::from_tensor(&x).map(|values| (values, drop(x)).0.into_vec()).expect("the caller asked whether it is plain")
}

/// True if all are float32 tensors on Flex outside any graph, as the updates below require.
pub(crate) fn all_plain(tensors: &[&Tensor<1>]) -> bool {
    tensors.iter().all(|x| !x.is_autodiff() && Values::from_tensor(x).is_some())
}

/// True for a bfloat16 tensor on Flex outside any graph.
pub(crate) fn is_bfloat16(x: &Tensor<1>) -> bool {
    !x.is_autodiff() && Typed::<bf16>::from_tensor(x).is_some()
}

/// True for a gradient of float32 or bfloat16 on Flex outside any graph, which updates and sums
/// read as it is.
pub(crate) fn reads(gradient: &Tensor<1>) -> bool {
    !gradient.is_autodiff() && by_element!(gradient, E => Typed::<E>::from_tensor(gradient).map(|_| ())).is_some()
}

fn owned<E: Element>(values: Vec<E>) -> Tensor<1> {
    let len = values.len();
    tensor(values, [len])
}

/// See [`crate::optim::adamw_rounded`]: a previous value in bfloat16 is overwritten by the new one.
/// Only for a state that is [`all_plain`] and a gradient that it [`reads`].
pub(crate) fn adamw(
    state: AdamWState,
    gradient: &Tensor<1>,
    step: AdamWConstants,
    previous: Option<Tensor<1>>,
) -> (AdamWState, Option<Tensor<1>>) {
    let AdamWState { parameter, exp_avg, exp_avg_sq } = state;
    let (mut parameter, mut exp_avg, mut exp_avg_sq) = (take(parameter), take(exp_avg), take(exp_avg_sq));
    let mut rounded = previous.map(take::<bf16>);
    by_element!(gradient, E => {
        let gradient = Typed::<E>::contiguous_of(gradient).expect("it is read");
        match &mut rounded {
            Some(rounded) => {
                let state = [&mut parameter, &mut exp_avg, &mut exp_avg_sq].map(Vec::as_mut_slice);
                kernel::adamw_rounded(state, gradient.slice(), rounded, step);
            }
            None => kernel::adamw(&mut parameter, &mut exp_avg, &mut exp_avg_sq, gradient.slice(), step),
        }
        Some(())
    });
    let state = AdamWState { parameter: owned(parameter), exp_avg: owned(exp_avg), exp_avg_sq: owned(exp_avg_sq) };
    (state, rounded.map(owned))
}

/// See [`crate::optim::sgd`]. Only for tensors that are [`all_plain`].
pub(crate) fn sgd(
    parameter: Tensor<1>,
    momentum: Tensor<1>,
    gradient: &Tensor<1>,
    momentum_factor: f64,
    step: &UpdateStep<'_>,
) -> (Tensor<1>, Tensor<1>) {
    let gradient = Values::contiguous_of(gradient).expect("it is plain");
    let (mut parameter, mut momentum) = (take(parameter), take(momentum));
    kernel::sgd(&mut parameter, &mut momentum, gradient.slice(), momentum_factor, step);
    (owned(parameter), owned(momentum))
}

/// See [`crate::optim::sum_of_squares`].
pub(crate) fn sum_of_squares(x: &Tensor<1>) -> Option<f64> {
    by_element!(x, E => Some(kernel::sum_of_squares(Typed::<E>::contiguous_of(x)?.slice())))
}

/// See [`crate::optim::count_zeros`].
pub(crate) fn count_zeros(x: &Tensor<1>) -> Option<u64> {
    by_element!(x, E => Some(kernel::count_zeros(Typed::<E>::contiguous_of(x)?.slice())))
}

/// See [`crate::optim::accumulate`]. Only for a sum that is [`all_plain`] and a gradient that it
/// [`reads`].
pub(crate) fn accumulate(accumulated: Tensor<1>, gradient: &Tensor<1>) -> Tensor<1> {
    let mut sum = take(accumulated);
    by_element!(gradient, E => {
        kernel::add_assign(&mut sum, Typed::<E>::contiguous_of(gradient).expect("it is read").slice());
        Some(())
    });
    owned(sum)
}
