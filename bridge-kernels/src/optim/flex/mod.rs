//! Optimizer arithmetic on Flex, in place if the memory is exclusive.

pub(super) mod low_precision;

use burn::tensor::Tensor;

use super::cpu as kernel;
use super::steps::{AdamWConstants, AdamWState, UpdateStep};
use crate::flex::{Values, tensor};

/// The tensor's elements, without a copy if the memory is exclusive.
fn take(x: Tensor<1>) -> Vec<f32> {
    Values::from_tensor(&x).map(|values| (values, drop(x)).0.into_vec()).expect("the caller asked whether it is plain")
}

/// True if all are float32 tensors on Flex outside any graph, as the updates below require.
pub(crate) fn all_plain(tensors: &[&Tensor<1>]) -> bool {
    tensors.iter().all(|x| !x.is_autodiff() && Values::from_tensor(x).is_some())
}

fn owned(values: Vec<f32>) -> Tensor<1> {
    let len = values.len();
    tensor(values, [len])
}

/// See [`crate::optim::adamw`]. Only for what is [`all_plain`].
pub(crate) fn adamw(state: AdamWState, gradient: &Tensor<1>, step: AdamWConstants) -> AdamWState {
    let AdamWState { parameter, exp_avg, exp_avg_sq } = state;
    let gradient = Values::contiguous_of(gradient).expect("it is plain");
    let (mut parameter, mut exp_avg, mut exp_avg_sq) = (take(parameter), take(exp_avg), take(exp_avg_sq));
    kernel::adamw(&mut parameter, &mut exp_avg, &mut exp_avg_sq, gradient.slice(), step);
    AdamWState { parameter: owned(parameter), exp_avg: owned(exp_avg), exp_avg_sq: owned(exp_avg_sq) }
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
    Some(kernel::sum_of_squares(Values::contiguous_of(x)?.slice()))
}

/// See [`crate::optim::count_zeros`].
pub(crate) fn count_zeros(x: &Tensor<1>) -> Option<u64> {
    Some(kernel::count_zeros(Values::contiguous_of(x)?.slice()))
}

/// See [`crate::optim::accumulate`]. Only for tensors that are [`all_plain`].
pub(crate) fn accumulate(accumulated: Tensor<1>, gradient: &Tensor<1>) -> Tensor<1> {
    let gradient = Values::contiguous_of(gradient).expect("it is plain");
    let mut sum = take(accumulated);
    kernel::add_assign(&mut sum, gradient.slice());
    owned(sum)
}
