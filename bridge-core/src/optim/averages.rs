//! Averages of weights over steps: exponential moving averages (`optimizer.ema_decay`), and the
//! exchange of averages and weights around evaluations.

use std::collections::BTreeMap;

use bridge_dist::comm::CommError;
use bridge_kernels::optim::Stored;
use burn::tensor::{FloatDType, Tensor};

use super::Optimizer;
use super::gradients::to_float32;
use super::offload::to_device;
use super::optimizer::ParameterVisitor;
use super::rules::AVERAGE;
use crate::model::{ModelChunk, Replacement};

/// Averages of the weights that this rank updates, in float32, by name.
#[derive(Debug, Default)]
pub(super) struct Averages(pub BTreeMap<String, Tensor<1>>);

impl Averages {
    /// Bytes of all, and those in the memory of this process.
    pub fn bytes(&self) -> (u64, u64) {
        let mut sums = (0, 0);
        for average in self.0.values().cloned().map(Stored::Plain) {
            sums.0 += average.bytes();
            sums.1 += if average.address().is_some() { average.bytes() } else { 0 };
        }
        sums
    }
}

impl Optimizer {
    /// Moves averages towards the weights after a step. The first weights are the first averages.
    pub(super) fn average(&mut self, visit: impl FnOnce(&mut ParameterVisitor<'_>)) {
        let Some(decay) = self.settings.ema_decay else { return };
        let Self { slots, averages, trained, .. } = self;
        visit(&mut |name, value| {
            if !trained.contains_key(name) {
                return;
            }
            let master = slots.get(name).and_then(|slot| slot.master_value(value));
            let value = master.unwrap_or_else(|| to_float32(value.clone()));
            let average = match averages.0.remove(name) {
                Some(average) => average * decay + value * (1.0 - decay),
                None => value,
            };
            averages.0.insert(name.to_owned(), average);
        });
    }

    /// Averages by which the model is evaluated, of the elements that this rank updates; empty if
    /// the model is evaluated by its weights.
    pub fn averages(&self) -> BTreeMap<String, Tensor<1>> {
        if self.settings.ema_decay.is_some() {
            return self.averages.0.clone();
        }
        let of_slots = self.slots.iter().filter_map(|(name, slot)| {
            let states = self.algorithm_of(name)?.rule.states;
            let index = states.iter().position(|state| state.name == AVERAGE)?;
            match slot.states[index].as_ref()? {
                Stored::Plain(average) => Some((name.clone(), average.clone())),
                _ => None,
            }
        });
        of_slots.collect()
    }

    /// Puts `values` in the place of the weights that this rank updates, and returns these. All
    /// ranks call this together.
    ///
    /// # Errors
    /// If parameters cannot be gathered.
    pub fn exchange_weights(
        &mut self,
        chunks: &mut [Box<dyn ModelChunk>],
        mut values: BTreeMap<String, Tensor<1>>,
    ) -> Result<BTreeMap<String, Tensor<1>>, CommError> {
        let mut weights = BTreeMap::new();
        let mut exchanged = |name: &str, weight: &Tensor<1>| {
            let value = to_device(values.remove(name)?, &weight.device());
            weights.insert(name.to_owned(), weight.clone());
            Some(value.cast(FloatDType::from(weight.dtype())))
        };
        if self.distribution.sharding().divides_state() {
            let owned = self.parameters.owned(chunks)?;
            let owned = owned.into_iter().map(|(name, weight)| {
                let value = exchanged(&name, &weight).unwrap_or(weight);
                (name, value)
            });
            let owned = owned.collect();
            self.parameters.set_owned(chunks, owned)?;
            self.parameters.wait_for_gathers(chunks)?;
        } else {
            for chunk in chunks {
                chunk.update_parameters(&mut |name, weight| {
                    exchanged(name, &weight).map_or(Replacement::Kept, Replacement::Value)
                });
            }
        }
        Ok(weights)
    }
}
