//! Adam, with weight decay decoupled (AdamW) or in the gradient.

use bridge_kernels::optim::{
    AdamWState, AdamWStep, AdamWUpdates, ReducedAdamW, ReducedFormats, adamw, adamw_magnitudes, adamw_reduced,
};
use burn::tensor::Tensor;
use serde::Deserialize;

use crate::config::optimizer_rules;

use super::rule::{
    ReducedUpdate, ReducedValues, Rule, State, StateFormats, Unit, Update, UpdateBatch, UpdateStep, Values, read,
};

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::ADAM,
    states: &[State::zeros("exp_avg"), State::zeros("exp_avg_sq")],
    unit: Unit::Element,
    read: read::<Adam>,
};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Adam {
    adam_beta1: f64,
    adam_beta2: f64,
    adam_eps: f64,
    decoupled_weight_decay: bool,
}

impl Adam {
    fn constants(&self, step: &UpdateStep<'_>) -> AdamWStep {
        AdamWStep {
            lr: step.learning_rate,
            beta1: self.adam_beta1,
            beta2: self.adam_beta2,
            epsilon: self.adam_eps * step.eps_mult,
            weight_decay: step.weight_decay,
            decoupled: self.decoupled_weight_decay,
            step: step.number,
            gradient_scale: step.gradient_scale,
        }
    }
}

impl Update for Adam {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        let (parameter, [exp_avg, exp_avg_sq]) = values.split();
        let state = adamw(AdamWState { parameter, exp_avg, exp_avg_sq }, gradient, &self.constants(step));
        Values { parameter: state.parameter, states: vec![state.exp_avg, state.exp_avg_sq] }
    }

    fn batch(&self) -> Option<Box<dyn UpdateBatch>> {
        Some(Box::new(Batch { rule: self.clone(), updates: AdamWUpdates::default() }))
    }

    fn reduced(&self) -> Option<&dyn ReducedUpdate> {
        Some(self)
    }
}

/// Updates that are launched several at a time.
#[derive(Debug)]
struct Batch {
    rule: Adam,
    updates: AdamWUpdates,
}

impl UpdateBatch for Batch {
    fn add(
        &mut self,
        values: Values,
        gradient: Tensor<1>,
        step: &UpdateStep<'_>,
        previous: Option<Tensor<1>>,
    ) -> (Values, Option<Tensor<1>>) {
        let (parameter, [exp_avg, exp_avg_sq]) = values.split();
        let state = AdamWState { parameter, exp_avg, exp_avg_sq };
        let (state, rounded) = self.updates.add(state, gradient, &self.rule.constants(step), previous);
        (Values { parameter: state.parameter, states: vec![state.exp_avg, state.exp_avg_sq] }, rounded)
    }

    fn finish(self: Box<Self>) {
        self.updates.finish();
    }
}

impl ReducedUpdate for Adam {
    fn magnitudes(&self, values: &ReducedValues, gradient: &Tensor<1>, step: &UpdateStep<'_>) -> Vec<f32> {
        adamw_magnitudes(&state(values.clone()), gradient, &self.constants(step)).to_vec()
    }

    fn update(
        &self,
        values: ReducedValues,
        gradient: Tensor<1>,
        step: &UpdateStep<'_>,
        formats: &StateFormats,
        scales: &[f32],
    ) -> ReducedValues {
        let formats = ReducedFormats { master: formats.master, moments: [formats.states[0], formats.states[1]] };
        let scales = scales.try_into().expect("one of the master and one of each moment");
        let updated = adamw_reduced(state(values), gradient, &self.constants(step), &formats, scales);
        let ReducedAdamW { parameter, master, moments } = updated;
        ReducedValues { parameter, master, states: moments.into() }
    }
}

fn state(values: ReducedValues) -> ReducedAdamW {
    let ReducedValues { parameter, master, states } = values;
    ReducedAdamW { parameter, master, moments: states.try_into().expect("there are two moments") }
}
