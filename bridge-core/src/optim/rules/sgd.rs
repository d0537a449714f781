//! Stochastic gradient descent with momentum, and weight decay in the gradient.

use std::sync::Arc;

use bridge_kernels::optim::{UpdateStep, sgd};
use burn::tensor::Tensor;

use crate::config::optimizer_rules;

use super::rule::{Rule, State, Unit, Update, Values};

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::SGD,
    states: &[State::zeros("momentum")],
    unit: Unit::Element,
    update: |settings| Arc::new(Sgd { momentum: settings.sgd_momentum }),
};

#[derive(Debug)]
struct Sgd {
    momentum: f64,
}

impl Update for Sgd {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        let (parameter, [momentum]) = values.split();
        let (parameter, momentum) = sgd(parameter, momentum, gradient, self.momentum, step);
        Values { parameter, states: vec![momentum] }
    }
}
