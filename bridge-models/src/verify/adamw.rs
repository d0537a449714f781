//! The optimizer of reference values.

use std::collections::HashMap;

use bridge_core::model::ModelChunk;
use bridge_kernels::optim::{self, AdamWState, UpdateStep, adamw, sum_of_squares};
use burn::tensor::Tensor;

use super::NamedGradients;

/// The reference's optimizer.
#[derive(Default)]
pub(super) struct AdamW {
    moments: HashMap<String, (Tensor<1>, Tensor<1>)>,
    steps: u64,
}

impl AdamW {
    /// One step; returns the gradient's norm before clipping.
    pub fn step(&mut self, chunk: &mut dyn ModelChunk, mut gradients: NamedGradients) -> f64 {
        const MAX_NORM: f64 = 1.0;
        const RULE: optim::AdamW = optim::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, decoupled: true };
        self.steps += 1;
        let norm = gradients.values().map(sum_of_squares).sum::<f64>().sqrt();
        // The small constant is torch.nn.utils.clip_grad_norm_'s.
        let clip = (MAX_NORM / (norm + 1e-6)).min(1.0);
        let shapes: HashMap<String, Vec<usize>> =
            chunk.parameters().iter().map(|info| (info.name.clone(), info.shape.clone())).collect();
        chunk.update_parameters(&mut |name, parameter| {
            let Some(gradient) = gradients.remove(name) else { return parameter.into() };
            let (exp_avg, exp_avg_sq) =
                self.moments.remove(name).unwrap_or_else(|| (parameter.zeros_like(), parameter.zeros_like()));
            let shape = &shapes[name];
            let step = UpdateStep {
                learning_rate: 1e-3,
                weight_decay: if shape.len() >= 2 { 0.1 } else { 0.0 },
                eps_mult: 1.0,
                number: self.steps,
                gradient_scale: clip,
                shape,
            };
            let state = adamw(AdamWState { parameter, exp_avg, exp_avg_sq }, gradient, &RULE, &step);
            self.moments.insert(name.to_owned(), (state.exp_avg, state.exp_avg_sq));
            state.parameter.into()
        });
        norm
    }
}
