//! Muon (Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon/>): momentum of matrices,
//! orthogonalized and scaled by their shape (Liu et al., arXiv:2502.16982).

use std::sync::Arc;

use bridge_kernels::optim::UpdateStep;
use burn::tensor::Tensor;

use crate::config::optimizer_rules;

use super::orthogonal::Orthogonal;
use super::rule::{Rule, State, Unit, Update, Values, WholeParameter};

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::MUON,
    states: &[State::zeros("momentum_buffer")],
    unit: Unit::Parameter,
    update: |settings| Arc::new(Muon(Orthogonal::new(settings))),
};

#[derive(Debug)]
struct Muon(Orthogonal);

impl Update for Muon {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        self.update_whole(vec![WholeParameter { values, gradient, step: *step, parts: &[] }]).remove(0)
    }

    fn update_whole(&self, parameters: Vec<WholeParameter<'_>>) -> Vec<Values> {
        self.0.update(parameters, true, |direction, states, _| (direction.orthogonal, states))
    }
}
