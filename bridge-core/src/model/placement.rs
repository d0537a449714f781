//! Placement of one rank's part of a parameter in the whole, and the ranks over which its gradient
//! is summed.

use std::ops::Range;

use crate::checkpoint::Shard;

/// The last indices of a slice along dimension 0, where consecutive tensor-parallel ranks hold the
/// same ones besides indices of their own: keys and values, where there are more ranks than
/// key/value heads.
///
/// Each rank has only its share of their gradient, so that it is summed over these ranks; the first
/// of them counts and saves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRows {
    /// Number of indices.
    pub count: usize,
    /// Number of ranks that hold them.
    pub ranks: usize,
    /// This rank's number among these.
    pub rank: usize,
}

/// Data-parallel ranks that hold copies of a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReplicaGroup {
    /// All ranks of the data and context parallel group (`ProcessGroups::data_context`).
    #[default]
    Dense,
    /// Ranks that hold the same experts (`ProcessGroups::expert_data`).
    Expert,
}

/// Placement of a parameter among the ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The slice this rank holds; `None` for the whole parameter.
    pub shard: Option<Shard>,
    /// The ranks with the same slice: gradients are summed over them.
    pub replicas: ReplicaGroup,
    /// True if each tensor-parallel rank has only its share of the gradient of a replicated
    /// parameter (a norm's weight under sequence parallelism), so that the gradient is also summed
    /// over the tensor-parallel group.
    pub partial_gradient: bool,
    /// The part of the slice that other tensor-parallel ranks hold too.
    pub shared: Option<SharedRows>,
}

impl Placement {
    /// Runs of elements of the whole row-major parameter of shape `global_shape` that the rank
    /// holds, in local order.
    pub fn held_runs(&self, global_shape: &[usize]) -> Vec<Range<usize>> {
        let Some(shard) = &self.shard else { return std::iter::once(0..global_shape.iter().product()).collect() };
        let outer: usize = global_shape[..shard.dim].iter().product();
        let inner: usize = global_shape[shard.dim + 1..].iter().product();
        let runs_of_row = |row: usize| {
            let start = row * shard.size;
            shard.parts.iter().map(move |part| (start + part.start) * inner..(start + part.end) * inner)
        };
        (0..outer).flat_map(runs_of_row).collect()
    }
}
