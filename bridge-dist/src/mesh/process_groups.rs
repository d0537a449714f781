//! One rank's communicators, made from a world communicator and a mesh. Code that communicates
//! receives them as an argument; nothing is global.

use std::sync::Arc;
use std::time::Duration;

use super::{Coordinates, GroupKind, Mesh, MeshError, ParallelSizes, RankOrder};
use crate::comm::call_log::CallLog;
use crate::comm::single::SingleCommunicator;
use crate::comm::timed::{CallClock, TimedCommunicator};
use crate::comm::{CommError, Group};

/// Process groups could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeshSetupError {
    /// The mesh is for another number of ranks.
    #[error("the mesh is laid out for {expected} ranks, but the world has {found}")]
    WorldSize {
        /// Ranks of the mesh.
        expected: usize,
        /// Ranks of the world communicator.
        found: usize,
    },
    /// The sizes make no mesh.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// The ranks could not agree on their groups.
    #[error("making the process group `{kind}`: {source}")]
    Split {
        /// The group.
        kind: GroupKind,
        /// The cause.
        source: CommError,
    },
}

/// All groups one rank belongs to.
///
/// `group.rank()` is the rank's place in the group. A group of one is a no-op.
#[derive(Clone, Debug)]
pub struct ProcessGroups {
    mesh: Mesh,
    coordinates: Coordinates,
    world: Group,
    /// In the order of [`GroupKind::ALL`].
    groups: Vec<Option<Group>>,
    calls: CallClock,
}

impl ProcessGroups {
    /// Makes the groups. All ranks of `world` call this with the same mesh.
    ///
    /// # Errors
    /// If the world's size is not the mesh's, or if ranks fail or disagree.
    pub fn new(world: Group, mesh: Mesh) -> Result<Self, MeshSetupError> {
        if world.size() != mesh.world_size() {
            return Err(MeshSetupError::WorldSize { expected: mesh.world_size(), found: world.size() });
        }
        let rank = world.rank();
        let calls = CallClock::default();
        let world: Group = Arc::new(TimedCommunicator::new(world, calls.clone()));
        let mut groups = Vec::with_capacity(GroupKind::ALL.len());
        for kind in GroupKind::ALL {
            let all = mesh.groups(kind);
            // The index of the group is its color, the place in it the key.
            let place = all.iter().enumerate().find_map(|(color, group)| {
                let key = group.iter().position(|&member| member == rank)?;
                Some((color, key))
            });
            let (color, key) = place.map_or((None, 0), |(color, key)| (Some(color), key));
            let group =
                world.split(color, key, kind.name()).map_err(|source| MeshSetupError::Split { kind, source })?;
            groups.push(group);
        }
        Ok(Self { mesh, coordinates: mesh.coordinates(rank), world, groups, calls })
    }

    /// The groups of the only rank of a world of one, without communication.
    pub fn single() -> Self {
        let mesh = Mesh::new(1, ParallelSizes::default(), RankOrder::default())
            .expect("one rank without model parallelism is a mesh");
        let single = |name: &str| Arc::new(SingleCommunicator::new(name)) as Group;
        Self {
            mesh,
            coordinates: mesh.coordinates(0),
            world: single("world"),
            groups: GroupKind::ALL.iter().map(|kind| Some(single(kind.name()))).collect(),
            calls: CallClock::default(),
        }
    }

    /// Time that this rank has spent in calls of its communicators so far, which is mostly waiting
    /// for other ranks.
    pub fn time_in_calls(&self) -> Duration {
        self.calls.total()
    }

    /// Log of the calls that this rank has made to its communicators.
    pub fn call_log(&self) -> &Arc<CallLog> {
        self.calls.log()
    }

    /// The layout of the world.
    pub const fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The coordinates of this rank.
    pub const fn coordinates(&self) -> Coordinates {
        self.coordinates
    }

    /// All ranks.
    pub fn world(&self) -> &Group {
        &self.world
    }

    /// This rank's group of a kind; `None` for the embedding groups of a rank that holds no
    /// embedding.
    pub fn get(&self, kind: GroupKind) -> Option<&Group> {
        self.groups[kind as usize].as_ref()
    }

    fn always(&self, kind: GroupKind) -> &Group {
        self.get(kind).expect("every rank is in one group of this kind")
    }

    /// Tensor-parallel group.
    pub fn tensor(&self) -> &Group {
        self.always(GroupKind::Tensor)
    }

    /// Context-parallel group.
    pub fn context(&self) -> &Group {
        self.always(GroupKind::Context)
    }

    /// Data-parallel group.
    pub fn data(&self) -> &Group {
        self.always(GroupKind::Data)
    }

    /// Data and context-parallel group: gradients of dense layers are reduced here.
    pub fn data_context(&self) -> &Group {
        self.always(GroupKind::DataContext)
    }

    /// Pipeline group; its rank is the stage.
    pub fn pipeline(&self) -> &Group {
        self.always(GroupKind::Pipeline)
    }

    /// First and last stage; `None` on stages between them.
    pub fn embedding(&self) -> Option<&Group> {
        self.get(GroupKind::Embedding)
    }

    /// Group of the first stage; `None` on other stages.
    pub fn position_embedding(&self) -> Option<&Group> {
        self.get(GroupKind::PositionEmbedding)
    }

    /// Expert-parallel group.
    pub fn expert(&self) -> &Group {
        self.always(GroupKind::Expert)
    }

    /// Expert tensor-parallel group.
    pub fn expert_tensor(&self) -> &Group {
        self.always(GroupKind::ExpertTensor)
    }

    /// Expert data-parallel group: gradients of experts are reduced here.
    pub fn expert_data(&self) -> &Group {
        self.always(GroupKind::ExpertData)
    }

    /// The ranks over which the distributed optimizer shards its state.
    pub fn distributed_optimizer(&self) -> &Group {
        self.always(GroupKind::DistributedOptimizer)
    }

    /// The ranks with the same optimizer shard in other instances.
    pub fn distributed_optimizer_replicas(&self) -> &Group {
        self.always(GroupKind::DistributedOptimizerReplicas)
    }

    /// As [`Self::distributed_optimizer`], for experts.
    pub fn expert_distributed_optimizer(&self) -> &Group {
        self.always(GroupKind::ExpertDistributedOptimizer)
    }

    /// As [`Self::distributed_optimizer_replicas`], for experts.
    pub fn expert_distributed_optimizer_replicas(&self) -> &Group {
        self.always(GroupKind::ExpertDistributedOptimizerReplicas)
    }
}
