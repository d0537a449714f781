//! The mesh of ranks: parallel sizes, Megatron's rank order, and every kind of group, as pure data.
//! [`ProcessGroups`] has the communicators made from it.

use std::fmt;

mod generator;
mod process_groups;

pub use generator::{Axis, AxisSizes, RankGenerator, RankOrder};
pub use process_groups::{MeshSetupError, ProcessGroups};

/// The parallel sizes that a user chooses. The data-parallel sizes follow from them and the world
/// size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParallelSizes {
    /// Ranks over which each weight matrix is sharded.
    pub tensor_model_parallel_size: usize,
    /// Stages of the pipeline.
    pub pipeline_model_parallel_size: usize,
    /// Ranks over which each sequence is sharded.
    pub context_parallel_size: usize,
    /// Ranks over which the experts are distributed.
    pub expert_model_parallel_size: usize,
    /// Ranks over which each expert's weight matrices are sharded; `None` means the tensor-parallel
    /// size.
    pub expert_tensor_parallel_size: Option<usize>,
    /// Number of instances of the distributed optimizer, each of which shards separately.
    pub num_distributed_optimizer_instances: usize,
}

impl Default for ParallelSizes {
    /// No model parallelism.
    fn default() -> Self {
        Self {
            tensor_model_parallel_size: 1,
            pipeline_model_parallel_size: 1,
            context_parallel_size: 1,
            expert_model_parallel_size: 1,
            expert_tensor_parallel_size: None,
            num_distributed_optimizer_instances: 1,
        }
    }
}

/// Sizes or orders that do not make a mesh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// A size is 0.
    #[error("{name} is 0, and must be at least 1")]
    ZeroSize {
        /// The size.
        name: &'static str,
    },
    /// The world does not divide into model-parallel blocks.
    #[error("a world of {world_size} ranks is not divisible by {product} ({factors})")]
    NotDivisible {
        /// Ranks in the world.
        world_size: usize,
        /// Ranks in one block.
        product: usize,
        /// The factors of the block size, e.g. `tensor 2 x pipeline 3 x context 1`.
        factors: String,
    },
    /// The dense and the expert grid give different pipelines.
    #[error(
        "rank order {order}: the dense and the expert layers would have different pipeline groups \
         (rank 0 in {dense:?} and in {expert:?}); with this order tensor x context ({dense_inner}) \
         must equal expert tensor x expert ({expert_inner})"
    )]
    PipelinesDiffer {
        /// The order.
        order: RankOrder,
        /// Rank 0's pipeline in the dense grid.
        dense: Vec<usize>,
        /// Rank 0's pipeline in the expert grid.
        expert: Vec<usize>,
        /// Tensor times context size.
        dense_inner: usize,
        /// Expert tensor times expert size.
        expert_inner: usize,
    },
    /// An order without `pp` last needs equally many dense and expert replicas.
    #[error(
        "rank order {order} with a pipeline needs data x context ({dense}) to equal expert data x expert ({expert})"
    )]
    ReplicasDiffer {
        /// The order.
        order: RankOrder,
        /// Data times context-parallel size.
        dense: usize,
        /// Expert data times expert-parallel size.
        expert: usize,
    },
    /// The distributed optimizer's instances do not divide the replicas.
    #[error("num_distributed_optimizer_instances is {instances}, which does not divide the {group} size {size}")]
    OptimizerInstances {
        /// Requested instances.
        instances: usize,
        /// The group that is divided.
        group: &'static str,
        /// Parallel size of the axis.
        size: usize,
    },
    /// Not the name of a rank order.
    #[error("unknown rank order `{found}`; expected `tp-cp-ep-dp-pp` or `tp-cp-ep-pp-dp`")]
    UnknownOrder {
        /// The given name.
        found: String,
    },
}

/// The kinds of groups a training run uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// Ranks over which weight matrices are sharded.
    Tensor,
    /// Ranks over which sequences are sharded.
    Context,
    /// Ranks with the same weights and different samples.
    Data,
    /// Data and context: ranks whose gradients are averaged.
    DataContext,
    /// The stages of one pipeline, in order.
    Pipeline,
    /// Tensor and pipeline: ranks that together hold the model.
    Model,
    /// The ranks that hold the token embedding: first and last stage of a pipeline.
    Embedding,
    /// The rank that holds the position embedding: the first stage of a pipeline.
    PositionEmbedding,
    /// Ranks over which the experts are distributed.
    Expert,
    /// Ranks over which each expert's weight matrices are sharded.
    ExpertTensor,
    /// Ranks with the same expert weights.
    ExpertData,
    /// The part of [`Self::DataContext`] over which one instance of the distributed optimizer
    /// shards its state.
    DistributedOptimizer,
    /// Ranks with the same shard in different instances of the distributed optimizer.
    DistributedOptimizerReplicas,
    /// As [`Self::DistributedOptimizer`], of [`Self::ExpertData`].
    ExpertDistributedOptimizer,
    /// As [`Self::DistributedOptimizerReplicas`], of [`Self::ExpertData`].
    ExpertDistributedOptimizerReplicas,
}

impl GroupKind {
    /// Every kind, in the order in which communicators are made.
    pub const ALL: [Self; 15] = [
        Self::Tensor,
        Self::Context,
        Self::Data,
        Self::DataContext,
        Self::Pipeline,
        Self::Model,
        Self::Embedding,
        Self::PositionEmbedding,
        Self::Expert,
        Self::ExpertTensor,
        Self::ExpertData,
        Self::DistributedOptimizer,
        Self::DistributedOptimizerReplicas,
        Self::ExpertDistributedOptimizer,
        Self::ExpertDistributedOptimizerReplicas,
    ];

    /// The group's short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tp",
            Self::Context => "cp",
            Self::Data => "dp",
            Self::DataContext => "dp-cp",
            Self::Pipeline => "pp",
            Self::Model => "tp-pp",
            Self::Embedding => "embedding",
            Self::PositionEmbedding => "position-embedding",
            Self::Expert => "ep",
            Self::ExpertTensor => "expert-tp",
            Self::ExpertData => "expert-dp",
            Self::DistributedOptimizer => "optimizer",
            Self::DistributedOptimizerReplicas => "optimizer-replicas",
            Self::ExpertDistributedOptimizer => "expert-optimizer",
            Self::ExpertDistributedOptimizerReplicas => "expert-optimizer-replicas",
        }
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The coordinates of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coordinates {
    /// Tensor-parallel rank.
    pub tp: usize,
    /// Context-parallel rank.
    pub cp: usize,
    /// Data-parallel rank.
    pub dp: usize,
    /// Pipeline stage.
    pub pp: usize,
    /// Expert-parallel rank.
    pub ep: usize,
    /// Expert tensor-parallel rank.
    pub expert_tp: usize,
    /// Expert data-parallel rank.
    pub expert_dp: usize,
}

/// A validated layout of a world's ranks: one grid for dense layers and one for experts over the
/// same ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mesh {
    order: RankOrder,
    dense: RankGenerator,
    expert: RankGenerator,
    optimizer_instances: usize,
}

impl Mesh {
    /// Lays out `world_size` ranks.
    ///
    /// # Errors
    /// If a size is 0, does not divide the world, or the grids of dense and expert layers
    /// contradict each other.
    pub fn new(world_size: usize, sizes: ParallelSizes, order: RankOrder) -> Result<Self, MeshError> {
        let tp = sizes.tensor_model_parallel_size;
        let pp = sizes.pipeline_model_parallel_size;
        let cp = sizes.context_parallel_size;
        let ep = sizes.expert_model_parallel_size;
        let etp = sizes.expert_tensor_parallel_size.unwrap_or(tp);
        let optimizer_instances = sizes.num_distributed_optimizer_instances;
        check_positive(&[
            ("the world size", world_size),
            ("tensor_model_parallel_size", tp),
            ("pipeline_model_parallel_size", pp),
            ("context_parallel_size", cp),
            ("expert_model_parallel_size", ep),
            ("expert_tensor_parallel_size", etp),
            ("num_distributed_optimizer_instances", optimizer_instances),
        ])?;
        let dp = replicas(world_size, &[("tensor", tp), ("pipeline", pp), ("context", cp)])?;
        let factors = [("expert tensor", etp), ("expert", ep), ("pipeline", pp)];
        let expert_dp = replicas(world_size, &factors)?;
        let dense = RankGenerator::new(order, AxisSizes { tp, cp, ep: 1, dp, pp })?;
        let expert_sizes = AxisSizes { tp: etp, cp: 1, ep, dp: expert_dp, pp };
        let mesh = Self { order, dense, expert: RankGenerator::new(order, expert_sizes)?, optimizer_instances };
        mesh.check_grids()?;
        mesh.check_optimizer_instances()?;
        Ok(mesh)
    }

    fn check_grids(&self) -> Result<(), MeshError> {
        let (dense, expert) = (self.dense.sizes(), self.expert.sizes());
        let pp_is_last = self.order.axes().last() == Some(&Axis::Pp);
        if !pp_is_last && dense.pp > 1 && dense.dp * dense.cp != expert.dp * expert.ep {
            return Err(MeshError::ReplicasDiffer {
                order: self.order,
                dense: dense.dp * dense.cp,
                expert: expert.dp * expert.ep,
            });
        }
        let mut pipelines = [&self.dense, &self.expert].map(|grid| grid.groups(&[Axis::Pp]));
        // The two grids may list the same pipelines in another order.
        pipelines.iter_mut().for_each(|groups| groups.sort());
        let [mut of_dense, mut of_expert] = pipelines;
        if of_dense == of_expert {
            return Ok(());
        }
        Err(MeshError::PipelinesDiffer {
            order: self.order,
            dense: of_dense.swap_remove(0),
            expert: of_expert.swap_remove(0),
            dense_inner: dense.tp * dense.cp,
            expert_inner: expert.tp * expert.ep,
        })
    }

    fn check_optimizer_instances(&self) -> Result<(), MeshError> {
        let (dense, expert) = (self.dense.sizes(), self.expert.sizes());
        let instances = self.optimizer_instances;
        let groups = [("data x context parallel", dense.dp * dense.cp), ("expert data parallel", expert.dp)];
        for (group, size) in groups {
            if !size.is_multiple_of(instances) {
                return Err(MeshError::OptimizerInstances { instances, group, size });
            }
        }
        Ok(())
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.dense.world_size()
    }

    /// The rank order.
    pub const fn order(&self) -> RankOrder {
        self.order
    }

    /// The grid of the dense layers.
    pub const fn dense(&self) -> &RankGenerator {
        &self.dense
    }

    /// The grid of the experts.
    pub const fn expert(&self) -> &RankGenerator {
        &self.expert
    }

    /// Data-parallel size: world / (tensor x pipeline x context).
    pub const fn data_parallel_size(&self) -> usize {
        self.dense.sizes().dp
    }

    /// The coordinates of a rank.
    ///
    /// # Panics
    /// If the rank is not below the world size.
    pub fn coordinates(&self, rank: usize) -> Coordinates {
        assert!(rank < self.world_size(), "rank {rank} of a world of {}", self.world_size());
        Coordinates {
            tp: self.dense.coordinate(rank, Axis::Tp),
            cp: self.dense.coordinate(rank, Axis::Cp),
            dp: self.dense.coordinate(rank, Axis::Dp),
            pp: self.dense.coordinate(rank, Axis::Pp),
            ep: self.expert.coordinate(rank, Axis::Ep),
            expert_tp: self.expert.coordinate(rank, Axis::Tp),
            expert_dp: self.expert.coordinate(rank, Axis::Dp),
        }
    }

    /// All groups of a kind. Each rank is in exactly one, except that middle pipeline stages hold
    /// no embedding.
    pub fn groups(&self, kind: GroupKind) -> Vec<Vec<usize>> {
        use Axis::{Cp, Dp, Ep, Pp, Tp};
        let instances = self.optimizer_instances;
        match kind {
            GroupKind::Tensor => self.dense.groups(&[Tp]),
            GroupKind::Context => self.dense.groups(&[Cp]),
            GroupKind::Data => self.dense.groups(&[Dp]),
            GroupKind::DataContext => self.dense.groups(&[Dp, Cp]),
            GroupKind::Pipeline => self.dense.groups(&[Pp]),
            GroupKind::Model => self.dense.groups(&[Tp, Pp]),
            GroupKind::Embedding => pick_stages(self.dense.groups(&[Pp]), |last| vec![0, last]),
            GroupKind::PositionEmbedding => pick_stages(self.dense.groups(&[Pp]), |_| vec![0]),
            GroupKind::Expert => self.expert.groups(&[Ep]),
            GroupKind::ExpertTensor => self.expert.groups(&[Tp]),
            GroupKind::ExpertData => self.expert.groups(&[Dp]),
            GroupKind::DistributedOptimizer => parts(self.groups(GroupKind::DataContext), instances),
            GroupKind::DistributedOptimizerReplicas => across(self.groups(GroupKind::DataContext), instances),
            GroupKind::ExpertDistributedOptimizer => parts(self.groups(GroupKind::ExpertData), instances),
            GroupKind::ExpertDistributedOptimizerReplicas => across(self.groups(GroupKind::ExpertData), instances),
        }
    }

    /// The group of a kind that a rank is in; `None` for the embedding groups of a rank that holds
    /// no embedding.
    pub fn group_of(&self, kind: GroupKind, rank: usize) -> Option<Vec<usize>> {
        self.groups(kind).into_iter().find(|group| group.contains(&rank))
    }
}

fn check_positive(sizes: &[(&'static str, usize)]) -> Result<(), MeshError> {
    match sizes.iter().find(|(_, size)| *size == 0) {
        Some((name, _)) => Err(MeshError::ZeroSize { name }),
        None => Ok(()),
    }
}

/// Number of blocks of the given factors in a world.
fn replicas(world_size: usize, factors: &[(&str, usize)]) -> Result<usize, MeshError> {
    let product = factors.iter().fold(1usize, |product, (_, size)| product.saturating_mul(*size));
    if world_size.is_multiple_of(product) {
        return Ok(world_size / product);
    }
    let factors: Vec<String> = factors.iter().map(|(name, size)| format!("{name} {size}")).collect();
    Err(MeshError::NotDivisible { world_size, product, factors: factors.join(" x ") })
}

/// The ranks of some stages of each pipeline, each rank once.
fn pick_stages(pipelines: Vec<Vec<usize>>, stages: impl Fn(usize) -> Vec<usize>) -> Vec<Vec<usize>> {
    pipelines
        .into_iter()
        .map(|pipeline| {
            let mut stages = stages(pipeline.len() - 1);
            stages.dedup();
            stages.into_iter().map(|stage| pipeline[stage]).collect()
        })
        .collect()
}

/// Divides each group into `count` equal consecutive parts.
fn parts(groups: Vec<Vec<usize>>, count: usize) -> Vec<Vec<usize>> {
    let cut =
        |group: &Vec<usize>| -> Vec<Vec<usize>> { group.chunks(group.len() / count).map(<[usize]>::to_vec).collect() };
    groups.iter().flat_map(cut).collect()
}

/// The ranks at the same place of each of the `count` parts.
fn across(groups: Vec<Vec<usize>>, count: usize) -> Vec<Vec<usize>> {
    let gather = |group: &Vec<usize>| -> Vec<Vec<usize>> {
        let part = group.len() / count;
        (0..part).map(|place| (0..count).map(|index| group[index * part + place]).collect()).collect()
    };
    groups.iter().flat_map(gather).collect()
}
