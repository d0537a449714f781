//! Errors of building models, and of forward and backward passes.

use bridge_kernels::graph::GraphError;

use crate::model::ModelBuildError;
use crate::train::engine::executor::ExecutorError;
use crate::train::engine::pipeline::PipelineError;
use crate::train::error::{CommonError, ErrorClass, room_error};

/// Why a model cannot be built for its ranks, or a forward or backward pass fails.
#[derive(thiserror::Error)]
pub enum EngineError {
    /// An error that several modules of the training loop share.
    #[error(transparent)]
    Common(CommonError),
    /// A pass over micro-batches fails.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] ModelBuildError),
    /// Forward and backward of a micro-batch cannot be recorded as a CUDA graph, or replayed.
    #[error("model.cuda_graph_impl = \"local\": recording or replaying a micro-batch failed: {0}")]
    Graph(#[from] GraphError),
    /// The forward step of the run cannot be recorded as a CUDA graph.
    #[error(
        "model.cuda_graph_impl = \"local\": the forward step of this run cannot be recorded: expected one whose \
         `ForwardStep::is_recordable` is true"
    )]
    NotRecordable,
    /// Micro-batches have extra tensors, which CUDA graphs do not take as inputs.
    #[error(
        "model.cuda_graph_impl = \"local\": micro-batches have the extra tensors {found}: expected tokens, labels, masks, positions and \
         documents alone"
    )]
    ExtraTensors {
        /// Names of the extra tensors.
        found: String,
    },
}

room_error! { EngineError, wraps Common;
    Self::Pipeline(PipelineError::Executor(ExecutorError::Comm(error))) => ErrorClass::Communication(error),
    Self::Pipeline(PipelineError::Schedule(_))
    | Self::Model(_)
    | Self::NotRecordable
    | Self::ExtraTensors { .. } => ErrorClass::BadInput,
    Self::Pipeline(_) | Self::Graph(_) => ErrorClass::Failed,
}
