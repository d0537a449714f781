//! Groups of ranks that hold the same parameters, or the same parts of them.

use std::collections::{BTreeMap, BTreeSet};

use bridge_dist::comm::{CommError, Group, ReduceOp};
use bridge_dist::mesh::ProcessGroups;
use twox_hash::XxHash3_64;

use super::settings::Sharding;
use crate::model::{Declaration, ReplicaGroup};

/// Name of the group of tensor-parallel ranks that hold the same rows of some parameters.
pub const ROW_COPIES: &str = "tp-copies";

pub(super) fn replica_group(groups: &ProcessGroups, replicas: ReplicaGroup) -> &Group {
    match replicas {
        ReplicaGroup::Dense => groups.data_context(),
        ReplicaGroup::Expert => groups.expert_data(),
    }
}

/// Ranks that share a model and hold copies of its unsharded parameters.
pub(super) fn copy_group(groups: &ProcessGroups, replicas: ReplicaGroup) -> &Group {
    match replicas {
        ReplicaGroup::Dense => groups.tensor(),
        ReplicaGroup::Expert => groups.expert_tensor(),
    }
}

pub(super) fn shard_group(groups: &ProcessGroups, sharding: Sharding, replicas: ReplicaGroup) -> &Group {
    match (instance_group(groups, sharding, replicas), replicas) {
        (None, _) => replica_group(groups, replicas),
        (Some(_), ReplicaGroup::Dense) => groups.distributed_optimizer(),
        (Some(_), ReplicaGroup::Expert) => groups.expert_distributed_optimizer(),
    }
}

pub(super) fn instance_group(groups: &ProcessGroups, sharding: Sharding, replicas: ReplicaGroup) -> Option<&Group> {
    let group = match replicas {
        ReplicaGroup::Dense => groups.distributed_optimizer_replicas(),
        ReplicaGroup::Expert => groups.expert_distributed_optimizer_replicas(),
    };
    (sharding.divides_state() && group.size() > 1).then_some(group)
}

/// The tensor-parallel ranks that hold the same rows as this one, where there are such. All ranks
/// of the tensor-parallel group call this.
pub(super) fn row_copies<'a>(
    groups: &ProcessGroups,
    mut parameters: impl Iterator<Item = &'a Declaration>,
) -> Result<Option<Group>, CommError> {
    let Some(rows) = parameters.find_map(|parameter| parameter.placement.shared) else { return Ok(None) };
    groups.tensor().split(Some(groups.tensor().rank() / rows.ranks), rows.rank, ROW_COPIES)
}

/// The parameters that both the first and the last pipeline stage hold.
pub(super) fn tied_names<'a>(
    groups: &ProcessGroups,
    parameters: impl Iterator<Item = &'a Declaration>,
) -> Result<BTreeSet<String>, CommError> {
    let Some(group) = groups.embedding().filter(|group| group.size() > 1) else { return Ok(BTreeSet::new()) };
    let names: BTreeMap<i64, &str> = parameters
        .map(|parameter| (XxHash3_64::oneshot(parameter.name.as_bytes()) as i64, parameter.name.as_str()))
        .collect();
    let mut count = [names.len() as i64];
    group.all_reduce((&mut count).into(), ReduceOp::Max)?;
    // Stages have different numbers of parameters; a rank fills up with one of its own.
    let filler = names.keys().next().copied().unwrap_or(0);
    let mut mine: Vec<i64> = names.keys().copied().collect();
    mine.resize(count[0] as usize, filler);
    let mut all = vec![0_i64; mine.len() * group.size()];
    group.all_gather((&mine).into(), (&mut all).into())?;
    let parts: Vec<BTreeSet<&i64>> = all.chunks(mine.len().max(1)).map(|part| part.iter().collect()).collect();
    Ok(names
        .into_iter()
        .filter(|(hash, _)| parts.iter().all(|part| part.contains(hash)))
        .map(|(_, name)| name.to_owned())
        .collect())
}
