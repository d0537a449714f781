//! Types of the state machine: states, instructions to the loop, state in checkpoints.

use serde::{Deserialize, Serialize};

use super::{EXIT_CODE_FAILED_ON_RESULT_VALIDATION, EXIT_CODE_RESUME_TO_DISAMBIGUATE};
use crate::config::ErrorInjectionType;

/// State of the machine within a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RerunState {
    /// Between steps.
    #[default]
    NotRunningYet,
    /// First pass of a step.
    InitialRun,
    /// Second pass, same process and device.
    RerunningInPlace,
    /// The checkpoint to rerun from is being written, or was just loaded.
    WillRerunFromCheckpoint,
    /// Pass after a restart from that checkpoint.
    RerunningFromCheckpoint,
    /// The restart got the same device, so another restart is due.
    RerunningAgainFromCheckpoint,
}

/// Next action of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextPass {
    /// Run forward and backward, perhaps again, on the same data with the same random numbers.
    Run,
    /// Continue with the results of the last pass.
    Done,
    /// End the process as [`ExitDecision`] says: another one repeats the step.
    Exit,
}

/// Action of the loop after a step's passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitDecision {
    /// Take the optimizer step.
    Continue,
    /// Save a checkpoint, then exit with this code.
    SaveAndExit(i32),
    /// Exit with this code; a checkpoint must not be saved.
    Exit(i32),
}

impl ExitDecision {
    pub(super) fn from_state(state: RerunState) -> Self {
        match state {
            RerunState::RerunningInPlace | RerunState::RerunningFromCheckpoint => {
                Self::Exit(EXIT_CODE_FAILED_ON_RESULT_VALIDATION)
            }
            RerunState::WillRerunFromCheckpoint => Self::SaveAndExit(EXIT_CODE_RESUME_TO_DISAMBIGUATE),
            RerunState::RerunningAgainFromCheckpoint => Self::Exit(EXIT_CODE_RESUME_TO_DISAMBIGUATE),
            RerunState::NotRunningYet | RerunState::InitialRun => Self::Continue,
        }
    }
}

/// One validation within a pass: the check, and the number of its earlier calls in this pass.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Call {
    pub(super) message: String,
    pub(super) sequence: u64,
}

/// The validation that made a step run again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) call: Call,
    #[serde(with = "as_text")]
    pub(super) result: f64,
    /// Machine of the initial run.
    pub(super) node: String,
    pub(super) device: usize,
}

/// State of one rank's machine in a checkpoint, present only while a rerun is due.
///
/// Results are stored as text, because the NaN that is so often in question has no number in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RerunCheckpoint {
    pub(super) state: RerunState,
    /// Iterations completed before the one in doubt.
    pub(super) completed_iterations: u64,
    pub(super) failure: Option<Failure>,
    /// Call that an injected fault hit.
    pub(super) pending_injection: Option<Call>,
    /// Type of the injected fault; older checkpoints leave it to the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pending_injection_type: Option<ErrorInjectionType>,
}

/// A checkpoint that the machine cannot continue from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the checkpoint's rerun state is {found:?}, expected WillRerunFromCheckpoint")]
pub struct RerunCheckpointError {
    /// The state found.
    pub found: RerunState,
}

/// A number as text: it may be one that JSON lacks.
mod as_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(Error::custom)
    }
}
