//! Parameters: how many there are, and how many a rank holds.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::setup::Setup;
use crate::model::{Component, Declaration, ParameterRole, ReplicaGroup};

/// Numbers of parameters, in all and by component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParameterCounts {
    /// All of them.
    pub total: u64,
    /// Number of trained parameters: all but frozen ones.
    pub trained: u64,
    by_component: [u64; Component::ALL.len()],
}

impl ParameterCounts {
    /// Number of parameters of one component.
    pub const fn get(&self, component: Component) -> u64 {
        self.by_component[component as usize]
    }

    fn add(&mut self, parameter: &Declaration, count: u64) {
        // State of a run rather than of its model.
        if parameter.role == ParameterRole::CastState {
            return;
        }
        self.total += count;
        self.trained += if parameter.trainable { count } else { 0 };
        self.by_component[parameter.component as usize] += count;
    }
}

impl Serialize for ParameterCounts {
    /// `{"total": .., "trained": .., "embedding": .., ..}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2 + self.by_component.len()))?;
        map.serialize_entry("total", &self.total)?;
        map.serialize_entry("trained", &self.trained)?;
        for component in Component::ALL {
            map.serialize_entry(component.name(), &self.get(component))?;
        }
        map.end()
    }
}

/// Parameters that a rank of a stage holds.
pub(super) fn of_stage(setup: &Setup<'_>, stage: usize) -> ParameterCounts {
    let mut counts = ParameterCounts::default();
    let parameters = setup.parameters(stage);
    parameters.for_each(|parameter| counts.add(parameter, parameter.num_elements() as u64));
    counts
}

/// The whole model, in which a tied table counts once.
pub(super) fn of_model(setup: &Setup<'_>) -> ParameterCounts {
    let mut counts = ParameterCounts::default();
    let mut counted = HashSet::new();
    for parameter in (0..setup.stages.len()).flat_map(|stage| setup.parameters(stage)) {
        if counted.insert(parameter.name.as_str()) {
            // Each expert-parallel rank has other experts in the place of these.
            let others = match parameter.placement.replicas {
                ReplicaGroup::Dense => 1,
                ReplicaGroup::Expert => setup.layout.expert as u64,
            };
            counts.add(parameter, others * parameter.global_shape().iter().product::<usize>() as u64);
        }
    }
    counts
}

/// Tensors of the whole model that are trained, by name: a tied table counts once.
pub(super) fn num_trained(setup: &Setup<'_>) -> u64 {
    let trained = (0..setup.stages.len()).flat_map(|stage| setup.parameters(stage)).filter(|p| p.trainable);
    let names: BTreeMap<&str, ReplicaGroup> = trained.map(|p| (p.name.as_str(), p.placement.replicas)).collect();
    let of = |replicas: &ReplicaGroup| match replicas {
        ReplicaGroup::Dense => 1,
        ReplicaGroup::Expert => setup.layout.expert as u64,
    };
    names.values().map(of).sum()
}

/// Parameters without the experts that a token does not visit.
pub(super) fn active(setup: &Setup<'_>, all: &ParameterCounts) -> u64 {
    all.total
        - setup.stages.iter().flatten().flat_map(|chunk| &chunk.costs).map(|cost| cost.idle_parameters).sum::<u64>()
}
