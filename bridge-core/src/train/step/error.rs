//! Errors of a training step.

use crate::train::data::error::InputError;
use crate::train::engine::error::EngineError;
use crate::train::error::{CommonError, ErrorClass, room_error};
use crate::train::resume::error::ResumeError;
use crate::train::subsystems::error::SubsystemError;

/// Why a step could not be made.
#[derive(thiserror::Error)]
pub enum StepError {
    /// An error that other rooms make too.
    #[error(transparent)]
    Common(CommonError),
    /// The data of the step.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A pass over micro-batches.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A loss that did not pass validation.
    #[error(transparent)]
    Subsystem(#[from] SubsystemError),
    /// Gradients cannot be saved.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// `ddp.check_for_nan_in_grad` found something.
    #[error("iteration {iteration}: the gradient norm is {norm} (ddp.check_for_nan_in_grad = false skips such steps)")]
    GradientNotFinite {
        /// The step.
        iteration: u64,
        /// The norm.
        norm: f64,
    },
    /// The program has replaced the output projection, and the forward step brings no loss.
    #[error(
        "the model has a layer of the program's in place of its output projection, and so no loss of its own: expected a custom loss \
         (`ForwardStep::custom_loss`) for each micro-batch"
    )]
    NoLoss,
}

room_error! { StepError, wraps Common, Input, Engine, Subsystem, Resume;
    Self::GradientNotFinite { .. } | Self::NoLoss => ErrorClass::Failed,
}
