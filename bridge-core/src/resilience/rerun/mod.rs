//! The rerun state machine: a rejected result is computed again, in place and then from a
//! checkpoint on another device, to tell a bad input from a bad device. Pure decisions: no tensors,
//! no I/O, no process exit.
//!
//! One step looks like this:
//! ```text
//! while machine.next_pass(votes)? == NextPass::Run {
//!     run forward and backward, calling machine.validate_result(..) on each loss
//! }
//! match machine.exit_decision() { .. }                        // go on, or save and exit with 16 or 17
//! ```
//!
//! With [`RerunMode::ReportDeterminismStats`](crate::config::RerunMode::ReportDeterminismStats)
//! every step runs twice, and the differences of its results are reported instead.

mod determinism;
mod finding;
mod injection;
mod machine;
mod state;
#[cfg(test)]
mod tests;

pub use determinism::{CheckDifferences, Spread};
pub use finding::{FaultCause, Finding, FindingKind, RankLocation, UnexpectedResult};
pub use injection::ErrorInjection;
pub use machine::{RerunConfig, RerunStateMachine, Severity, Validation};
pub use state::{ExitDecision, NextPass, RerunCheckpoint, RerunCheckpointError, RerunState};

/// Exit code that asks the launcher to resume, on another device if possible, to diagnose the
/// fault.
pub const EXIT_CODE_RESUME_TO_DISAMBIGUATE: i32 = 16;

/// Exit code that says a result failed validation.
pub const EXIT_CODE_FAILED_ON_RESULT_VALIDATION: i32 = 17;

/// Relative difference of two results: 0 if equal or both NaN, infinite if only one is NaN or
/// infinite, otherwise `2 |a - b| / |a + b|`.
pub fn relative_difference(a: &f64, b: &f64) -> f64 {
    let (a, b) = (*a, *b);
    if a == b || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    // Opposite infinities and opposite numbers land here too, where the formula has no value.
    if !a.is_finite() || !b.is_finite() || a == -b {
        return f64::INFINITY;
    }
    2.0 * (a - b).abs() / (a + b).abs()
}
