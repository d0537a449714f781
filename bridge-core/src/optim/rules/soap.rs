//! SOAP (Vyas et al. 2024, arXiv:2409.11321): Adam in the eigenbasis of Shampoo's preconditioners,
//! with those of KL-Shampoo (arXiv:2509.03378) unless settings say otherwise. Step by step as
//! NVIDIA's Emerging-Optimizers makes it.
//!
//! Shape legend: `m` rows, `n` columns.

use std::sync::Arc;

use bridge_kernels::optim::{UpdateStep, eigenvectors, orthogonal_factor};
use burn::tensor::Tensor;

use crate::config::{OptimizerConfig, optimizer_rules};

use super::rule::{Rule, State, Unit, Update, Values};

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::SOAP,
    states: &[
        State::zeros("exp_avg"),
        State::zeros("exp_avg_sq"),
        State { shape: Some(of_rows), ..State::zeros("L") },
        State { shape: Some(of_columns), ..State::zeros("R") },
        State { shape: Some(of_rows), ..State::zeros("Q_L") },
        State { shape: Some(of_columns), ..State::zeros("Q_R") },
    ],
    unit: Unit::Parameter,
    update: |settings| {
        Arc::new(Soap {
            beta1: settings.adam_beta1,
            beta2: settings.adam_beta2,
            epsilon: settings.adam_eps,
            shampoo_beta: settings.soap_shampoo_beta,
            frequency: settings.soap_precondition_frequency as u64,
            is_kl: settings.soap_use_kl_shampoo,
            decoupled: settings.decoupled_weight_decay,
        })
    },
};

fn of_rows(_: &OptimizerConfig, shape: &[usize]) -> Vec<usize> {
    vec![shape[0]; 2]
}

fn of_columns(_: &OptimizerConfig, shape: &[usize]) -> Vec<usize> {
    vec![*shape.last().expect("rules of matrices get matrices"); 2]
}

#[derive(Debug)]
struct Soap {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    /// Decay of the preconditioners.
    shampoo_beta: f64,
    /// Steps from one change of the bases to the next.
    frequency: u64,
    is_kl: bool,
    decoupled: bool,
}

/// Preconditioner of one side of a matrix, and the orthogonal basis of its eigenvectors as columns.
struct Side {
    factor: Tensor<2>,
    basis: Tensor<2>,
}

impl Side {
    /// `Q^T K Q`, its diagonal: approximate eigenvalues by basis vector, `[1, n]`.
    fn eigenvalues(&self) -> Tensor<2> {
        (self.factor.clone().matmul(self.basis.clone()) * self.basis.clone()).sum_dim(0)
    }

    /// Moves the preconditioner towards another matrix.
    fn average(&mut self, other: Tensor<2>, beta: f64) {
        self.factor = self.factor.clone() * beta + other * (1.0 - beta);
    }

    /// Moves the basis to the preconditioner: its eigenvectors at first, later one step of
    /// orthogonal iteration from the basis in the order of its eigenvalues. Returns the moment with
    /// its entries along `dim` in that order.
    fn rotate(&mut self, moment: Tensor<2>, dim: usize, is_first: bool) -> Tensor<2> {
        if is_first {
            self.basis = eigenvectors(self.factor.clone());
            return moment;
        }
        let order = self.eigenvalues().argsort_descending(1).squeeze_dim::<1>(0);
        let basis = self.basis.clone().select(1, order.clone());
        self.basis = orthogonal_factor(self.factor.clone().matmul(basis));
        moment.select(dim, order)
    }
}

impl Soap {
    /// Second moments of the gradient along rows and columns. Those of KL-Shampoo are measured
    /// with the inverse of the preconditioner of the other side.
    fn update_factors(&self, sides: &mut [Side; 2], gradient_mn: &Tensor<2>, beta: f64, epsilon: f64) {
        let [left, right] = sides;
        let (g_mn, g_nm) = (gradient_mn.clone(), gradient_mn.clone().transpose());
        let (of_left, of_right) = if self.is_kl {
            let inverse = |side: &Side| {
                let size = side.factor.dims()[0] as f64;
                side.eigenvalues().clamp_min(epsilon).recip() / size
            };
            let by_right = g_mn.clone().matmul(right.basis.clone());
            let by_left = g_nm.matmul(left.basis.clone());
            let of_left = (by_right.clone() * inverse(right)).matmul(by_right.transpose());
            let of_right = (by_left.clone() * inverse(left)).matmul(by_left.transpose());
            (of_left, of_right)
        } else {
            (g_mn.clone().matmul(g_nm.clone()), g_nm.matmul(g_mn))
        };
        left.average(of_left, beta);
        right.average(of_right, beta);
    }
}

impl Update for Soap {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        let [m, n]: [usize; 2] = step.shape.try_into().expect("rules of matrices get matrices");
        let (parameter, [exp_avg, exp_avg_sq, left, right, left_basis, right_basis]) = values.split();
        let matrix = |x: Tensor<1>| x.reshape([m, n]);
        let mut parameter = matrix(parameter);
        let mut gradient = matrix(gradient * step.gradient_scale);
        let (mut exp_avg, mut exp_avg_sq) = (matrix(exp_avg), matrix(exp_avg_sq));
        let mut sides = [(left, left_basis, m), (right, right_basis, n)]
            .map(|(factor, basis, size)| Side { factor: factor.reshape([size; 2]), basis: basis.reshape([size; 2]) });
        let is_first = sides[0].factor.clone().abs().max().into_scalar::<f32>() == 0.0;
        if is_first {
            let device = parameter.device();
            sides.iter_mut().for_each(|side| side.basis = Tensor::eye(side.basis.dims()[0], &device));
        }
        let power = |beta: f64| beta.powi(i32::try_from(step.number).unwrap_or(i32::MAX));
        let epsilon = self.epsilon * step.eps_mult;
        let beta = 1.0 - (1.0 - self.shampoo_beta) / (1.0 - power(self.shampoo_beta));
        self.update_factors(&mut sides, &gradient, beta, epsilon);
        if is_first || (step.number - 1).is_multiple_of(self.frequency) {
            let plain = from_bases(exp_avg, &sides);
            exp_avg_sq = sides[0].rotate(exp_avg_sq, 0, is_first);
            exp_avg_sq = sides[1].rotate(exp_avg_sq, 1, is_first);
            exp_avg = into_bases(plain, &sides);
        }
        if self.decoupled {
            parameter = parameter * (1.0 - step.learning_rate * step.weight_decay);
        } else {
            gradient = gradient + parameter.clone() * step.weight_decay;
        }
        let gradient = into_bases(gradient, &sides);
        exp_avg = exp_avg * self.beta1 + gradient.clone() * (1.0 - self.beta1);
        exp_avg_sq = exp_avg_sq * self.beta2 + gradient.powi_scalar(2) * (1.0 - self.beta2);
        let root = (exp_avg_sq.clone() / (1.0 - power(self.beta2))).sqrt() + epsilon;
        let direction = from_bases(exp_avg.clone() / (1.0 - power(self.beta1)) / root, &sides);
        parameter = parameter - direction * step.learning_rate;
        let flat = |x: Tensor<2>| {
            let len = x.shape().num_elements();
            x.reshape([len])
        };
        let [left, right] = sides;
        let states = [exp_avg, exp_avg_sq, left.factor, right.factor, left.basis, right.basis].map(flat);
        Values { parameter: flat(parameter), states: states.into() }
    }
}

/// `Q_L^T x Q_R`.
fn into_bases(x_mn: Tensor<2>, [left, right]: &[Side; 2]) -> Tensor<2> {
    left.basis.clone().transpose().matmul(x_mn).matmul(right.basis.clone())
}

/// `Q_L x Q_R^T`.
fn from_bases(x_mn: Tensor<2>, [left, right]: &[Side; 2]) -> Tensor<2> {
    left.basis.clone().matmul(x_mn).matmul(right.basis.clone().transpose())
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor};

    use super::super::matrix_tests::{difference, fixture, numbers, run_with, tensor};
    use super::super::named;
    use crate::config::OptimizerConfig;

    fn settings() -> OptimizerConfig {
        OptimizerConfig {
            adam_beta2: 0.95,
            adam_eps: 0.03,
            soap_shampoo_beta: 0.9,
            soap_precondition_frequency: 1,
            ..OptimizerConfig::default()
        }
    }

    /// A square matrix, six gradients with singular values from 1 to 3, and by case the matrix
    /// after steps 1, 3 and 6 of Emerging-Optimizers 0.3.0 in float64. With gradients of full rank
    /// and a large epsilon every element of an update is determined; otherwise the first one, whose
    /// gradient is diagonal in its own basis, is made of rounding errors.
    #[test]
    fn steps_agree_with_upstream() {
        const N: usize = 9;
        let values = fixture(include_bytes!("../../../tests/fixtures/optim/soap.f32"));
        let mut rest = values.chunks_exact(N * N).map(tensor);
        let inputs: Vec<Tensor<1>> = rest.by_ref().take(7).collect();
        let cases = [(true, 1, true), (false, 1, true), (false, 3, true), (true, 2, false)];
        for (is_kl, frequency, decoupled) in cases {
            let algorithm = named("soap").unwrap().with(&OptimizerConfig {
                soap_use_kl_shampoo: is_kl,
                soap_precondition_frequency: frequency,
                decoupled_weight_decay: decoupled,
                ..settings()
            });
            for steps in [1, 3, 6] {
                let found = run_with(&algorithm, &inputs[0], &inputs[1..=steps], &[N, N], &[]);
                let far = difference(&numbers(&found.parameter), &numbers(&rest.next().unwrap()));
                assert!(far < 1e-5, "kl {is_kl}, every {frequency}, decoupled {decoupled}, step {steps}: {far}");
            }
        }
        assert!(rest.next().is_none());
    }

    /// Gradients of low rank leave a choice of bases, on which neither the preconditioners depend
    /// nor the first moment outside the bases.
    #[test]
    fn preconditioners_are_averages_at_odd_shapes() {
        let settings = OptimizerConfig { soap_use_kl_shampoo: false, ..settings() };
        let algorithm = named("soap").unwrap().with(&settings);
        for [m, n] in [[3, 7], [11, 2], [1, 5], [4, 1]] {
            let values = |seed: usize| (0..m * n).map(move |i| ((i * 7 + seed * 5) % 11) as f32 / 5.0 - 1.0);
            let start = Tensor::<1>::zeros([m * n], &Device::flex());
            // The first gradient is zero: there is no basis yet.
            let gradients: Vec<Vec<f32>> =
                (0..4).map(|seed| if seed == 0 { vec![0.0; m * n] } else { values(seed).collect() }).collect();
            let tensors: Vec<Tensor<1>> = gradients.iter().map(|gradient| tensor(gradient)).collect();
            let found = run_with(&algorithm, &start, &tensors, &[m, n], &[]);
            assert!(numbers(&found.parameter).iter().all(|x| x.is_finite()), "{m} x {n}");
            let states: Vec<Vec<f64>> = found.states.iter().map(numbers).collect();
            let (mut left, mut right, mut moment) = (vec![0.0; m * m], vec![0.0; n * n], vec![0.0; m * n]);
            for (index, gradient) in gradients.iter().enumerate() {
                let g = |i: usize, j: usize| f64::from(gradient[i * n + j]);
                let beta = 1.0 - 0.1 / (1.0 - 0.9_f64.powi(index as i32 + 1));
                for (i, left) in left.iter_mut().enumerate() {
                    let of_step: f64 = (0..n).map(|k| g(i / m, k) * g(i % m, k)).sum();
                    *left = beta * *left + (1.0 - beta) * of_step;
                }
                for (i, right) in right.iter_mut().enumerate() {
                    let of_step: f64 = (0..m).map(|k| g(k, i / n) * g(k, i % n)).sum();
                    *right = beta * *right + (1.0 - beta) * of_step;
                }
                (0..m * n).for_each(|i| moment[i] = 0.9 * moment[i] + 0.1 * g(i / n, i % n));
            }
            assert!(difference(&states[2], &left) < 1e-5 && difference(&states[3], &right) < 1e-5, "{m} x {n}");
            let (q_left, q_right) = (&states[4], &states[5]);
            let outside = (0..m * n).map(|i| {
                let (row, column) = (i / n, i % n);
                let terms = (0..m * n).map(|j| q_left[row * m + j / n] * states[0][j] * q_right[column * n + j % n]);
                terms.sum::<f64>()
            });
            assert!(difference(&outside.collect::<Vec<_>>(), &moment) < 1e-5, "{m} x {n}");
        }
    }
}
