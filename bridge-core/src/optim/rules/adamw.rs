//! Adam, with weight decay decoupled (AdamW) or in the gradient.

use std::sync::Arc;

use bridge_kernels::optim::{
    AdamW, AdamWState, AdamWUpdates, Format, LowPrecisionAdamW, LowPrecisionFormats, UpdateStep, adamw,
    adamw_low_precision, adamw_magnitudes,
};
use burn::tensor::Tensor;

use crate::config::{DType, optimizer_rules};

use super::rule::{
    LowPrecisionUpdate, LowPrecisionValues, Rule, State, StateFormats, Unit, Update, UpdateBatch, Values,
};

pub(super) const RULE: Rule = Rule {
    declared: &optimizer_rules::ADAM,
    states: &[
        State { format: Some(|settings| format_of(settings.exp_avg_dtype)), ..State::zeros("exp_avg") },
        State { format: Some(|settings| format_of(settings.exp_avg_sq_dtype)), ..State::zeros("exp_avg_sq") },
    ],
    unit: Unit::Element,
    update: |settings| {
        Arc::new(AdamW {
            beta1: settings.adam_beta1,
            beta2: settings.adam_beta2,
            epsilon: settings.adam_eps,
            decoupled: settings.decoupled_weight_decay,
        })
    },
};

fn format_of(dtype: DType) -> Format {
    match dtype {
        DType::Float32 => Format::Float32,
        DType::BFloat16 => Format::BFloat16,
        DType::Float16 => Format::Float16,
        DType::UInt8 => Format::Float8,
    }
}

impl Update for AdamW {
    fn update(&self, values: Values, gradient: Tensor<1>, step: &UpdateStep<'_>) -> Values {
        let (parameter, [exp_avg, exp_avg_sq]) = values.split();
        let state = adamw(AdamWState { parameter, exp_avg, exp_avg_sq }, gradient, self, step);
        Values { parameter: state.parameter, states: vec![state.exp_avg, state.exp_avg_sq] }
    }

    fn batch(&self) -> Option<Box<dyn UpdateBatch>> {
        Some(Box::new(Batch { rule: *self, updates: AdamWUpdates::default() }))
    }

    fn low_precision(&self) -> Option<&dyn LowPrecisionUpdate> {
        Some(self)
    }
}

/// Updates that are launched several at a time.
#[derive(Debug)]
struct Batch {
    rule: AdamW,
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
        let (state, rounded) = self.updates.add(state, gradient, &self.rule, step, previous);
        (Values { parameter: state.parameter, states: vec![state.exp_avg, state.exp_avg_sq] }, rounded)
    }

    fn finish(self: Box<Self>) {
        self.updates.finish();
    }
}

impl LowPrecisionUpdate for AdamW {
    fn magnitudes(&self, values: &LowPrecisionValues, gradient: &Tensor<1>, step: &UpdateStep<'_>) -> Vec<f32> {
        adamw_magnitudes(&state(values.clone()), gradient, self, step).to_vec()
    }

    fn update(
        &self,
        values: LowPrecisionValues,
        gradient: Tensor<1>,
        step: &UpdateStep<'_>,
        formats: &StateFormats,
        scales: &[f32],
    ) -> LowPrecisionValues {
        let formats = LowPrecisionFormats { master: formats.master, moments: [formats.states[0], formats.states[1]] };
        let scales = scales.try_into().expect("one of the master and one of each moment");
        let updated = adamw_low_precision(state(values), gradient, self, step, &formats, scales);
        let LowPrecisionAdamW { parameter, master, moments } = updated;
        LowPrecisionValues { parameter, master, states: moments.into() }
    }
}

fn state(values: LowPrecisionValues) -> LowPrecisionAdamW {
    let LowPrecisionValues { parameter, master, states } = values;
    LowPrecisionAdamW { parameter, master, moments: states.try_into().expect("there are two moments") }
}
