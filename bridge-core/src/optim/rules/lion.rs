//! Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2): the sign of an interpolation between
//! momentum and gradient, with decoupled weight decay.

use std::sync::Arc;

use bridge_kernels::optim::UpdateStep;
use burn::tensor::Tensor;

use crate::config::optimizer_rules;

use super::rule::{Rule, State, Unit, Update, Values};

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::LION,
    states: &[State::zeros("exp_avg")],
    unit: Unit::Element,
    update: |settings| Arc::new(Lion { beta1: settings.lion_beta1, beta2: settings.lion_beta2 }),
};

#[derive(Debug)]
struct Lion {
    /// Interpolation weight of the momentum in the update direction.
    beta1: f64,
    /// Decay of the momentum.
    beta2: f64,
}

impl Update for Lion {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        let (parameter, [exp_avg]) = values.split();
        let gradient = gradient * step.gradient_scale;
        let direction = (exp_avg.clone() * self.beta1 + gradient.clone() * (1.0 - self.beta1)).sign();
        let kept = parameter * (1.0 - step.learning_rate * step.weight_decay);
        let exp_avg = exp_avg * self.beta2 + gradient * (1.0 - self.beta2);
        Values { parameter: kept - direction * step.learning_rate, states: vec![exp_avg] }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::super::named;
    use super::*;
    use crate::config::OptimizerConfig;

    /// Algorithm 2 line by line, for one element.
    fn reference(x: &mut f64, m: &mut f64, g: f64, [beta1, beta2, lr, decay]: [f64; 4]) {
        let c = beta1 * *m + (1.0 - beta1) * g;
        let sign = if c == 0.0 { 0.0 } else { c.signum() };
        *x -= lr * (sign + decay * *x);
        *m = beta2 * *m + (1.0 - beta2) * g;
    }

    #[test]
    fn ten_steps_agree_with_float64_at_odd_sizes() {
        let rule = named("lion").unwrap();
        let algorithm =
            rule.with(&OptimizerConfig { lion_beta1: 0.95, lion_beta2: 0.98, ..OptimizerConfig::default() });
        assert_eq!(rule.state_bytes(&OptimizerConfig::default(), &[1]), 4, "plans count one moment");
        for (size, weight_decay) in [(1, 0.1), (7, 0.0), (131, 0.3)] {
            let mut expected: Vec<(f64, f64)> = (0..size).map(|i| ((i % 13) as f64 * 0.25 - 1.5, 0.0)).collect();
            let flat = |values: Vec<f64>| {
                let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
                Tensor::<1>::from_floats(values.as_slice(), &Device::flex())
            };
            let parameter = flat(expected.iter().map(|(x, _)| *x).collect());
            let states = vec![Tensor::zeros([size], &Device::flex())];
            let mut values = Values { parameter, states };
            for number in 1..=10 {
                // Never so small that float32 finds another sign; exactly zero at some places.
                let gradient = |i: usize| ((i * 7 + number as usize * 3) % 11) as f64 - 5.0;
                let gradients = flat((0..size).map(|i| if i % 5 == 4 { 0.0 } else { 4.0 * gradient(i) }).collect());
                let learning_rate = 0.01 / number as f64;
                let shape = [size];
                let (eps_mult, gradient_scale, shape) = (1.0, 0.25, &shape);
                let step = UpdateStep { learning_rate, weight_decay, eps_mult, number, gradient_scale, shape };
                values = algorithm.update.update(values, gradients, &step);
                for (i, (x, m)) in expected.iter_mut().enumerate() {
                    let g = if i % 5 == 4 { 0.0 } else { gradient(i) };
                    reference(x, m, g, [0.95, 0.98, learning_rate, weight_decay]);
                }
                let numbers = |tensor: &Tensor<1>| tensor.to_data().iter::<f64>().collect::<Vec<_>>();
                let (found, momentum) = (numbers(&values.parameter), numbers(&values.states[0]));
                for (i, (x, m)) in expected.iter().enumerate() {
                    assert!((found[i] - x).abs() < 1e-5, "step {number}, element {i}: {} {x}", found[i]);
                    assert!((momentum[i] - m).abs() < 1e-5, "step {number}, element {i}: {} {m}", momentum[i]);
                }
            }
        }
    }
}
