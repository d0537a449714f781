//! Arguments of updates: the step, settings of rules, and a parameter with its state.

use burn::tensor::Tensor;

/// One step of one parameter, for every rule: what changes from step to step or between parameter
/// groups. The settings of a rule are apart from it.
#[derive(Clone, Copy, Debug)]
pub struct UpdateStep<'a> {
    /// Learning rate of the parameter's group.
    pub learning_rate: f64,
    /// Weight decay of the parameter's group.
    pub weight_decay: f64,
    /// Factor of the parameter's group on the epsilon of rules that have one.
    pub eps_mult: f64,
    /// Number of the step, from 1, for bias corrections.
    pub number: u64,
    /// Factor on the gradient: clipping, loss scale and accumulation in one.
    pub gradient_scale: f64,
    /// Shape of the whole parameter. Only rules of matrices read it.
    pub shape: &'a [usize],
}

/// Settings of AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// True for AdamW (decay applied to the parameter), false for L2 in the gradient.
    pub decoupled: bool,
}

/// Constants of an AdamW step, rounded to float32 once: all kernels compute with the same.
#[derive(Clone, Copy, PartialEq)]
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
    pub fn new(rule: &AdamW, step: &UpdateStep<'_>) -> Self {
        let n = i32::try_from(step.number).unwrap_or(i32::MAX);
        let (keep, l2) = match rule.decoupled {
            true => (1.0 - step.learning_rate * step.weight_decay, 0.0),
            false => (1.0, step.weight_decay),
        };
        Self {
            gradient_scale: step.gradient_scale as f32,
            keep: keep as f32,
            l2: l2 as f32,
            beta1: rule.beta1 as f32,
            one_minus_beta1: (1.0 - rule.beta1) as f32,
            beta2: rule.beta2 as f32,
            one_minus_beta2: (1.0 - rule.beta2) as f32,
            root_correction2: (1.0 - rule.beta2.powi(n)).sqrt() as f32,
            epsilon: (rule.epsilon * step.eps_mult) as f32,
            step_size: (step.learning_rate / (1.0 - rule.beta1.powi(n))) as f32,
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
