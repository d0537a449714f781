//! Muon with a second moment of the orthogonalized momentum: of each element (AdaMuon,
//! arXiv:2507.11005), of rows or columns (NorMuon, arXiv:2510.05491), or of the gradient's norm
//! (NAMO, arXiv:2602.17080). The shape's scale comes after it, for the whole matrix.

use std::sync::Arc;

use bridge_kernels::optim::UpdateStep;
use burn::tensor::Tensor;

use crate::config::{Moment2Method, OptimizerConfig, optimizer_rules};

use super::orthogonal::{Direction, Orthogonal};
use super::rule::{Rule, State, Unit, Update, Values, WholeParameter};

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::ADAPTIVE_MUON,
    states: &[State::zeros("momentum_buffer"), State { shape: Some(moment2_shape), ..State::zeros("moment2_buffer") }],
    unit: Unit::Parameter,
    update: |settings| {
        Arc::new(AdaptiveMuon {
            orthogonal: Orthogonal::new(settings),
            method: settings.adaptive_muon_moment2_method,
            beta2: settings.adaptive_muon_beta2,
            epsilon: settings.adaptive_muon_eps,
        })
    },
};

/// NorMuon averages over the shorter dimension.
fn moment2_shape(settings: &OptimizerConfig, shape: &[usize]) -> Vec<usize> {
    match (settings.adaptive_muon_moment2_method, shape) {
        (Moment2Method::Normuon, [rows, columns]) if rows >= columns => vec![*rows, 1],
        (Moment2Method::Normuon, [_, columns]) => vec![1, *columns],
        (Moment2Method::Namo, _) => vec![1],
        _ => shape.to_vec(),
    }
}

#[derive(Debug)]
struct AdaptiveMuon {
    orthogonal: Orthogonal,
    method: Moment2Method,
    beta2: f64,
    epsilon: f64,
}

impl AdaptiveMuon {
    fn finish(&self, direction: Direction, mut states: Vec<Tensor<1>>, eps_mult: f64) -> (Tensor<2>, Vec<Tensor<1>>) {
        let Direction { momentum, orthogonal, gradient } = direction;
        let (moment, epsilon) = (states.remove(0), self.epsilon * eps_mult);
        let mean = |moment: Tensor<1>, of: Tensor<1>| moment * self.beta2 + of * (1.0 - self.beta2);
        // By rows: a sum of millions of elements has other bits on another number of threads.
        let sum_of_squares = |x: Tensor<2>| x.powi_scalar(2).sum_dim(1).sum();
        let norm = |x: Tensor<2>| sum_of_squares(x).sqrt();
        let [rows, columns] = orthogonal.dims();
        let squares = || orthogonal.clone().powi_scalar(2);
        let (update, moment) = match self.method {
            Moment2Method::Adamuon => {
                let moment = mean(moment, squares().reshape([rows * columns]));
                let root = moment.clone().sqrt().reshape([rows, columns]) + epsilon;
                (orthogonal.clone() / root, moment)
            }
            Moment2Method::Normuon => {
                let averaged = if rows >= columns { 1 } else { 0 };
                let moment = mean(moment, squares().mean_dim(averaged).reshape([rows.max(columns)]));
                let of_line = if rows >= columns { [rows, 1] } else { [1, columns] };
                let root = moment.clone().clamp_min(epsilon).sqrt().reshape(of_line);
                let update = orthogonal.clone() / root;
                // The update is as long as without the moment.
                let length = norm(orthogonal.clone()) / norm(update.clone()).clamp_min(epsilon);
                (update * length.reshape([1, 1]), moment)
            }
            Moment2Method::Namo => {
                let moment = mean(moment, sum_of_squares(gradient));
                let factor = norm(momentum) / (moment.clone().sqrt() + epsilon);
                (orthogonal.clone() * factor.reshape([1, 1]), moment)
            }
        };
        (update, vec![moment])
    }
}

impl Update for AdaptiveMuon {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        self.update_whole(vec![WholeParameter { values, gradient, step: *step, parts: &[] }]).remove(0)
    }

    fn update_whole(&self, parameters: Vec<WholeParameter<'_>>) -> Vec<Values> {
        let finish =
            |direction: Direction, states: Vec<Tensor<1>>, eps_mult: f64| self.finish(direction, states, eps_mult);
        self.orthogonal.update(parameters, false, finish)
    }
}
