//! The process groups a model is built for.

use bridge_dist::mesh::ProcessGroups;

/// How a model is spread over ranks: an argument of every builder. A group of one rank costs nothing.
#[derive(Clone, Debug)]
pub struct Parallel {
    /// This rank's groups.
    pub groups: ProcessGroups,
    /// Whether activations between tensor-parallel blocks are split along the sequence.
    pub sequence_parallel: bool,
}

impl Parallel {
    /// One rank.
    pub fn single() -> Self {
        Self { groups: ProcessGroups::single(), sequence_parallel: false }
    }

    /// Ranks of the tensor-parallel group.
    pub fn tensor_size(&self) -> usize {
        self.groups.tensor().size()
    }

    /// This rank's place in the tensor-parallel group.
    pub fn tensor_rank(&self) -> usize {
        self.groups.tensor().rank()
    }
}
