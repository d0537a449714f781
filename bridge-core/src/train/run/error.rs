//! Everything that can end a run early.

use crate::model::ModelBuildError;
use crate::optim::{OptimizerError, UnmatchedRule};
use crate::resilience::SignalError;
use crate::schedule::{BatchSizeError, LossScaleError, SchedulerError};
use crate::train::data::error::InputError;
use crate::train::engine::error::EngineError;
use crate::train::error::{CommonError, ErrorClass, room_error};
use crate::train::exit_reason::ExitReason;
use crate::train::not_enough_memory::NotEnoughMemory;
use crate::train::ranks::device::DeviceError;
use crate::train::ranks::error::RanksError;
use crate::train::resume::error::ResumeError;
use crate::train::step::error::StepError;
use crate::train::subsystems::error::SubsystemError;

/// Why a run could not start or continue. [`Classified`](crate::train::Classified) tells errors of
/// the user's input from failures.
#[derive(thiserror::Error)]
pub enum TrainError {
    /// An error that several modules of the training loop share.
    #[error(transparent)]
    Common(CommonError),
    /// The ranks cannot be connected.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// The data of the run cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The model cannot be built, or a forward or backward pass fails.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A subsystem fails.
    #[error(transparent)]
    Subsystem(#[from] SubsystemError),
    /// The run cannot save or resume.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// A training step fails.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The device of the recipe cannot be selected.
    #[error(transparent)]
    SelectDevice(#[from] DeviceError),
    /// The machine has too little memory.
    #[error(transparent)]
    NotEnoughMemory(Box<NotEnoughMemory>),
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] ModelBuildError),
    /// The optimizer cannot be built.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// A rule of single parameters matches none.
    #[error(transparent)]
    ParameterRule(#[from] UnmatchedRule),
    /// Ranks that are threads of one process cannot record CUDA graphs.
    #[error(
        "model.cuda_graph_impl = \"local\": the ranks of this run are threads of one process, and the CUDA driver does not let one record \
         while others use it: start them as processes (`--launcher mpi`)"
    )]
    GraphsOfThreads,
    /// The schedule of the recipe is invalid.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
    /// Batch sizes do not fit each other or the ranks.
    #[error(transparent)]
    BatchSize(#[from] BatchSizeError),
    /// The loss scale of the recipe is invalid.
    #[error(transparent)]
    LossScale(#[from] LossScaleError),
    /// Signals cannot be watched.
    #[error(transparent)]
    Signal(#[from] SignalError),
    /// The run was asked to stop before its first step. This is not a failure, and there is nothing
    /// to save.
    #[error("{0}; training had not begun")]
    Stopped(ExitReason),
    /// A rank panicked.
    #[error("rank {rank} panicked: {message} (last operation: {operation})")]
    RankPanicked {
        /// The rank.
        rank: usize,
        /// Message of the panic.
        message: String,
        /// Last operation with other ranks before the panic.
        operation: String,
    },
    /// A rank could not be started.
    #[error("rank {rank} could not be started: {message}")]
    RankNotStarted {
        /// The rank.
        rank: usize,
        /// Reason.
        message: String,
    },
}

room_error! { TrainError, wraps Common, Ranks, Input, Engine, Subsystem, Resume, Step;
    Self::Signal(_) | Self::Stopped(_) | Self::RankPanicked { .. } | Self::RankNotStarted { .. } => {
        ErrorClass::Failed
    }
    _ => ErrorClass::BadInput,
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use bridge_dist::comm::{CommError, CommErrorKind};

    use super::*;
    use crate::config::{ConfigError, ErrorKind};
    use crate::train::engine::pipeline::PipelineError;
    use crate::train::error::Classified;

    /// Ranks find out which rank failed first from the communication error among the causes.
    #[test]
    fn class_and_cause_pass_through_the_rooms() {
        let cause = CommError {
            rank: 0,
            world_ranks: [0, 1].into(),
            group: "world".into(),
            operation: "barrier".into(),
            kind: Box::new(CommErrorKind::ProgramFailed { message: "rank 1 failed".into() }),
        };
        let text = cause.to_string();
        let in_pass = TrainError::from(StepError::from(EngineError::from(PipelineError::from(cause.clone()))));
        let in_save = TrainError::from(StepError::from(ResumeError::from(SubsystemError::from(cause))));
        for error in [in_pass, in_save] {
            assert!(matches!(error.class(), ErrorClass::Communication(_)) && !error.is_bad_input(), "{error}");
            assert!(error.source().is_some_and(|source| source.is::<CommError>()), "{error}");
            assert_eq!(format!("{error:?}"), text);
        }
        let missing = ConfigError::new(ErrorKind::Missing, "dataset.source", "must be given");
        let error = TrainError::from(StepError::from(ResumeError::from(InputError::from(missing))));
        assert!(matches!(error.class(), ErrorClass::Config(_)) && error.is_bad_input(), "{error}");
    }
}
