//! The process groups a model is built for.

use bridge_dist::comm::Group;
use bridge_dist::mesh::ProcessGroups;

/// Distribution of a model over ranks: an argument of every builder. A group of one rank costs
/// nothing.
#[derive(Clone, Debug)]
pub struct Parallel {
    /// This rank's groups.
    pub groups: ProcessGroups,
    /// True if activations between tensor-parallel blocks are split along the sequence.
    pub sequence_parallel: bool,
}

impl Parallel {
    /// One rank.
    pub fn single() -> Self {
        Self { groups: ProcessGroups::single(), sequence_parallel: false }
    }

    /// This rank's place among those that share the model.
    pub fn place(&self) -> RankPlace {
        let member = |group: &Group| Member { rank: group.rank(), size: group.size() };
        RankPlace {
            tensor: member(self.groups.tensor()),
            expert: member(self.groups.expert()),
            expert_tensor: member(self.groups.expert_tensor()),
            sequence_parallel: self.sequence_parallel,
        }
    }
}

/// A rank's place in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Number of the rank in the group.
    pub rank: usize,
    /// Ranks of the group.
    pub size: usize,
}

/// Coordinates of a rank among those that share a model, which decide on its part of each
/// parameter. Plain numbers, of a running or a planned rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPlace {
    /// Among the ranks that share weight matrices.
    pub tensor: Member,
    /// Among the ranks that share the experts of a layer.
    pub expert: Member,
    /// Among the ranks that share each expert's matrices.
    pub expert_tensor: Member,
    /// True if activations between tensor-parallel blocks are split along the sequence.
    pub sequence_parallel: bool,
}

impl RankPlace {
    /// A rank that holds all.
    pub const SINGLE: Self = {
        let only = Member { rank: 0, size: 1 };
        Self { tensor: only, expert: only, expert_tensor: only, sequence_parallel: false }
    };
}
