//! Adafactor (Shazeer and Stern 2018, arXiv:1804.04235, algorithms 4 and 6): the second moment of a
//! matrix is kept as its means of rows and columns, and there is no momentum. The learning rate is
//! that of the schedule, as with `relative_step=False` of transformers, whose order of operations
//! this is.
//!
//! A vector is a matrix with one column: the means of its rows are its elements. Parameters with
//! more dimensions are matrices with the last one as columns.

use std::sync::Arc;

use bridge_kernels::optim::UpdateStep;
use burn::tensor::Tensor;

use crate::config::optimizer_rules;

use super::rule::{Rule, State, Unit, Update, Values};

/// Lower bound of the root mean square that multiplies the learning rate.
const LEAST_SCALE: f64 = 1e-3;

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::ADAFACTOR,
    states: &[
        State { shape: Some(|_, shape| vec![sides(shape)[0]]), ..State::zeros("exp_avg_sq_row") },
        State { shape: Some(|_, shape| vec![sides(shape)[1]]), ..State::zeros("exp_avg_sq_col") },
    ],
    unit: Unit::Parameter,
    update: |settings| {
        Arc::new(Adafactor {
            decay_rate: settings.adafactor_decay_rate,
            clip_threshold: settings.adafactor_clip_threshold,
            epsilon: settings.adafactor_eps,
            scales_parameter: settings.adafactor_scale_parameter,
        })
    },
};

/// Rows and columns.
fn sides(shape: &[usize]) -> [usize; 2] {
    match shape {
        [rows @ .., columns] if !rows.is_empty() => [rows.iter().product(), *columns],
        _ => [shape.iter().product(), 1],
    }
}

#[derive(Debug)]
struct Adafactor {
    decay_rate: f64,
    clip_threshold: f64,
    epsilon: f64,
    scales_parameter: bool,
}

/// Root mean square, `[1, 1]`. The mean of rows' means has the same bits on any number of threads,
/// which a mean of millions of elements has not.
fn root_mean_square(x: &Tensor<2>) -> Tensor<2> {
    x.clone().powi_scalar(2).mean_dim(1).mean().sqrt().reshape([1, 1])
}

impl Update for Adafactor {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        let [rows, columns] = sides(step.shape);
        let (parameter, [of_rows, of_columns]) = values.split();
        let (parameter, gradient) = (parameter.reshape([rows, columns]), gradient.reshape([rows, columns]));
        let gradient = gradient * step.gradient_scale;
        let squares = gradient.clone().powi_scalar(2) + self.epsilon * step.eps_mult;
        let beta = 1.0 - (step.number as f64).powf(-self.decay_rate);
        let of_rows = of_rows.reshape([rows, 1]) * beta + squares.clone().mean_dim(1) * (1.0 - beta);
        let of_columns = of_columns.reshape([1, columns]) * beta + squares.mean_dim(0) * (1.0 - beta);
        let by_row = (of_rows.clone() / of_rows.clone().mean().reshape([1, 1])).sqrt().recip();
        let by_column = of_columns.clone().sqrt().recip();
        let direction = gradient * by_row * by_column;
        let direction = direction.clone() / (root_mean_square(&direction) / self.clip_threshold).clamp_min(1.0);
        let scale = self.scales_parameter.then(|| root_mean_square(&parameter).clamp_min(LEAST_SCALE));
        let scaled = |x: Tensor<2>| match &scale {
            Some(scale) => x * scale.clone(),
            None => x,
        };
        let kept = parameter.clone() - scaled(parameter * (step.learning_rate * step.weight_decay));
        let parameter = kept - scaled(direction * step.learning_rate);
        Values {
            parameter: parameter.reshape([rows * columns]),
            states: vec![of_rows.reshape([rows]), of_columns.reshape([columns])],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::matrix_tests::{difference, fixture, numbers, run_with, tensor};
    use super::super::named;
    use crate::config::OptimizerConfig;

    /// A matrix and a vector, three gradients each, and what each becomes by transformers 5.24:
    /// with the rate of the schedule, and scaled by the parameter with another threshold and decay.
    #[test]
    fn steps_agree_with_transformers() {
        let values = fixture(include_bytes!("../../../tests/fixtures/optim/adafactor.f32"));
        let mut rest = values.as_slice();
        for shape in [&[7, 5][..], &[11]] {
            let len = shape.iter().product();
            let mut take = || {
                let (values, after) = rest.split_at(len);
                rest = after;
                tensor(values)
            };
            let (start, gradients) = (take(), [(); 3].map(|()| take()));
            let plain = OptimizerConfig::default();
            let scaled = OptimizerConfig {
                adafactor_scale_parameter: true,
                adafactor_clip_threshold: 0.5,
                adafactor_decay_rate: 0.6,
                ..plain.clone()
            };
            for settings in [plain, scaled] {
                let algorithm = named("adafactor").unwrap().with(&settings);
                let found = run_with(&algorithm, &start, &gradients, shape, &[]);
                let far = difference(&numbers(&found.parameter), &numbers(&take()));
                assert!(far < 1e-6, "{shape:?}, scaled {}: {far}", settings.adafactor_scale_parameter);
            }
        }
        assert!(rest.is_empty());
        let bytes = |shape: &[usize]| named("adafactor").unwrap().state_bytes(&OptimizerConfig::default(), shape);
        assert_eq!((bytes(&[7, 5]), bytes(&[11]), bytes(&[2, 3, 5])), (48, 48, 44));
    }
}
