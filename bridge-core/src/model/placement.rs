//! Placement of one rank's part of a parameter in the whole, and the ranks over which its gradient
//! is summed.

use std::ops::Range;

/// The slice of a parameter that a tensor-parallel (or expert-parallel) rank holds.
///
/// The local tensor is the concatenation, along `dim`, of the index ranges `parts` of the whole.
/// Most slices have one part; a gated unit's first matrix has two (gate rows and up rows), so that
/// each rank holds matching halves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The dimension that is cut.
    pub dim: usize,
    /// Size of the whole along `dim`.
    pub size: usize,
    /// Index ranges along `dim` of the whole, in local order. Disjoint.
    pub parts: Vec<Range<usize>>,
}

impl Shard {
    /// The `rank`-th of `ranks` equal slices of a dimension made of `blocks` equal blocks, each
    /// block cut alike.
    ///
    /// `blocks` is 1 for most matrices and 2 for a gated unit's first one.
    ///
    /// # Panics
    /// If `size` is not divisible by `blocks * ranks`.
    pub fn even(dim: usize, size: usize, blocks: usize, rank: usize, ranks: usize) -> Self {
        assert_eq!(size % (blocks * ranks), 0, "{size} is not divisible into {blocks} blocks over {ranks} ranks");
        let (block, part) = (size / blocks, size / blocks / ranks);
        let parts = (0..blocks).map(|i| i * block + rank * part..i * block + (rank + 1) * part).collect();
        Self { dim, size, parts }
    }

    /// The `rank`-th of `ranks` equal slices of each of several blocks of a dimension, of these
    /// sizes.
    ///
    /// # Panics
    /// If one of the sizes is not divisible by `ranks`.
    pub fn sections(dim: usize, sizes: &[usize], rank: usize, ranks: usize) -> Self {
        let mut end = 0;
        let mut parts = Vec::new();
        for size in sizes.iter().filter(|size| **size > 0) {
            assert_eq!(size % ranks, 0, "{size} is not divisible over {ranks} ranks");
            let (start, part) = (end, size / ranks);
            end += size;
            parts.push(start + rank * part..start + (rank + 1) * part);
        }
        Self { dim, size: end, parts }
    }

    /// The `rank`-th of `ranks` slices of a dimension that need not divide: the first ranks hold
    /// one index more than the others.
    pub fn balanced(dim: usize, size: usize, rank: usize, ranks: usize) -> Self {
        let start = |rank: usize| rank * (size / ranks) + rank.min(size % ranks);
        Self { dim, size, parts: std::iter::once(start(rank)..start(rank + 1)).collect() }
    }

    /// Size of the local tensor along `dim`.
    pub fn local_size(&self) -> usize {
        self.parts.iter().map(Range::len).sum()
    }
}

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
        let Some(shard) = &self.shard else {
            return std::iter::once(0..global_shape.iter().product()).collect();
        };
        let outer: usize = global_shape[..shard.dim].iter().product();
        let inner: usize = global_shape[shard.dim + 1..].iter().product();
        let runs_of_row = |row: usize| {
            let start = row * shard.size;
            shard.parts.iter().map(move |part| (start + part.start) * inner..(start + part.end) * inner)
        };
        (0..outer).flat_map(runs_of_row).collect()
    }
}
