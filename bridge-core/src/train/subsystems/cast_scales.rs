//! Moves the scales of 8-bit operands (`model.fp8_recipe = "delayed"`) after each step: by the
//! largest magnitudes of the last steps, of all ranks that share a layer.

use std::collections::BTreeMap;

use bridge_dist::comm::{Group, ReduceOp};
use bridge_kernels::{Fp8Format, OperandMaxima};

use crate::config::{AmaxAlgo, Fp8Format as FormatName, Fp8Recipe, RunConfig};
use crate::model::{CAST_HISTORY, CAST_SCALES, DelayedScalingLayer, ReplicaGroup};
use crate::train::reporting::report::StepReport;
use crate::train::subsystems::contract::{LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

/// The place of gradients among the operands: input, weight, gradient.
const GRADIENT: usize = 2;
/// The place of weights.
const WEIGHT: usize = 1;

pub(super) struct CastScales {
    /// Format of the gradients.
    gradient: Fp8Format,
    algo: AmaxAlgo,
    /// Margin of scales below the largest fitting one, in powers of two.
    margin: i64,
}

/// A layer on this rank.
struct Layer {
    chunk: usize,
    name: String,
    maxima: [f64; 3],
    replicas: ReplicaGroup,
}

impl CastScales {
    /// `None` unless scales come from earlier steps.
    pub fn new(config: &RunConfig) -> Option<Self> {
        let model = &config.model;
        let gradient = match model.fp8? {
            FormatName::E4m3 => Fp8Format::E4M3,
            FormatName::Hybrid => Fp8Format::E5M2,
        };
        let is_delayed = model.fp8_recipe == Some(Fp8Recipe::Delayed);
        is_delayed.then(|| Self { gradient, algo: model.fp8_amax_compute_algo, margin: model.fp8_margin })
    }

    /// The next history of an operand, newest first, and its next scale.
    fn next(&self, operand: usize, history: &[f32], largest: f32, scale: f32) -> (Vec<f32>, f32) {
        let kept = history.len().saturating_sub(1);
        let history: Vec<f32> = std::iter::once(largest).chain(history[..kept].iter().copied()).collect();
        let largest = match self.algo {
            AmaxAlgo::MostRecent => largest,
            AmaxAlgo::Max => history.iter().copied().fold(0.0, f32::max),
        };
        let format = if operand == GRADIENT { self.gradient } else { Fp8Format::E4M3 };
        let is_usable = largest > 0.0 && largest.is_finite();
        let next = f64::from(format.largest()) / f64::from(largest) / 2.0_f64.powi(self.margin as i32);
        let next = if is_usable { (next as f32).min(f32::MAX) } else { scale };
        (history, next)
    }

    /// The next histories of a layer's operands, one after the other, and their next scales.
    /// `history` has a row an operand.
    fn next_of(&self, maxima: [f64; 3], scales: &[f32], history: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let rows = history.chunks_exact((history.len() / 3).max(1)).zip(maxima).zip(scales).enumerate();
        let (histories, next): (Vec<Vec<f32>>, Vec<f32>) =
            rows.map(|(operand, ((row, largest), scale))| self.next(operand, row, largest as f32, *scale)).unzip();
        let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect();
        (wide(histories.concat()), wide(next))
    }
}

/// A magnitude as it counts. One that is not finite is 0: a step that overflowed says nothing of
/// the next one.
fn usable(largest: f32) -> f64 {
    if largest.is_finite() { f64::from(largest) } else { 0.0 }
}

/// Magnitudes of this step on this rank, read at once.
fn noted(run: &RunContext) -> Vec<Layer> {
    let mut layers: Vec<(usize, DelayedScalingLayer)> = Vec::new();
    for (chunk, model) in run.chunks().iter().enumerate() {
        layers.extend(model.delayed_scaling_layers().iter().map(|layer| (chunk, layer.clone())));
    }
    let maxima = OperandMaxima::take_all(layers.iter().map(|(_, layer)| layer.maxima.as_ref()));
    let of_layer =
        |((chunk, DelayedScalingLayer { name, replicas, .. }), maxima): ((usize, DelayedScalingLayer), [f32; 3])| {
            Layer { chunk, name, maxima: maxima.map(usable), replicas }
        };
    layers.into_iter().zip(maxima).map(of_layer).collect()
}

/// If weights are gathered as 8-bit codes, layers see the decoded values: the relevant magnitudes
/// are those of each rank's own part.
fn own_weights(run: &mut RunContext, layers: &mut [Layer]) {
    let own = run.training.optimizer.parameters().take_cast_amax();
    for layer in layers {
        if let Some(largest) = own.get(&format!("{}.weight", layer.name)) {
            layer.maxima[WEIGHT] = usable(*largest);
        }
    }
}

/// The largest over the ranks that share layers: replicas, and those that have other parts of them.
fn share(layers: &mut [Layer], replicas: ReplicaGroup, groups: [&Group; 2]) -> Result<(), SubsystemError> {
    let mut of_kind: Vec<&mut Layer> = layers.iter_mut().filter(|layer| layer.replicas == replicas).collect();
    let mut all: Vec<f64> = of_kind.iter().flat_map(|layer| layer.maxima).collect();
    if all.is_empty() {
        return Ok(());
    }
    for group in groups {
        group.all_reduce((&mut all).into(), ReduceOp::Max)?;
    }
    of_kind.iter_mut().zip(all.as_chunks::<3>().0).for_each(|(layer, maxima)| layer.maxima = *maxima);
    Ok(())
}

impl Subsystem for CastScales {
    fn name(&self) -> &str {
        "scales of 8-bit operands"
    }

    fn after_step(&mut self, run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        if step.skipped {
            run.chunks()
                .iter()
                .flat_map(|chunk| chunk.delayed_scaling_layers())
                .for_each(|layer| layer.maxima.forget());
            return Ok(LoopRequest::default());
        }
        let mut layers = noted(run);
        own_weights(run, &mut layers);
        let groups = run.groups;
        share(&mut layers, ReplicaGroup::Dense, [groups.tensor(), groups.data_context()])?;
        share(&mut layers, ReplicaGroup::Expert, [groups.expert_tensor(), groups.expert_data()])?;
        let training = &mut *run.training;
        for (index, chunk) in training.chunks.iter_mut().enumerate() {
            let here: Vec<&Layer> = layers.iter().filter(|layer| layer.chunk == index).collect();
            let names = |parameter: &str| here.iter().map(|layer| format!("{}.{parameter}", layer.name)).collect();
            let [scales, histories]: [Vec<String>; 2] = [CAST_SCALES, CAST_HISTORY].map(names);
            let parameters = training.optimizer.parameters();
            // All of a chunk are read at once: a device is waited for once.
            let all: Vec<&str> = scales.iter().chain(&histories).map(String::as_str).collect();
            let values = parameters.frozen_values(chunk.as_ref(), &all)?;
            let (before, old) = values.split_at(here.len());
            let mut values = BTreeMap::new();
            for (place, layer) in here.iter().enumerate() {
                let (history, next) = self.next_of(layer.maxima, &before[place], &old[place]);
                values.insert(scales[place].clone(), next);
                values.insert(histories[place].clone(), history);
            }
            parameters.set_frozen(index, chunk.as_mut(), &values)?;
        }
        Ok(LoopRequest::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scales(algo: AmaxAlgo, margin: i64) -> CastScales {
        CastScales { gradient: Fp8Format::E5M2, algo, margin }
    }

    #[test]
    fn scales_follow_the_largest_of_the_history_or_the_newest() {
        let next = |algo, margin, operand| scales(algo, margin).next(operand, &[2.0, 8.0, 1.0], 4.0, 7.0);
        assert_eq!(next(AmaxAlgo::Max, 0, 0), (vec![4.0, 2.0, 8.0], 56.0));
        assert_eq!(next(AmaxAlgo::MostRecent, 0, 1), (vec![4.0, 2.0, 8.0], 112.0));
        assert_eq!(next(AmaxAlgo::Max, 2, 0).1, 14.0);
        assert_eq!(next(AmaxAlgo::Max, 0, 2).1, 7168.0);
    }

    #[test]
    fn nothing_new_leaves_the_scale() {
        assert_eq!(scales(AmaxAlgo::MostRecent, 0).next(0, &[3.0], 0.0, 5.0), (vec![0.0], 5.0));
        assert_eq!(scales(AmaxAlgo::Max, 0).next(0, &[0.0, 0.0], 0.0, 5.0).1, 5.0);
        assert_eq!(scales(AmaxAlgo::Max, 0).next(0, &[0.0, 0.0], 1e-42, 5.0).1, f32::MAX);
    }
}
