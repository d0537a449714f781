//! Moves the biases by which routers choose experts, so that all are used alike: after each step up
//! where an expert was given fewer tokens than the mean, down where more, by a fixed rate (Wang et
//! al., arXiv:2408.15664). Loads are those of the whole step on all ranks.

use std::collections::BTreeMap;

use crate::config::RunConfig;
use crate::model::{ModelChunk, ParameterRole};
use crate::train::reporting::report::StepReport;
use crate::train::subsystems::contract::{LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;
use bridge_dist::comm::ReduceOp;

#[derive(Default)]
pub(super) struct ExpertBiases {
    /// Per step; zero where biases stay as they are.
    rate: f32,
    /// Biases of all layers that have them, on any rank, by global number. The parameters are
    /// float32 in every run.
    by_layer: BTreeMap<usize, Vec<f64>>,
}

/// The biases that a chunk holds: name and layer.
fn held(chunk: &dyn ModelChunk) -> Vec<(String, usize)> {
    let biases = chunk.parameters().iter().filter(|parameter| parameter.role == ParameterRole::ExpertBias);
    biases.map(|parameter| (parameter.name.clone(), parameter.layer.expect("a router is in a layer"))).collect()
}

impl ExpertBiases {
    pub fn new(config: &RunConfig) -> Self {
        let model = &config.model;
        let rate = if model.moe_router_enable_expert_bias { model.moe_router_bias_update_rate as f32 } else { 0.0 };
        Self { rate, by_layer: BTreeMap::new() }
    }

    /// Reads the biases of all layers from the ranks that hold them. All ranks call this together.
    fn read(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let model = &run.state.config.model;
        let (layers, experts) = (model.layers_with_experts(), model.routed_experts().unwrap_or(0));
        let mut all = vec![0.0; layers.len() * experts];
        let training = &mut *run.training;
        for chunk in &training.chunks {
            let here = held(chunk.as_ref());
            let names: Vec<&str> = here.iter().map(|(name, _)| name.as_str()).collect();
            let values = training.optimizer.parameters().frozen_values(chunk.as_ref(), &names)?;
            for ((_, layer), values) in here.iter().zip(values) {
                if let Ok(place) = layers.binary_search(layer) {
                    let place = all[place * experts..].iter_mut();
                    place.zip(values).for_each(|(place, value)| *place = f64::from(value));
                }
            }
        }
        // A layer is on one stage.
        run.groups.pipeline().all_reduce((&mut all).into(), ReduceOp::Sum)?;
        let by_layer = layers.into_iter().zip(all.chunks(experts.max(1)));
        self.by_layer = by_layer.map(|(layer, biases)| (layer, biases.to_vec())).collect();
        Ok(())
    }

    /// Gives the parameters here their values.
    fn write(&self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let training = &mut *run.training;
        for (index, chunk) in training.chunks.iter_mut().enumerate() {
            let here = held(chunk.as_ref()).into_iter();
            let values = here.filter_map(|(name, layer)| Some((name, self.by_layer.get(&layer)?.clone()))).collect();
            training.optimizer.parameters().set_frozen(index, chunk.as_mut(), &values)?;
        }
        Ok(())
    }
}

/// Moves each bias by `rate` towards equal loads.
fn move_biases(biases: &mut [f64], tokens_per_expert: &[u64], rate: f32) {
    let mean = tokens_per_expert.iter().sum::<u64>() as f64 / tokens_per_expert.len() as f64;
    for (bias, tokens) in biases.iter_mut().zip(tokens_per_expert) {
        let towards = match (*tokens as f64).total_cmp(&mean) {
            std::cmp::Ordering::Less => rate,
            std::cmp::Ordering::Equal => 0.0,
            std::cmp::Ordering::Greater => -rate,
        };
        *bias = f64::from(*bias as f32 + towards);
    }
}

impl Subsystem for ExpertBiases {
    fn name(&self) -> &str {
        "biases of experts"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        if self.rate == 0.0 { Ok(()) } else { self.read(run) }
    }

    fn after_step(&mut self, run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        if self.rate == 0.0 || step.skipped {
            return Ok(LoopRequest::default());
        }
        for router in &step.routers {
            if let Some(biases) = self.by_layer.get_mut(&router.layer) {
                move_biases(biases, &router.tokens_per_expert, self.rate);
            }
        }
        self.write(run)?;
        Ok(LoopRequest::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_move_by_the_sign_of_what_is_missing() {
        let mut biases = vec![0.5, 0.0, -0.25, 1.0];
        move_biases(&mut biases, &[4, 1, 2, 1], 0.125);
        assert_eq!(biases, [0.375, 0.125, -0.25, 1.125]);
        // Biases are float32 values.
        let mut biases = vec![f64::from(0.1_f32)];
        move_biases(&mut biases, &[0], 1e-3);
        assert_eq!(biases, [f64::from(0.1_f32)], "a single expert has the mean load");
    }
}
