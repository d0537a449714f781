//! Errors that keep a pass from being completed.

use bridge_dist::comm::CommError;
use bridge_dist::schedule::ScheduleError;

use crate::model::BoundaryError;
use crate::train::engine::executor::ExecutorError;

/// A pass that could not be completed.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The schedule does not fit the number of micro-batches.
    #[error("pipeline schedule: {0}")]
    Schedule(#[from] ScheduleError),
    /// Ranks could not exchange activations, gradients or parameters.
    #[error("{0}")]
    Comm(#[from] CommError),
    /// A segment got or returned other tensors than the model declares.
    #[error(transparent)]
    Boundary(#[from] BoundaryError),
    /// The head of the model did not ask for the loss that the run brings.
    #[error("{}", ExecutorError::NoOutputs)]
    NoOutputs,
}

impl From<ExecutorError> for PipelineError {
    fn from(error: ExecutorError) -> Self {
        match error {
            ExecutorError::Boundary(error) => Self::Boundary(error),
            ExecutorError::Comm(error) => Self::Comm(error),
            ExecutorError::NoOutputs => Self::NoOutputs,
        }
    }
}
