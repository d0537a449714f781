//! Arguments of updates: constants of a step, and a parameter with its state.

use burn::tensor::Tensor;

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
