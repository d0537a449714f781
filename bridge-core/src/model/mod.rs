//! The contract between the loop and a model: configurations, builders, chunks of segments,
//! parameters.
//!
//! bridge-core never names a model. A model family implements [`ModelConfig`] and [`ModelBuilder`],
//! registers itself in a [`ModelRegistry`], and hands the loop [`ModelChunk`]s. A chunk is most
//! easily made from a Burn module that implements [`Segments`], wrapped in [`ModuleChunk`].
//!
//! Shape legend: `b` batch, `t` sequence, `c` hidden size, `v` vocabulary.

mod adapted_cost;
mod adapter;
mod batch;
mod block_borders;
mod boundary;
mod builder;
mod chunk;
mod cost;
mod custom_loss;
mod declaration;
#[cfg(test)]
mod declaration_tests;
mod deferred;
mod eight_bit_cost;
mod eight_bit_products;
mod eight_bits;
mod error;
mod freezing;
mod generation;
mod last_layer;
mod layer_metrics;
mod module_chunk;
mod parallel;
mod pass;
mod placement;
mod quantized;
#[cfg(test)]
mod registered_kinds_tests;
mod registry;
mod scope;
mod segment;
mod weight_gradients;

pub use adapter::{
    Adapter, Added, BaseRows, LinearAdaptation, LinearChange, LinearForLastLayer, LinearLayer, LinearOperands,
    LinearRule,
};
pub use batch::{Auxiliary, Batch, BatchExtra, ForwardContext, Mode};
pub(crate) use block_borders::check_blocks;
pub(crate) use boundary::checked;
pub use boundary::{Boundary, BoundaryError, BoundaryTensor, HIDDEN_STATES, loss_sum, run_segments};
pub use builder::{BuildContext, ModelBuilder, ModelConfig, ModelHook, StackPart, Stage, compose_hooks};
pub use chunk::{ModelChunk, Replacement, SegmentOutput};
pub use cost::{Exchange, Outline, PassKind, SegmentCost, TrafficKind, Workload};
pub(crate) use custom_loss::label_log_probabilities;
pub use custom_loss::{CustomLoss, CustomLossCall, ModelOutputs, OutputParts};
pub use declaration::{Component, Declaration, Declarations, GradientScope, Initial, ParameterRole, TensorPartition};
pub use deferred::DeferredParameters;
pub use eight_bit_products::{DelayedScalingLayer, EightBitLayer, EightBitProducts};
pub(crate) use eight_bit_products::{HISTORY as CAST_HISTORY, SCALES as CAST_SCALES};
pub use error::ModelBuildError;
pub use freezing::matches_pattern;
pub use generation::{GenerationState, LayerState};
pub use last_layer::LastLayer;
pub use layer_metrics::{
    ATTENTION_LOGIT, INDEXER_LOSS, LayerMetric, LayerMetrics, PREDICTION_LOSS, ROUTER_LOSSES, StepValues,
    TOKEN_ACCURACY,
};
use module_chunk::released;
pub use module_chunk::{ModuleChunk, Segments};
pub use parallel::{Member, Parallel, RankPlace};
use pass::PassStream;
pub use placement::{Placement, ReplicaGroup, SharedRows};
pub use quantized::{LinearParameter, QuantizedValues};
pub use registry::ModelRegistry;
pub use scope::{ChunkScope, Scope};
pub use segment::{Segment, SegmentRole};
pub use weight_gradients::WeightGradientStore;

pub use crate::checkpoint::Shard;
