//! The vocabulary of the state machine: states, votes, instructions to the loop, what a checkpoint holds.

use std::convert::Infallible;
use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{EXIT_CODE_FAILED_ON_RESULT_VALIDATION, EXIT_CODE_RESUME_TO_DISAMBIGUATE};

/// Where the machine stands within a step.
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

/// How ranks agree. One call is one collective: all ranks make the same calls in the same order.
pub trait Votes {
    /// What a failing collective returns.
    type Error;

    /// Whether any rank votes yes.
    ///
    /// # Errors
    /// Whatever the collective reports.
    fn all_reduce_any(&mut self, vote: bool) -> Result<bool, Self::Error>;
}

/// The votes of a run with one rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleRank;

impl Votes for SingleRank {
    type Error = Infallible;

    fn all_reduce_any(&mut self, vote: bool) -> Result<bool, Infallible> {
        Ok(vote)
    }
}

/// What the loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardBackward {
    /// Run forward and backward.
    Run,
    /// Take a snapshot of the random state and mark the place in the data, then run.
    SnapshotAndRun,
    /// Go back to the snapshot and run again.
    RestoreAndRun,
    /// Go on with what the last pass computed.
    Done,
    /// Go back to the snapshot without running: the step will be repeated by another process.
    RestoreAndStop,
}

impl ForwardBackward {
    /// Whether forward and backward run.
    pub fn runs(self) -> bool {
        matches!(self, Self::Run | Self::SnapshotAndRun | Self::RestoreAndRun)
    }
}

/// What the loop does after a step's passes.
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
    pub(super) fn of(state: RerunState) -> Self {
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

/// One validation within a pass: what was checked, and how often before in this pass.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Call {
    pub(super) message: String,
    pub(super) sequence: u64,
}

/// The validation that made a step run again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(serialize = "T: Display", deserialize = "T: FromStr, T::Err: Display"))]
pub(super) struct Failure<T> {
    pub(super) call: Call,
    #[serde(with = "as_text")]
    pub(super) result: T,
    /// Where the initial run took place.
    pub(super) node: String,
    pub(super) device: usize,
}

/// What a checkpoint holds of one rank's machine; there is something to hold only while a rerun is due.
///
/// Results are stored as text, because the NaN that is so often in question has no number in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound(serialize = "T: Display", deserialize = "T: FromStr, T::Err: Display"))]
pub struct RerunCheckpoint<T> {
    pub(super) state: RerunState,
    /// Iterations completed before the one in doubt.
    pub(super) completed_iterations: u64,
    pub(super) failure: Option<Failure<T>>,
    pub(super) pending_injection: Option<Call>,
}

/// A checkpoint that the machine cannot continue from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the checkpoint's rerun state is {found:?}, expected WillRerunFromCheckpoint")]
pub struct RerunCheckpointError {
    /// The state found.
    pub found: RerunState,
}

/// How much results of one validation varied between two passes over the same step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeterminismStats {
    /// Pairs of results compared.
    pub num_compared: u64,
    /// Pairs that differed at all.
    pub num_different: u64,
    /// Largest finite difference.
    pub max_difference: f64,
    /// Sum of the finite differences.
    pub sum_difference: f64,
    /// Pairs whose difference is not finite: only one of them NaN or infinite.
    pub num_non_finite: u64,
}

impl DeterminismStats {
    pub(super) fn record(&mut self, difference: f64) {
        self.num_compared += 1;
        if difference != 0.0 {
            self.num_different += 1;
        }
        if difference.is_finite() {
            self.max_difference = self.max_difference.max(difference);
            self.sum_difference += difference;
        } else {
            self.num_non_finite += 1;
        }
    }

    /// Mean of the finite differences; 0 when there are none.
    pub fn mean_difference(&self) -> f64 {
        let num_finite = self.num_compared - self.num_non_finite;
        if num_finite == 0 { 0.0 } else { self.sum_difference / num_finite as f64 }
    }
}

/// Serializes a value by its `Display` and reads it back by its `FromStr`.
mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(deserializer)?.parse().map_err(Error::custom)
    }
}
