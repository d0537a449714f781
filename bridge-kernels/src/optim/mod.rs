//! Optimizer arithmetic on flat tensors: one update, squared norms, in-place accumulation.

use burn::tensor::Tensor;

use crate::fast;

/// Constants of one AdamW step for one parameter group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWStep {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Weight decay of this group.
    pub weight_decay: f64,
    /// True for AdamW (decay applied to the parameter), false for L2 in the gradient.
    pub decoupled: bool,
    /// Number of this step, from 1, for the bias correction.
    pub step: u64,
    /// Factor on the gradient: clipping, loss scale and accumulation in one.
    pub gradient_scale: f64,
}

/// Constants of an AdamW step, rounded to float32 once: all kernels compute with the same.
#[derive(Clone, Copy)]
pub(crate) struct AdamWConstants {
    pub gradient_scale: f32,
    /// Factor on the parameter: decoupled decay.
    pub keep: f32,
    /// Share of the parameter in the gradient: decay that is not decoupled.
    pub l2: f32,
    pub beta1: f32,
    pub one_minus_beta1: f32,
    pub beta2: f32,
    pub one_minus_beta2: f32,
    pub root_correction2: f32,
    pub epsilon: f32,
    pub step_size: f32,
}

impl AdamWConstants {
    pub fn new(step: &AdamWStep) -> Self {
        let n = i32::try_from(step.step).unwrap_or(i32::MAX);
        let (keep, l2) = match step.decoupled {
            true => (1.0 - step.lr * step.weight_decay, 0.0),
            false => (1.0, step.weight_decay),
        };
        Self {
            gradient_scale: step.gradient_scale as f32,
            keep: keep as f32,
            l2: l2 as f32,
            beta1: step.beta1 as f32,
            one_minus_beta1: (1.0 - step.beta1) as f32,
            beta2: step.beta2 as f32,
            one_minus_beta2: (1.0 - step.beta2) as f32,
            root_correction2: (1.0 - step.beta2.powi(n)).sqrt() as f32,
            epsilon: step.epsilon as f32,
            step_size: (step.lr / (1.0 - step.beta1.powi(n))) as f32,
        }
    }
}

/// A parameter with its two moments.
#[derive(Clone, Debug)]
pub struct AdamWState {
    /// The parameter, flat, float32.
    pub parameter: Tensor<1>,
    /// Running mean of the gradient.
    pub exp_avg: Tensor<1>,
    /// Running mean of the squared gradient.
    pub exp_avg_sq: Tensor<1>,
}

/// One AdamW update (Loshchilov and Hutter, arXiv:1711.05101), in the order of operations of `torch.optim.AdamW`.
///
/// The tensors' memory is re-used where nobody else holds it.
///
/// # Panics
/// If the sizes differ.
pub fn adamw(state: AdamWState, gradient: Tensor<1>, step: &AdamWStep) -> AdamWState {
    let sizes = [&state.parameter, &state.exp_avg, &state.exp_avg_sq, &gradient].map(|tensor| tensor.dims()[0]);
    assert!(sizes.iter().all(|size| *size == sizes[0]), "adamw: parameter, moments and gradient have sizes {sizes:?}");
    #[cfg(feature = "cube")]
    if crate::cube::adamw_applies_to(&state, &gradient) {
        return crate::cube::adamw(state, &gradient, step);
    }
    if fast::all_plain(&[&state.parameter, &state.exp_avg, &state.exp_avg_sq, &gradient]) {
        return fast::adamw(state, &gradient, step);
    }
    adamw_reference(state, gradient, step)
}

/// [`adamw`] in plain Burn operations.
pub fn adamw_reference(state: AdamWState, gradient: Tensor<1>, step: &AdamWStep) -> AdamWState {
    let AdamWState { parameter, exp_avg, exp_avg_sq } = state;
    let mut gradient = gradient * step.gradient_scale;
    let mut parameter = parameter;
    if step.weight_decay != 0.0 {
        if step.decoupled {
            parameter = parameter * (1.0 - step.lr * step.weight_decay);
        } else {
            gradient = gradient + parameter.clone() * step.weight_decay;
        }
    }
    let exp_avg = exp_avg * step.beta1 + gradient.clone() * (1.0 - step.beta1);
    let exp_avg_sq = exp_avg_sq * step.beta2 + gradient.clone() * gradient * (1.0 - step.beta2);
    let n = i32::try_from(step.step).unwrap_or(i32::MAX);
    let correction1 = 1.0 - step.beta1.powi(n);
    let correction2 = (1.0 - step.beta2.powi(n)).sqrt();
    let denominator = exp_avg_sq.clone().sqrt() / correction2 + step.epsilon;
    let parameter = parameter - exp_avg.clone() / denominator * (step.lr / correction1);
    AdamWState { parameter, exp_avg, exp_avg_sq }
}

/// Constants of one SGD step for one parameter group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// Learning rate.
    pub lr: f64,
    /// Momentum factor.
    pub momentum: f64,
    /// L2 weight decay of this group.
    pub weight_decay: f64,
    /// Factor on the gradient.
    pub gradient_scale: f64,
}

/// One SGD update with momentum, as `torch.optim.SGD` (dampening 0): returns parameter and momentum buffer.
///
/// The tensors' memory is re-used where nobody else holds it.
///
/// # Panics
/// If the sizes differ.
pub fn sgd(parameter: Tensor<1>, momentum: Tensor<1>, gradient: Tensor<1>, step: &SgdStep) -> (Tensor<1>, Tensor<1>) {
    let sizes = [&parameter, &momentum, &gradient].map(|tensor| tensor.dims()[0]);
    assert!(sizes.iter().all(|size| *size == sizes[0]), "sgd: parameter, momentum and gradient have sizes {sizes:?}");
    if fast::all_plain(&[&parameter, &momentum, &gradient]) {
        return fast::sgd(parameter, momentum, &gradient, step);
    }
    sgd_reference(parameter, momentum, gradient, step)
}

/// [`sgd`] in plain Burn operations.
pub fn sgd_reference(
    parameter: Tensor<1>,
    momentum: Tensor<1>,
    gradient: Tensor<1>,
    step: &SgdStep,
) -> (Tensor<1>, Tensor<1>) {
    let mut gradient = gradient * step.gradient_scale;
    if step.weight_decay != 0.0 {
        gradient = gradient + parameter.clone() * step.weight_decay;
    }
    let momentum = momentum * step.momentum + gradient;
    (parameter - momentum.clone() * step.lr, momentum)
}

/// Sum of squares of all elements, in float64 (on GPUs, of sums of blocks in float32).
pub fn sum_of_squares(x: &Tensor<1>) -> f64 {
    #[cfg(feature = "cube")]
    if let Some(sum) = crate::cube::sum_of_squares(x) {
        return sum;
    }
    fast::sum_of_squares(x).unwrap_or_else(|| sum_of_squares_reference(x))
}

/// [`sum_of_squares`] in plain code, through a copy on the host.
pub fn sum_of_squares_reference(x: &Tensor<1>) -> f64 {
    let data = x.to_data();
    match data.as_slice::<f32>() {
        Ok(values) => values.chunks(1024).map(|c| c.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>()).sum(),
        Err(_) => data.iter::<f64>().map(|v| v * v).sum(),
    }
}

/// Number of elements that are exactly zero.
pub fn count_zeros(x: &Tensor<1>) -> u64 {
    fast::count_zeros(x).unwrap_or_else(|| x.to_data().iter::<f32>().filter(|v| *v == 0.0).count() as u64)
}

/// `accumulated + gradient`, re-using the accumulator's memory where the back end can.
pub fn accumulate(accumulated: Tensor<1>, gradient: Tensor<1>) -> Tensor<1> {
    assert_eq!(accumulated.dims(), gradient.dims(), "accumulate: the sizes differ");
    if fast::all_plain(&[&accumulated, &gradient]) {
        return fast::accumulate(accumulated, &gradient);
    }
    accumulated + gradient
}
