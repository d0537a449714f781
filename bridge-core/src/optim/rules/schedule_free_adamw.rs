//! Schedule-free AdamW (Defazio et al. 2024, arXiv:2405.15682, algorithm 1): gradients are taken at
//! `y`, between the iterate `z` of AdamW and its average `x`, by which the model is evaluated. The
//! order of operations is that of facebookresearch/schedule_free, with weights of steps by the
//! square of the learning rate.

use std::sync::Arc;

use bridge_kernels::optim::UpdateStep;
use burn::tensor::Tensor;

use crate::config::optimizer_rules;

use super::rule::{AVERAGE, Rule, Start, State, Unit, Update, Values};

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::SCHEDULE_FREE_ADAMW,
    states: &[
        State { start: Start::Parameter, ..State::zeros("iterate") },
        State { start: Start::Parameter, ..State::zeros(AVERAGE) },
        State::zeros("exp_avg_sq"),
    ],
    unit: Unit::Element,
    update: |settings| {
        Arc::new(ScheduleFreeAdamW {
            beta1: settings.adam_beta1,
            beta2: settings.adam_beta2,
            epsilon: settings.adam_eps,
            warmup: settings.schedule_free_warmup_steps as f64,
        })
    },
};

#[derive(Debug)]
struct ScheduleFreeAdamW {
    /// Weight of the average in the point where gradients are taken.
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    /// Steps in which the learning rate grows linearly.
    warmup: f64,
}

impl ScheduleFreeAdamW {
    /// Share of the learning rate at a step.
    fn warmed_up(&self, step: f64) -> f64 {
        if step < self.warmup { step / self.warmup } else { 1.0 }
    }

    /// Weight of a step in the average: the square of its rate, divided by the sum of those so far.
    fn weight(&self, step: f64) -> f64 {
        if step <= self.warmup {
            return 6.0 * step / ((step + 1.0) * (2.0 * step + 1.0));
        }
        let warmup = self.warmup;
        let of_warmup = if warmup > 0.0 { (warmup + 1.0) * (2.0 * warmup + 1.0) / (6.0 * warmup) } else { 0.0 };
        1.0 / (of_warmup + step - warmup)
    }
}

impl Update for ScheduleFreeAdamW {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        let (parameter, [iterate, average, exp_avg_sq]) = values.split();
        let n = step.number as f64;
        let gradient = gradient * step.gradient_scale;
        let exp_avg_sq = exp_avg_sq * self.beta2 + gradient.clone().powi_scalar(2) * (1.0 - self.beta2);
        let root = (exp_avg_sq.clone() / (1.0 - self.beta2.powf(n))).sqrt() + self.epsilon * step.eps_mult;
        let direction = gradient / root + parameter * step.weight_decay;
        let iterate = iterate - direction * (step.learning_rate * self.warmed_up(n));
        let weight = self.weight(n);
        let average = average * (1.0 - weight) + iterate.clone() * weight;
        let parameter = average.clone() * self.beta1 + iterate.clone() * (1.0 - self.beta1);
        Values { parameter, states: vec![iterate, average, exp_avg_sq] }
    }
}

#[cfg(test)]
mod tests {
    use super::super::matrix_tests::{difference, fixture, numbers, tensor};
    use super::super::tests::{Element, agrees_with_float64};
    use super::super::{UpdateStep, Values, named};
    use crate::config::OptimizerConfig;

    fn settings(warmup: usize) -> OptimizerConfig {
        OptimizerConfig {
            adam_beta2: 0.95,
            adam_eps: 1e-6,
            schedule_free_warmup_steps: warmup,
            ..OptimizerConfig::default()
        }
    }

    /// Algorithm 1 for one element: the gradient point moves as upstream moves it, without the
    /// average.
    #[test]
    fn ten_steps_agree_with_float64() {
        let rule = named("schedule_free_adamw").unwrap();
        assert_eq!(rule.state_bytes(&settings(0), &[1]), 12, "plans count iterate, average and moment");
        agrees_with_float64(&rule.with(&settings(0)), |state: &mut Element<3>, g, t, [lr, decay]| {
            let Element { value: y, states: [z, x, v] } = state;
            let c = 1.0 / t as f64;
            *v = 0.95 * *v + 0.05 * g * g;
            let d = g / ((*v / (1.0 - 0.95_f64.powi(t as i32))).sqrt() + 1e-6) + decay * *y;
            *y = *y + c * (*z - *y) + lr * (0.9 * (1.0 - c) - 1.0) * d;
            *z -= lr * d;
            *x = (1.0 - c) * *x + c * *z;
        });
    }

    /// Seven elements, six gradients, and by number of steps of warm-up the parameter and its
    /// average after six steps of `schedulefree` 1.4.1.
    #[test]
    fn steps_agree_with_upstream() {
        let values = fixture(include_bytes!("../../../tests/fixtures/optim/schedule_free.f32"));
        let mut rest = values.chunks_exact(7).map(tensor);
        let (start, gradients) = (rest.next().unwrap(), rest.by_ref().take(6).collect::<Vec<_>>());
        for warmup in [0, 4, 9] {
            let algorithm = named("schedule_free_adamw").unwrap().with(&settings(warmup));
            let states = algorithm.rule.states.iter().map(|state| state.first(&start, 7)).collect();
            let mut values = Values { parameter: start.clone(), states };
            for (index, gradient) in gradients.iter().enumerate() {
                let step = UpdateStep {
                    learning_rate: 0.05,
                    weight_decay: 0.1,
                    eps_mult: 1.0,
                    number: index as u64 + 1,
                    gradient_scale: 1.0,
                    shape: &[7],
                };
                values = algorithm.update.update(values, gradient.clone(), &step);
            }
            for (found, what) in [(&values.parameter, "parameter"), (&values.states[1], "average")] {
                let far = difference(&numbers(found), &numbers(&rest.next().unwrap()));
                assert!(far < 1e-6, "{what} with {warmup} steps of warm-up: {far}");
            }
        }
        assert!(rest.next().is_none());
    }
}
