//! Adam, with weight decay decoupled (AdamW) or in the gradient.

use bridge_kernels::optim::{AdamWState, AdamWStep, adamw};
use burn::tensor::Tensor;
use serde::Deserialize;

use super::rule::{Rule, State, Unit, Update, UpdateSize, UpdateStep, Values, read};

pub(super) const RULE: Rule = Rule {
    name: "adam",
    settings: &["adam_beta1", "adam_beta2", "adam_eps", "decoupled_weight_decay"],
    states: &[State::zeros("exp_avg"), State::zeros("exp_avg_sq")],
    unit: Unit::Element,
    size: UpdateSize::LearningRate,
    read: read::<Adam>,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Adam {
    adam_beta1: f64,
    adam_beta2: f64,
    adam_eps: f64,
    decoupled_weight_decay: bool,
}

impl Update for Adam {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        let constants = AdamWStep {
            lr: step.learning_rate,
            beta1: self.adam_beta1,
            beta2: self.adam_beta2,
            epsilon: self.adam_eps * step.eps_mult,
            weight_decay: step.weight_decay,
            decoupled: self.decoupled_weight_decay,
            step: step.number,
            gradient_scale: step.gradient_scale,
        };
        let (parameter, [exp_avg, exp_avg_sq]) = values.split();
        let state = adamw(AdamWState { parameter, exp_avg, exp_avg_sq }, gradient, &constants);
        Values { parameter: state.parameter, states: vec![state.exp_avg, state.exp_avg_sq] }
    }
}
