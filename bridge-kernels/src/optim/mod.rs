//! Optimizer arithmetic on flat tensors: one update, squared norms, in-place accumulation.

pub(crate) mod cpu;
#[cfg(feature = "cube")]
pub mod cube;
mod eigenbasis;
mod flex;
mod formats;
mod low_precision;
pub mod newton_schulz;
mod steps;
mod stored;

use burn::tensor::{DType, FloatDType, Tensor, TensorData};

pub use eigenbasis::{eigenvectors, orthogonal_factor};
pub use formats::{BlockCode, Format};
pub use low_precision::{
    LowPrecisionAdamW, LowPrecisionFormats, adamw_low_precision, adamw_low_precision_reference, adamw_magnitudes,
    adamw_magnitudes_reference,
};
pub use newton_schulz::{Polynomial, newton_schulz};
pub use steps::{AdamW, AdamWState, UpdateStep};
pub use stored::{Blocks, Master, MasterFormat, Remainders, Stored, halves};

use self::steps::AdamWConstants;
use crate::precision::{narrow, widen};

/// One AdamW update (Loshchilov and Hutter, arXiv:1711.05101), in the order of operations of
/// `torch.optim.AdamW`.
///
/// The tensors' memory is reused if it is exclusive.
///
/// # Panics
/// If the sizes differ.
pub fn adamw(state: AdamWState, gradient: Tensor<1>, rule: &AdamW, step: &UpdateStep<'_>) -> AdamWState {
    let mut updates = AdamWUpdates::default();
    let (state, _) = updates.add(state, gradient, rule, step, None);
    updates.finish();
    state
}

/// [`adamw`] where the model has parameters of 16 bits: returns the new parameter in the dtype of
/// `previous` too. On GPUs the same pass computes it, in the memory of `previous` if that is
/// exclusive. The gradient may have 16 bits.
///
/// # Panics
/// If the sizes differ.
pub fn adamw_rounded(
    state: AdamWState,
    gradient: Tensor<1>,
    rule: &AdamW,
    step: &UpdateStep<'_>,
    previous: Tensor<1>,
) -> (AdamWState, Tensor<1>) {
    let mut updates = AdamWUpdates::default();
    let (state, rounded) = updates.add(state, gradient, rule, step, Some(previous));
    updates.finish();
    (state, rounded.expect("a previous value was given"))
}

/// Updates of many tensors: [`adamw`] or [`adamw_rounded`] of each, to the bit. On GPUs several
/// tensors are updated by one launch, as in `multi_tensor_apply` of NVIDIA's apex; a launch costs
/// the host the same for one.
#[derive(Default)]
pub struct AdamWUpdates {
    #[cfg(feature = "cube")]
    waiting: cube::Updates,
}

impl std::fmt::Debug for AdamWUpdates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdamWUpdates").finish_non_exhaustive()
    }
}

impl AdamWUpdates {
    /// Adds an update: [`adamw_rounded`] where there is a previous value in 16 bits, else
    /// [`adamw`]. On GPUs the update may still be pending when its result tensors are returned:
    /// only after [`finish`](Self::finish) may these be read, or passed to an operation.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn add(
        &mut self,
        state: AdamWState,
        gradient: Tensor<1>,
        rule: &AdamW,
        step: &UpdateStep<'_>,
        previous: Option<Tensor<1>>,
    ) -> (AdamWState, Option<Tensor<1>>) {
        check_sizes(&state, &gradient, previous.as_ref());
        #[cfg(feature = "cube")]
        if cube::applies_to(&state, &gradient) {
            return self.waiting.add(state, &gradient, rule, step, previous);
        }
        let constants = AdamWConstants::new(rule, step);
        let is_plain = flex::all_plain(&[&state.parameter, &state.exp_avg, &state.exp_avg_sq]);
        let dtype = previous.as_ref().map(Tensor::dtype);
        if is_plain && flex::reads(&gradient) && previous.as_ref().is_none_or(flex::is_bfloat16) {
            return flex::adamw(state, &gradient, constants, previous);
        }
        let gradient = widen(gradient);
        let state = match is_plain && flex::reads(&gradient) {
            true => flex::adamw(state, &gradient, constants, None).0,
            false => adamw_reference(state, gradient, rule, step),
        };
        let rounded = dtype.map(|dtype| narrow(state.parameter.clone(), dtype));
        (state, rounded)
    }

    /// Launches the pending kernels. Dropping the value does so, too.
    pub fn finish(self) {}
}

fn check_sizes(state: &AdamWState, gradient: &Tensor<1>, previous: Option<&Tensor<1>>) {
    let sizes = [&state.parameter, &state.exp_avg, &state.exp_avg_sq, gradient].map(|tensor| tensor.dims()[0]);
    assert!(sizes.iter().all(|size| *size == sizes[0]), "adamw: parameter, moments and gradient have sizes {sizes:?}");
    let previous = previous.map_or(sizes[0], |previous| previous.dims()[0]);
    assert_eq!(previous, sizes[0], "adamw: the sizes of the previous value and the parameter differ");
}

/// [`adamw`] in plain Burn operations.
pub fn adamw_reference(state: AdamWState, gradient: Tensor<1>, rule: &AdamW, step: &UpdateStep<'_>) -> AdamWState {
    let AdamWState { parameter, exp_avg, exp_avg_sq } = state;
    let mut gradient = gradient * step.gradient_scale;
    let mut parameter = parameter;
    if step.weight_decay != 0.0 {
        if rule.decoupled {
            parameter = parameter * (1.0 - step.learning_rate * step.weight_decay);
        } else {
            gradient = gradient + parameter.clone() * step.weight_decay;
        }
    }
    let exp_avg = exp_avg * rule.beta1 + gradient.clone() * (1.0 - rule.beta1);
    let exp_avg_sq = exp_avg_sq * rule.beta2 + gradient.clone() * gradient * (1.0 - rule.beta2);
    let n = i32::try_from(step.number).unwrap_or(i32::MAX);
    let correction1 = 1.0 - rule.beta1.powi(n);
    let correction2 = (1.0 - rule.beta2.powi(n)).sqrt();
    let denominator = exp_avg_sq.clone().sqrt() / correction2 + rule.epsilon * step.eps_mult;
    let parameter = parameter - exp_avg.clone() / denominator * (step.learning_rate / correction1);
    AdamWState { parameter, exp_avg, exp_avg_sq }
}

/// One SGD update with momentum, as `torch.optim.SGD` (dampening 0): returns parameter and momentum
/// buffer, which decays by `momentum_factor`.
///
/// The tensors' memory is reused if it is exclusive.
///
/// # Panics
/// If the sizes differ.
pub fn sgd(
    parameter: Tensor<1>,
    momentum: Tensor<1>,
    gradient: Tensor<1>,
    momentum_factor: f64,
    step: &UpdateStep<'_>,
) -> (Tensor<1>, Tensor<1>) {
    let sizes = [&parameter, &momentum, &gradient].map(|tensor| tensor.dims()[0]);
    assert!(sizes.iter().all(|size| *size == sizes[0]), "sgd: parameter, momentum and gradient have sizes {sizes:?}");
    if flex::all_plain(&[&parameter, &momentum, &gradient]) {
        return flex::sgd(parameter, momentum, &gradient, momentum_factor, step);
    }
    sgd_reference(parameter, momentum, gradient, momentum_factor, step)
}

/// [`sgd`] in plain Burn operations.
pub fn sgd_reference(
    parameter: Tensor<1>,
    momentum: Tensor<1>,
    gradient: Tensor<1>,
    momentum_factor: f64,
    step: &UpdateStep<'_>,
) -> (Tensor<1>, Tensor<1>) {
    let mut gradient = gradient * step.gradient_scale;
    if step.weight_decay != 0.0 {
        gradient = gradient + parameter.clone() * step.weight_decay;
    }
    let momentum = momentum * momentum_factor + gradient;
    (parameter - momentum.clone() * step.learning_rate, momentum)
}

/// Sum of squares of all elements, in float64 (on GPUs, of sums of blocks in float32).
pub fn sum_of_squares(x: &Tensor<1>) -> f64 {
    let mut sums = SquareSums::default();
    sums.add(x);
    sums.finish()[0]
}

/// [`sum_of_squares`] of tensors of one device, one after the other. A GPU computes them while the
/// next ones are added, several in a launch, and is waited for once, at the end.
#[derive(Debug, Default)]
pub struct SquareSums {
    /// Sums read so far; 0 for sums that are still on the device.
    sums: Vec<f64>,
    #[cfg(feature = "cube")]
    blocks: cube::BlockSums,
    /// Tensors whose block sums are still on the device.
    #[cfg(feature = "cube")]
    places: Vec<(usize, cube::Index)>,
}

impl SquareSums {
    /// Adds a tensor. It is not to be changed in place before [`launch`](Self::launch) or the end.
    pub fn add(&mut self, x: &Tensor<1>) {
        #[cfg(feature = "cube")]
        if let Some(index) = self.blocks.add(x) {
            self.places.push((self.sums.len(), index));
            self.sums.push(0.0);
            return;
        }
        self.sums.push(flex::sum_of_squares(x).unwrap_or_else(|| sum_of_squares_reference(x)));
    }

    /// Launches the pending tensors, so that no reference to an added tensor is kept.
    pub fn launch(&mut self) {
        #[cfg(feature = "cube")]
        self.blocks.launch_all();
    }

    /// The sum of each, in the order in which they were added.
    #[must_use]
    pub fn finish(self) -> Vec<f64> {
        self.finish_with(Vec::new()).0
    }

    /// [`finish`](Self::finish), and the values of other tensors of the device, for which it need
    /// not be waited for again.
    #[must_use]
    #[cfg(feature = "cube")]
    pub fn finish_with(mut self, others: Vec<Tensor<1>>) -> (Vec<f64>, Vec<TensorData>) {
        let (which, indices): (Vec<usize>, Vec<cube::Index>) = self.places.into_iter().unzip();
        let (found, others) = self.blocks.finish(&indices, others);
        for (which, sum) in which.into_iter().zip(found) {
            self.sums[which] = sum;
        }
        (self.sums, others)
    }

    /// [`finish`](Self::finish), and the values of other tensors.
    #[must_use]
    #[cfg(not(feature = "cube"))]
    pub fn finish_with(self, others: Vec<Tensor<1>>) -> (Vec<f64>, Vec<TensorData>) {
        (self.sums, crate::read_together(others))
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

/// True if updates, sums of squares and sums read a 16-bit gradient in the same pass as float32:
/// on GPUs, and of bfloat16 on CPUs. Others are widened in a separate pass.
pub fn reads_16_bits(gradient: &Tensor<1>) -> bool {
    if gradient.dtype().size() != 2 {
        return false;
    }
    #[cfg(feature = "cube")]
    if cube::reads(gradient) {
        return true;
    }
    flex::reads(gradient)
}

/// `accumulated + gradient`, reusing the accumulator's memory where the backend can. A gradient of
/// 16 bits may be added to a float32 sum.
///
/// # Panics
/// If the sizes differ.
pub fn accumulate(accumulated: Tensor<1>, gradient: Tensor<1>) -> Tensor<1> {
    if accumulated.dtype() == DType::F32 {
        let mut sums = GradientSums::default();
        let sum = sums.add(accumulated, gradient);
        sums.launch();
        return sum;
    }
    assert_eq!(accumulated.dims(), gradient.dims(), "accumulate: the sizes differ");
    let dtype = accumulated.dtype();
    accumulated + if gradient.dtype() == dtype { gradient } else { gradient.cast(FloatDType::from(dtype)) }
}

/// Sums of two gradients each, in float32. On GPUs several tensors are added by one launch.
#[derive(Default)]
pub struct GradientSums {
    #[cfg(feature = "cube")]
    waiting: cube::Sums,
}

impl std::fmt::Debug for GradientSums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GradientSums").finish_non_exhaustive()
    }
}

impl GradientSums {
    /// `first + second`, of 16 or 32 bits: in float32, in the memory of the first if that is
    /// float32 and exclusive. On GPUs the sum may be deferred: use the returned tensor only after
    /// [`launch`](Self::launch).
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn add(&mut self, first: Tensor<1>, second: Tensor<1>) -> Tensor<1> {
        assert_eq!(first.dims(), second.dims(), "sums of gradients: the sizes differ");
        #[cfg(feature = "cube")]
        if cube::adds(&first, &second) {
            return self.waiting.add(first, &second);
        }
        let first = widen(first);
        if flex::all_plain(&[&first]) && flex::reads(&second) {
            return flex::accumulate(first, &second);
        }
        first + widen(second)
    }

    /// Launches the pending kernels. Dropping the value does so, too.
    pub fn launch(&mut self) {
        #[cfg(feature = "cube")]
        self.waiting.launch();
    }
}
