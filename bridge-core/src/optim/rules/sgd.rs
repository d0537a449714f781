//! Stochastic gradient descent with momentum, and weight decay in the gradient.

use bridge_kernels::optim::{SgdStep, sgd};
use burn::tensor::Tensor;
use serde::Deserialize;

use crate::config::optimizer_rules;

use super::rule::{Rule, State, Unit, Update, UpdateStep, Values, read};

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::SGD,
    states: &[State::zeros("momentum")],
    unit: Unit::Element,
    read: read::<Sgd>,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sgd {
    sgd_momentum: f64,
}

impl Update for Sgd {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        let constants = SgdStep {
            lr: step.learning_rate,
            momentum: self.sgd_momentum,
            weight_decay: step.weight_decay,
            gradient_scale: step.gradient_scale,
        };
        let (parameter, [momentum]) = values.split();
        let (parameter, momentum) = sgd(parameter, momentum, gradient, &constants);
        Values { parameter, states: vec![momentum] }
    }
}
