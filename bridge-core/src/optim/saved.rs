//! The state of an optimizer as it is saved, and how it comes back.

use std::collections::BTreeMap;
use std::ops::Range;

use bridge_kernels::optim::{Master, MasterFormat, Remainders, Stored};
use burn::tensor::{DType, Device, FloatDType, Tensor};

use super::Optimizer;
use super::flat::part;
use super::offload::{host, stored_in_host};
use super::rules::AVERAGE;
use super::slot::Slot;
use crate::model::ModelChunk;

/// The master weight's name in checkpoints, beside those of states.
pub(crate) const MASTER: &str = "master";

/// Saved state of an optimizer: named tensors and the number of steps made.
///
/// With a sharded optimizer each rank has only a range of each tensor; the ranks of
/// `Distribution::shards` together have all of it. Ranks cut all tensors of a parameter alike, in
/// rank order (see [`owned_range`](super::owned_range)).
#[derive(Clone, Debug, Default)]
pub struct OptimizerState {
    /// `master.{parameter}` and `{state}.{parameter}` for each state of the rule, to its value,
    /// flat. Cloning shares memory.
    pub tensors: BTreeMap<String, Stored>,
    /// `master.{parameter}` of masters that are stored as the low bits missing in their parameters.
    pub remainders: BTreeMap<String, Remainders>,
    /// Range of each of these tensors in this rank's shard of the parameter, flat and row-major. A
    /// tensor without an entry covers the whole shard.
    pub ranges: BTreeMap<String, Range<usize>>,
    /// Shapes of those tensors that this rank has whole, however the parameter is sharded: states
    /// of rules of whole parameters.
    pub whole: BTreeMap<String, Vec<usize>>,
    /// Number of successful steps.
    pub step: u64,
}

/// Part of a saved tensor that is on this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// This range of the rank's shard of the parameter.
    Range(Range<usize>),
    /// A whole tensor of this shape.
    Whole(Vec<usize>),
}

impl Optimizer {
    /// State to save, of this rank.
    pub fn state(&self) -> OptimizerState {
        let mut state = OptimizerState { step: self.step, ..OptimizerState::default() };
        for (name, slot) in &self.slots {
            let range = self.distribution.state_range(name);
            let mut add = |kind: &str| {
                let key = format!("{kind}.{name}");
                state.ranges.extend(range.clone().map(|range| (key.clone(), range)));
                key
            };
            match &slot.master {
                Some(Master::Whole(stored)) => drop(state.tensors.insert(add(MASTER), stored.as_ref().clone())),
                Some(Master::Remainders(remainders)) => {
                    state.remainders.insert(add(MASTER), remainders.clone());
                }
                None => {}
            }
            let algorithm = self.algorithm_of(name).expect("parameters with state are trained");
            let kinds = algorithm.rule.states.iter().zip(&slot.states);
            for (kind, stored) in kinds.filter_map(|(kind, stored)| Some((kind, stored.as_ref()?))) {
                let key = match self.state_part(kind.name, name) {
                    Some(StatePart::Whole(shape)) => {
                        let key = format!("{}.{name}", kind.name);
                        state.whole.insert(key.clone(), shape);
                        key
                    }
                    _ => add(kind.name),
                };
                state.tensors.insert(key, stored.clone());
            }
        }
        for (name, average) in &self.averages.0 {
            let key = format!("{AVERAGE}.{name}");
            state.ranges.extend(self.distribution.state_range(name).map(|range| (key.clone(), range)));
            state.tensors.insert(key, Stored::Plain(average.clone()));
        }
        state
    }

    /// Elements of each trained parameter that this rank updates, with their current values.
    /// Gathers in flight must be complete.
    pub fn updated(&self, chunks: &[Box<dyn ModelChunk>]) -> BTreeMap<String, Tensor<1>> {
        let mut updated = BTreeMap::new();
        self.parameters.visit_kept(chunks, &mut |name, value| {
            if let Some(range) = self.distribution.state_range(name) {
                let is_own_part = value.dims()[0] == range.len();
                let value = if is_own_part { value.clone() } else { part(value.clone(), &range) };
                updated.insert(name.to_owned(), value);
            }
        });
        updated
    }

    /// The part of a kind of saved tensor of a parameter that is on this rank; `None` if the
    /// optimizer has no such tensor, or another rank has it.
    pub fn state_part(&self, kind: &str, parameter: &str) -> Option<StatePart> {
        let range = || self.distribution.state_range(parameter).map(StatePart::Range);
        if kind == MASTER || (kind == AVERAGE && self.settings.ema_decay.is_some()) {
            return range();
        }
        let algorithm = self.algorithm_of(parameter)?;
        let state = algorithm.rule.states.iter().find(|state| state.name == kind)?;
        let shape = || state.shape_for(&algorithm.settings, &self.trained[parameter].shape);
        match self.owns_whole(parameter) {
            Some(is_owner) => is_owner.then(|| StatePart::Whole(shape())),
            None => range(),
        }
    }

    /// The dtype that a kind of saved tensor must have; `None` for kinds that may come in any
    /// format.
    pub fn required_dtype(&self, kind: &str, parameter: &str) -> Option<FloatDType> {
        let rule = self.algorithm_of(parameter)?.rule;
        let state = rule.states.iter().find(|state| state.name == kind && !rule.declared.keeps_formats());
        state.map(|state| state.dtype)
    }

    /// The device that has the state of a parameter which is on `device`.
    pub fn state_device(&self, parameter: &str, device: &Device) -> Device {
        if self.offload.has(parameter) { host() } else { device.clone() }
    }

    /// Drops all state. Call [`load_tensor`](Self::load_tensor) with the saved state next.
    pub fn begin_loading(&mut self, step: u64) {
        self.step = step;
        self.slots.clear();
        self.averages.0.clear();
    }

    /// Restores saved state. Returns the names of saved tensors that belong to no parameter of this
    /// optimizer.
    ///
    /// A tensor may cover all that this rank's model holds of a parameter, or just the range whose
    /// state is on this rank. It may have another format than that in which the optimizer keeps it,
    /// until the next step. Remainders cover the range, and go with the parameters as they are now.
    pub fn load_state(&mut self, state: OptimizerState) -> Vec<String> {
        self.begin_loading(state.step);
        let tensors = state.tensors.into_iter();
        let unknown = tensors.filter_map(|(key, stored)| (!self.load_tensor(&key, stored, None)).then_some(key));
        let mut unknown: Vec<String> = unknown.collect();
        for (key, remainders) in state.remainders {
            match self.parameter_of(&key) {
                Some((MASTER, name)) => {
                    let empty = Slot::empty(self.algorithm_of(name).expect("it is trained"));
                    let slot = self.slots.entry(name.to_owned()).or_insert(empty);
                    slot.master = Some(Master::Remainders(remainders));
                }
                _ => unknown.push(key),
            }
        }
        unknown
    }

    /// Restores one saved tensor, as [`load_state`](Self::load_state); false if it belongs to no
    /// parameter of this optimizer. A master is converted to the optimizer's format at once;
    /// `parameter` is the part of its parameter that this rank updates.
    pub fn load_tensor(&mut self, key: &str, stored: Stored, parameter: Option<&Tensor<1>>) -> bool {
        let Some((kind, name)) = self.parameter_of(key) else { return false };
        let Some(part) = self.state_part(kind, name) else { return false };
        let algorithm = self.algorithm_of(name).expect("it is trained").clone();
        let stored = match part {
            StatePart::Range(range) if range.end <= stored.len() && range.len() < stored.len() => stored.part(&range),
            _ => stored,
        };
        let stored = if self.offload.has(name) { stored_in_host(stored) } else { stored };
        if kind == AVERAGE && self.settings.ema_decay.is_some() {
            let device = parameter.map_or_else(host, Tensor::device);
            self.averages.0.insert(name.to_owned(), stored.into_plain(&device));
            return true;
        }
        let keeps_remainders = algorithm.formats.as_ref().is_some_and(|f| f.master == MasterFormat::Remainders);
        let slot = self.slots.entry(name.to_owned()).or_insert_with(|| Slot::empty(&algorithm));
        match algorithm.rule.states.iter().position(|state| state.name == kind) {
            Some(index) => {
                let format = algorithm.formats.as_ref().map(|formats| formats.states[index]);
                slot.states[index] = Some(match format {
                    Some(format) => stored.recovered(format),
                    None => stored,
                });
            }
            None => {
                // A master that does not round to the parameter stays whole until the next update.
                let parameter = parameter.filter(|value| keeps_remainders && value.dtype() == DType::BF16);
                let remainders = parameter.and_then(|value| Remainders::split(stored.widen(&value.device()), value));
                slot.master = Some(remainders.map_or_else(|| Master::Whole(Box::new(stored)), Master::Remainders));
            }
        }
        true
    }

    /// The kind of a saved tensor, and the parameter of this optimizer that it belongs to.
    fn parameter_of<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        key.split_once('.').filter(|(_, name)| self.trained.contains_key(*name))
    }
}
