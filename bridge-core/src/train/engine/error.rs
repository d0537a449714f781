//! Errors of building models and of passes.

use bridge_kernels::graph::GraphError;

use crate::model::ModelBuildError;
use crate::train::engine::pipeline::PipelineError;
use crate::train::error::{CommonError, ErrorClass, room_error};

/// Why a model cannot be built for its ranks, or a pass cannot be made.
#[derive(thiserror::Error)]
pub enum EngineError {
    /// An error that other rooms make too.
    #[error(transparent)]
    Common(CommonError),
    /// A pass over micro-batches.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelBuildError),
    /// Forward and backward of a micro-batch cannot be recorded as a graph, or replayed.
    #[error("model.cuda_graph_impl = \"local\": recording or replaying a micro-batch failed: {0}")]
    Graph(#[from] GraphError),
    /// The forward step of the run does not go with graphs.
    #[error(
        "model.cuda_graph_impl = \"local\": the forward step of this run cannot be recorded: expected one whose \
         `ForwardStep::is_recordable` is true"
    )]
    NotRecordable,
    /// The data of the run do not go with graphs.
    #[error(
        "model.cuda_graph_impl = \"local\": micro-batches have the extra tensors {found}: expected tokens, labels, masks, positions and \
         documents alone"
    )]
    ExtraTensors {
        /// Names that were found.
        found: String,
    },
}

room_error! { EngineError, wraps Common;
    Self::Pipeline(PipelineError::Comm(error)) => ErrorClass::Communication(error),
    Self::Pipeline(PipelineError::Schedule(_))
    | Self::Model(_)
    | Self::NotRecordable
    | Self::ExtraTensors { .. } => ErrorClass::BadInput,
    Self::Pipeline(_) | Self::Graph(_) => ErrorClass::Failed,
}
