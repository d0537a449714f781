//! Errors of a training step.

use crate::train::data::error::InputError;
use crate::train::engine::error::EngineError;
use crate::train::error::{CommonError, ErrorClass, room_error};
use crate::train::resume::error::ResumeError;
use crate::train::subsystems::error::SubsystemError;

/// Why a training step fails.
#[derive(thiserror::Error)]
pub enum StepError {
    /// An error that several modules of the training loop share.
    #[error(transparent)]
    Common(CommonError),
    /// The data of the step cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A forward or backward pass fails.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A subsystem fails, or a loss did not pass validation.
    #[error(transparent)]
    Subsystem(#[from] SubsystemError),
    /// Gradients cannot be saved.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The gradient norm is not finite (`ddp.check_for_nan_in_grad`).
    #[error("iteration {iteration}: the gradient norm is {norm} (ddp.check_for_nan_in_grad = false skips such steps)")]
    GradientNotFinite {
        /// Iteration of the step.
        iteration: u64,
        /// Gradient norm.
        norm: f64,
    },
    /// The program replaced the output projection, and its forward step has no custom loss.
    #[error(
        "the program replaced the output projection of the model, so the model has no loss of its own: expected a custom loss \
         (`ForwardStep::custom_loss`) for each micro-batch"
    )]
    NoLoss,
}

room_error! { StepError, wraps Common, Input, Engine, Subsystem, Resume;
    Self::GradientNotFinite { .. } | Self::NoLoss => ErrorClass::Failed,
}
