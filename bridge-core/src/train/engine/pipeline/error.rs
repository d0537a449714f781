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
    /// Segments could not be run, or ranks could not exchange activations, gradients or parameters.
    #[error(transparent)]
    Executor(#[from] ExecutorError),
}

impl From<CommError> for PipelineError {
    fn from(error: CommError) -> Self {
        Self::Executor(error.into())
    }
}

impl From<BoundaryError> for PipelineError {
    fn from(error: BoundaryError) -> Self {
        Self::Executor(error.into())
    }
}
