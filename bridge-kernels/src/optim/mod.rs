//! Optimizer arithmetic on flat tensors: one update, squared norms, in-place accumulation.

pub(crate) mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
mod flex;
mod formats;
mod reduced;
mod steps;
mod stored;

use burn::tensor::{FloatDType, Tensor};

pub use formats::Format;
pub use reduced::{
    ReducedAdamW, ReducedFormats, adamw_magnitudes, adamw_magnitudes_reference, adamw_reduced, adamw_reduced_reference,
};
pub use steps::{AdamWState, AdamWStep, SgdStep};
pub use stored::{Master, MasterFormat, Remainders, Stored, halves};

use crate::precision::widen;

/// One AdamW update (Loshchilov and Hutter, arXiv:1711.05101), in the order of operations of `torch.optim.AdamW`.
///
/// The tensors' memory is re-used where nobody else holds it.
///
/// # Panics
/// If the sizes differ.
pub fn adamw(state: AdamWState, gradient: Tensor<1>, step: &AdamWStep) -> AdamWState {
    check_sizes(&state, &gradient);
    #[cfg(feature = "cube")]
    if cube::applies_to(&state, &gradient) {
        return cube::adamw(state, &gradient, step, None).0;
    }
    if flex::all_plain(&[&state.parameter, &state.exp_avg, &state.exp_avg_sq, &gradient]) {
        return flex::adamw(state, &gradient, step);
    }
    adamw_reference(state, gradient, step)
}

/// [`adamw`] where the model has parameters of 16 bits: the new parameter in `dtype` too, made in the same pass on GPUs. The gradient may have 16 bits.
///
/// # Panics
/// If the sizes differ.
pub fn adamw_rounded(
    state: AdamWState,
    gradient: Tensor<1>,
    step: &AdamWStep,
    dtype: FloatDType,
) -> (AdamWState, Tensor<1>) {
    check_sizes(&state, &gradient);
    #[cfg(feature = "cube")]
    if cube::applies_to(&state, &gradient) {
        let (state, rounded) = cube::adamw(state, &gradient, step, Some(dtype));
        return (state, rounded.expect("a dtype was asked for"));
    }
    let state = adamw(state, widen(gradient), step);
    let rounded = state.parameter.clone().cast(dtype);
    (state, rounded)
}

fn check_sizes(state: &AdamWState, gradient: &Tensor<1>) {
    let sizes = [&state.parameter, &state.exp_avg, &state.exp_avg_sq, gradient].map(|tensor| tensor.dims()[0]);
    assert!(sizes.iter().all(|size| *size == sizes[0]), "adamw: parameter, moments and gradient have sizes {sizes:?}");
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

/// One SGD update with momentum, as `torch.optim.SGD` (dampening 0): returns parameter and momentum buffer.
///
/// The tensors' memory is re-used where nobody else holds it.
///
/// # Panics
/// If the sizes differ.
pub fn sgd(parameter: Tensor<1>, momentum: Tensor<1>, gradient: Tensor<1>, step: &SgdStep) -> (Tensor<1>, Tensor<1>) {
    let sizes = [&parameter, &momentum, &gradient].map(|tensor| tensor.dims()[0]);
    assert!(sizes.iter().all(|size| *size == sizes[0]), "sgd: parameter, momentum and gradient have sizes {sizes:?}");
    if flex::all_plain(&[&parameter, &momentum, &gradient]) {
        return flex::sgd(parameter, momentum, &gradient, step);
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
    let mut sums = SquareSums::default();
    sums.add(x);
    sums.finish()[0]
}

/// [`sum_of_squares`] of tensors of one device, one after the other. A GPU computes them while the next ones are added, and is waited for once, at the end.
#[derive(Debug, Default)]
pub struct SquareSums {
    /// What is known; 0 for those on their way.
    sums: Vec<f64>,
    #[cfg(feature = "cube")]
    blocks: cube::BlockSums,
    /// Of which tensors sums of blocks are on their way.
    #[cfg(feature = "cube")]
    places: Vec<(usize, cube::Place)>,
}

impl SquareSums {
    /// Adds a tensor. No reference to it is kept.
    pub fn add(&mut self, x: &Tensor<1>) {
        #[cfg(feature = "cube")]
        if let Some(place) = self.blocks.add(x) {
            self.places.push((self.sums.len(), place));
            self.sums.push(0.0);
            return;
        }
        self.sums.push(flex::sum_of_squares(x).unwrap_or_else(|| sum_of_squares_reference(x)));
    }

    /// The sum of each, in the order in which they were added.
    #[must_use]
    #[cfg(feature = "cube")]
    pub fn finish(mut self) -> Vec<f64> {
        let (which, places): (Vec<usize>, Vec<cube::Place>) = self.places.into_iter().unzip();
        for (which, sum) in which.into_iter().zip(self.blocks.finish(&places)) {
            self.sums[which] = sum;
        }
        self.sums
    }

    /// The sum of each, in the order in which they were added.
    #[must_use]
    #[cfg(not(feature = "cube"))]
    pub fn finish(self) -> Vec<f64> {
        self.sums
    }
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
    flex::count_zeros(x).unwrap_or_else(|| x.to_data().iter::<f32>().filter(|v| *v == 0.0).count() as u64)
}

/// Whether updates, sums of squares and sums read a gradient of 16 bits as they read float32, in the same pass: on GPUs. Elsewhere each of them would
/// widen it first.
pub fn reads_16_bits(gradient: &Tensor<1>) -> bool {
    #[cfg(feature = "cube")]
    if gradient.dtype().size() == 2 {
        return cube::reads(gradient);
    }
    let _ = gradient;
    false
}

/// `first + second` in float32, of gradients of 16 or 32 bits: what [`accumulate`] gives for the first one's float32, to the bit.
///
/// # Panics
/// If the sizes differ.
pub fn sum_widened(first: Tensor<1>, second: Tensor<1>) -> Tensor<1> {
    assert_eq!(first.dims(), second.dims(), "sum_widened: the sizes differ");
    #[cfg(feature = "cube")]
    if let Some(sum) = cube::sum_widened(&first, &second) {
        return sum;
    }
    accumulate(widen(first), widen(second))
}

/// `accumulated + gradient`, reusing the accumulator's memory where the backend can. A gradient of 16 bits may be added to a float32 sum.
///
/// # Panics
/// If the sizes differ.
pub fn accumulate(accumulated: Tensor<1>, gradient: Tensor<1>) -> Tensor<1> {
    assert_eq!(accumulated.dims(), gradient.dims(), "accumulate: the sizes differ");
    if flex::all_plain(&[&accumulated, &gradient]) {
        return flex::accumulate(accumulated, &gradient);
    }
    #[cfg(feature = "cube")]
    if cube::can_accumulate(&accumulated, &gradient) {
        return cube::accumulate(accumulated, &gradient);
    }
    let dtype = accumulated.dtype();
    accumulated + if gradient.dtype() == dtype { gradient } else { gradient.cast(FloatDType::from(dtype)) }
}
