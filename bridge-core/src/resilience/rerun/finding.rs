//! Findings of a validation, in words for logs and errors. The machine makes them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Location of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankLocation {
    /// Global rank.
    pub rank: usize,
    /// Host name.
    pub node: String,
    /// Device index on the host.
    pub device: usize,
}

impl fmt::Display for RankLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, node {}, device {}", self.rank, self.node, self.device)
    }
}

/// A rejected result, and where and when it came up.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("Rank {}, node {}, device {}, iteration {iteration}: Unexpected result {result} (message='{message}')",
    placement.rank, placement.node, placement.device)]
pub struct UnexpectedResult {
    /// Rank, host and device that computed it.
    pub placement: RankLocation,
    /// Iteration, counted from 1.
    pub iteration: u64,
    /// The result, formatted.
    pub result: String,
    /// Name of the check.
    pub message: String,
}

/// Conclusion of a validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// Rejected, not fatal, and reruns are disabled.
    Tolerated,
    /// Rejected: the step will run again.
    RerunRequested,
    /// The rerun in place came out differently: something transient.
    Transient,
    /// The rerun in place came out the same: the device or the input.
    Reproducible,
    /// The rerun elsewhere came out differently: the first device is at fault.
    Persistent,
    /// The rerun elsewhere came out the same: the result is right, however odd.
    Correct,
    /// The rerun from a checkpoint was given the same device, which says nothing.
    SameDevice,
}

/// Finding of a validation; its `Display` is the log line.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The conclusion.
    pub kind: FindingKind,
    /// The result it is about.
    pub result: UnexpectedResult,
    /// Cause of the fault: real or injected.
    pub cause: FaultCause,
}

/// Cause of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultCause {
    /// A fault of the computation or of its inputs.
    Found,
    /// An injected fault. The device after a restart then counts as another device, so that all
    /// verdicts can be tested on one machine.
    Injected,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conclusion = match self.kind {
            FindingKind::Tolerated => "going on, the check is not fatal",
            FindingKind::RerunRequested => "running the step again to see whether it is reproducible",
            FindingKind::Transient => "transient error: the rerun on the same device differs",
            FindingKind::Reproducible => {
                "the rerun on the same device agrees; a rerun on another device would tell why"
            }
            FindingKind::Persistent => "persistent error: the rerun on another device differs",
            FindingKind::Correct => "the rerun on another device agrees: the result is correct, if unexpected",
            FindingKind::SameDevice => "the rerun was given the same device; it needs another one",
        };
        write!(f, "{}: {conclusion}", self.result)?;
        match (self.cause, self.kind) {
            (FaultCause::Found, _) => Ok(()),
            (FaultCause::Injected, FindingKind::Persistent | FindingKind::Correct) => {
                f.write_str(" (injected: any restart counts as one on another device)")
            }
            (FaultCause::Injected, _) => f.write_str(" (injected)"),
        }
    }
}
