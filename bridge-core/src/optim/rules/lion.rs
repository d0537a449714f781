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
    use super::super::named;
    use super::super::tests::{Element, agrees_with_float64};
    use crate::config::OptimizerConfig;

    /// Algorithm 2 line by line, for one element.
    fn reference(Element { value: x, states: [m] }: &mut Element<1>, g: f64, _step: u64, [lr, decay]: [f64; 2]) {
        let (beta1, beta2) = (0.95, 0.98);
        let c = beta1 * *m + (1.0 - beta1) * g;
        let sign = if c == 0.0 { 0.0 } else { c.signum() };
        *x -= lr * (sign + decay * *x);
        *m = beta2 * *m + (1.0 - beta2) * g;
    }

    #[test]
    fn ten_steps_agree_with_float64_at_odd_sizes() {
        let rule = named("lion").unwrap();
        let settings = OptimizerConfig { lion_beta1: 0.95, lion_beta2: 0.98, ..OptimizerConfig::default() };
        assert_eq!(rule.state_bytes(&settings, &[1]), 4, "plans count one moment");
        agrees_with_float64(&rule.with(&settings), reference);
    }
}
