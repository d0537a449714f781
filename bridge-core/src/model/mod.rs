//! The contract between the loop and a model: configurations, builders, chunks of segments, parameters.
//!
//! bridge-core never names a model. A model family implements [`ModelConfig`] and [`ModelBuilder`], registers itself in a
//! [`ModelRegistry`], and hands the loop [`ModelChunk`]s. A chunk is most easily made from a Burn module that implements
//! [`Segments`], wrapped in [`ModuleChunk`].
//!
//! Shape legend: `b` batch, `t` sequence, `c` hidden size, `v` vocabulary.

mod batch;
mod boundary;
mod builder;
mod chunk;
mod deferred;
mod generation;
mod layer_metrics;
mod module_chunk;
mod parallel;
mod placement;
mod weight_gradients;

pub use batch::{Auxiliary, Batch, BatchExtra, ForwardContext, Mode};
pub(crate) use boundary::checked;
pub use boundary::{Boundary, BoundaryError, BoundaryTensor, HIDDEN_STATES, loss_sum, run_segments};
pub use builder::{
    BuildContext, ModelBuildError, ModelBuilder, ModelConfig, ModelHook, ModelRegistry, StackPart, Stage, compose_hooks,
};
pub use chunk::{ModelChunk, ParameterInfo, ParameterRole, Replacement, Segment, SegmentOutput, SegmentRole};
pub use deferred::DeferredParameters;
pub use generation::{GenerationState, LayerState};
pub use layer_metrics::{LayerMetric, LayerMetrics};
pub use module_chunk::{ModuleChunk, Segments, released};
pub use parallel::Parallel;
pub use placement::{Placement, ReplicaGroup, Shard, SharedRows};
pub use weight_gradients::WeightGradientStore;
