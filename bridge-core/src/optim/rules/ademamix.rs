//! AdEMAMix (Pagliardini et al. 2024, arXiv:2409.03137, algorithm 1): Adam with a second, slower
//! momentum whose weight and decay warm up, and decoupled weight decay.

use std::sync::Arc;

use bridge_kernels::optim::UpdateStep;
use burn::tensor::Tensor;

use crate::config::optimizer_rules;

use super::rule::{Rule, State, Unit, Update, Values};

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::ADEMAMIX,
    states: &[State::zeros("exp_avg"), State::zeros("exp_avg_sq"), State::zeros("exp_avg_slow")],
    unit: Unit::Element,
    update: |settings| {
        Arc::new(AdEMAMix {
            beta1: settings.adam_beta1,
            beta2: settings.adam_beta2,
            beta3: settings.ademamix_beta3,
            alpha: settings.ademamix_alpha,
            epsilon: settings.adam_eps,
            alpha_warmup: settings.ademamix_alpha_warmup,
            beta3_warmup: settings.ademamix_beta3_warmup,
        })
    },
};

#[derive(Debug)]
struct AdEMAMix {
    beta1: f64,
    beta2: f64,
    /// Decay of the slow momentum after its warm-up.
    beta3: f64,
    /// Weight of the slow momentum after its warm-up.
    alpha: f64,
    epsilon: f64,
    /// Steps in which the weight grows linearly.
    alpha_warmup: usize,
    /// Steps in which the half-life of the slow momentum grows linearly, from that of `beta1`.
    beta3_warmup: usize,
}

impl AdEMAMix {
    /// Weight of the slow momentum at a step (section 3).
    fn alpha_at(&self, step: u64) -> f64 {
        self.alpha * warmed_up(step, self.alpha_warmup)
    }

    /// Decay of the slow momentum at a step: its half-life, which is proportional to `1 /
    /// ln(beta)`, is interpolated (section 3).
    fn beta3_at(&self, step: u64) -> f64 {
        let share = warmed_up(step, self.beta3_warmup);
        // Half-lives of decays of 0 are 0.
        if share == 1.0 || self.beta1 == 0.0 || self.beta3 == 0.0 {
            return self.beta3;
        }
        let (first, last) = (self.beta1.ln(), self.beta3.ln());
        (first * last / ((1.0 - share) * last + share * first)).exp().min(self.beta3)
    }
}

/// Completed share of a warm-up.
fn warmed_up(step: u64, warmup: usize) -> f64 {
    if step < warmup as u64 { step as f64 / warmup as f64 } else { 1.0 }
}

impl Update for AdEMAMix {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        let (parameter, [exp_avg, exp_avg_sq, slow]) = values.split();
        let n = i32::try_from(step.number).unwrap_or(i32::MAX);
        let (alpha, beta3) = (self.alpha_at(step.number), self.beta3_at(step.number));
        let gradient = gradient * step.gradient_scale;
        let exp_avg = exp_avg * self.beta1 + gradient.clone() * (1.0 - self.beta1);
        let slow = slow * beta3 + gradient.clone() * (1.0 - beta3);
        let exp_avg_sq = exp_avg_sq * self.beta2 + gradient.powi_scalar(2) * (1.0 - self.beta2);
        let root = exp_avg_sq.clone().sqrt() / (1.0 - self.beta2.powi(n)).sqrt() + self.epsilon * step.eps_mult;
        let direction = (exp_avg.clone() / (1.0 - self.beta1.powi(n)) + slow.clone() * alpha) / root;
        let kept = parameter * (1.0 - step.learning_rate * step.weight_decay);
        Values { parameter: kept - direction * step.learning_rate, states: vec![exp_avg, exp_avg_sq, slow] }
    }
}

#[cfg(test)]
mod tests {
    use super::super::named;
    use super::super::tests::{Element, agrees_with_float64};
    use crate::config::OptimizerConfig;

    /// Algorithm 1 for one element, with half-lives in steps as the authors' code has them.
    fn reference(state: &mut Element<3>, g: f64, t: u64, [lr, decay]: [f64; 2]) {
        let [b1, b2, b3, alpha, eps, alpha_warmup, beta3_warmup] = [0.8, 0.95, 0.999, 5.0, 1e-6, 4.0, 7.0];
        let now = t as f64;
        let alpha = alpha * (now / alpha_warmup).min(1.0);
        let half_life = |beta: f64| 0.5_f64.ln() / beta.ln() - 1.0;
        let share = (now / beta3_warmup).min(1.0);
        let b3 = 0.5_f64.powf(1.0 / ((1.0 - share) * half_life(b1) + share * half_life(b3) + 1.0));
        let Element { value, states: [m, v, slow] } = state;
        *m = b1 * *m + (1.0 - b1) * g;
        *slow = b3 * *slow + (1.0 - b3) * g;
        *v = b2 * *v + (1.0 - b2) * g * g;
        let (c1, c2) = (1.0 - b1.powi(t as i32), 1.0 - b2.powi(t as i32));
        *value -= lr * ((*m / c1 + alpha * *slow) / ((*v / c2).sqrt() + eps) + decay * *value);
    }

    #[test]
    fn ten_steps_agree_with_float64() {
        let settings = OptimizerConfig {
            adam_beta1: 0.8,
            adam_beta2: 0.95,
            adam_eps: 1e-6,
            ademamix_beta3: 0.999,
            ademamix_alpha: 5.0,
            ademamix_alpha_warmup: 4,
            ademamix_beta3_warmup: 7,
            ..OptimizerConfig::default()
        };
        let rule = named("ademamix").unwrap();
        assert_eq!(rule.state_bytes(&settings, &[1]), 12, "plans count three moments");
        agrees_with_float64(&rule.with(&settings), reference);
    }
}
