//! The state machine: choice of the next pass, judgement of results, decision to exit.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::determinism::{CheckDifferences, Differences};
use super::finding::{FaultCause, Finding, FindingKind, RankLocation, UnexpectedResult};
use super::injection::{ErrorInjection, Fault, Injector};
use super::relative_difference;
use super::state::{Call, ExitDecision, Failure, NextPass, RerunCheckpoint, RerunCheckpointError, RerunState};
use crate::config::RerunMode;

/// Parameters of a [`RerunStateMachine`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RerunConfig {
    /// Reaction to rejected results.
    pub mode: RerunMode,
    /// Faults put in on purpose.
    pub injection: ErrorInjection,
    /// Location of this rank.
    pub placement: RankLocation,
}

/// Severity of a rejected result that reruns have not explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The error ends the run.
    Fatal,
    /// The error is reported, and training goes on.
    NonFatal,
}

/// A result to validate.
#[derive(Clone, Copy, Debug)]
pub struct Validation<'a> {
    /// The result.
    pub result: f64,
    /// True if the caller rejects the result.
    pub rejected: bool,
    /// Name of the check. With the number of earlier calls in the pass it identifies the call, so
    /// it must not contain anything that varies from pass to pass.
    pub message: &'a str,
    /// Largest difference at which two results count as the same.
    pub tolerance: f64,
    /// Severity of a rejection.
    pub severity: Severity,
}

/// Requests of ranks within a pass.
#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    rerun: bool,
    checkpoint: bool,
    restart: bool,
    exit: bool,
    carry_on: bool,
}

/// One rank's state machine.
#[derive(Clone, Debug)]
pub struct RerunStateMachine {
    config: RerunConfig,
    state: RerunState,
    iteration: u64,
    first_iteration_is_over: bool,
    requests: Requests,
    failure: Option<Failure>,
    injector: Injector,
    /// Calls so far in this pass, by message.
    num_calls: BTreeMap<String, u64>,
    differences: Differences,
}

impl RerunStateMachine {
    /// A machine between steps, before the first iteration.
    pub fn new(config: RerunConfig) -> Self {
        let injector = Injector::new(config.injection, config.placement.rank);
        Self {
            config,
            state: RerunState::NotRunningYet,
            iteration: 0,
            first_iteration_is_over: false,
            requests: Requests::default(),
            failure: None,
            injector,
            num_calls: BTreeMap::new(),
            differences: Differences::default(),
        }
    }

    /// State of the machine.
    pub fn state(&self) -> RerunState {
        self.state
    }

    /// Location of this rank.
    pub fn placement(&self) -> &RankLocation {
        &self.config.placement
    }

    /// Current reaction to rejected results.
    pub fn mode(&self) -> RerunMode {
        self.config.mode
    }

    /// Tells the machine how many iterations are complete; called before the loop, after a
    /// checkpoint is loaded.
    pub fn align_iteration(&mut self, completed_iterations: u64) {
        self.iteration = completed_iterations;
    }

    /// The iteration in progress or just completed, counted from 1.
    pub fn iteration(&self) -> u64 {
        self.iteration
    }

    /// True if the pass in progress repeats an earlier one.
    pub fn is_rerunning(&self) -> bool {
        matches!(self.state, RerunState::RerunningInPlace | RerunState::RerunningFromCheckpoint)
    }

    /// Moves to the next pass of the step, or to its end. `any` says whether any rank votes yes;
    /// one call is one collective.
    ///
    /// If ranks disagree, the graver request wins: a checkpoint or restart before an exit before
    /// continuing.
    ///
    /// # Errors
    /// Errors of `any`.
    pub fn next_pass<E>(&mut self, any: &mut dyn FnMut(bool) -> Result<bool, E>) -> Result<NextPass, E> {
        match self.state {
            RerunState::NotRunningYet => {
                self.iteration += 1;
                self.start_pass(RerunState::InitialRun);
                self.failure = None;
                Ok(NextPass::Run)
            }
            RerunState::InitialRun => {
                let repeats = match self.config.mode {
                    RerunMode::Disabled => false,
                    RerunMode::ValidateResults => any(self.requests.rerun)?,
                    RerunMode::ReportDeterminismStats => true,
                };
                if !repeats {
                    return Ok(self.finish_step());
                }
                self.start_pass(RerunState::RerunningInPlace);
                Ok(NextPass::Run)
            }
            RerunState::RerunningInPlace if self.config.mode == RerunMode::ReportDeterminismStats => {
                Ok(self.finish_step())
            }
            RerunState::RerunningInPlace => self.after_rerun_in_place(any),
            RerunState::WillRerunFromCheckpoint => {
                self.iteration += 1;
                self.start_pass(RerunState::RerunningFromCheckpoint);
                Ok(NextPass::Run)
            }
            RerunState::RerunningFromCheckpoint => {
                if any(self.requests.restart)? {
                    self.state = RerunState::RerunningAgainFromCheckpoint;
                    return Ok(NextPass::Exit);
                }
                self.go_on_or_stop(any)
            }
            RerunState::RerunningAgainFromCheckpoint => Ok(NextPass::Exit),
        }
    }

    fn after_rerun_in_place<E>(&mut self, any: &mut dyn FnMut(bool) -> Result<bool, E>) -> Result<NextPass, E> {
        if any(self.requests.checkpoint)? {
            self.state = RerunState::WillRerunFromCheckpoint;
            return Ok(NextPass::Exit);
        }
        self.go_on_or_stop(any)
    }

    /// Ends the step if some rank says to go on and none says to exit; otherwise stays, which means
    /// exit.
    fn go_on_or_stop<E>(&mut self, any: &mut dyn FnMut(bool) -> Result<bool, E>) -> Result<NextPass, E> {
        let exit = any(self.requests.exit)?;
        let carry_on = any(self.requests.carry_on)?;
        Ok(if carry_on && !exit { self.finish_step() } else { NextPass::Exit })
    }

    fn start_pass(&mut self, state: RerunState) {
        self.state = state;
        self.requests = Requests::default();
        self.num_calls.clear();
    }

    fn finish_step(&mut self) -> NextPass {
        self.state = RerunState::NotRunningYet;
        self.first_iteration_is_over = true;
        self.injector.pending = None;
        NextPass::Done
    }

    /// Decision after the passes of a step.
    pub fn exit_decision(&self) -> ExitDecision {
        match self.config.mode {
            RerunMode::ValidateResults => ExitDecision::from_state(self.state),
            RerunMode::Disabled | RerunMode::ReportDeterminismStats => ExitDecision::Continue,
        }
    }

    /// Validates one result of the pass in progress.
    ///
    /// Returns a finding for the log, if any.
    ///
    /// # Errors
    /// A rejected result of a fatal check, when steps are not repeated because of it.
    pub fn validate_result(&mut self, validation: Validation<'_>) -> Result<Option<Finding>, UnexpectedResult> {
        match self.config.mode {
            RerunMode::Disabled => self.heed(&validation),
            RerunMode::ValidateResults => {
                let call = self.next_call(validation.message);
                let kind = self.classify(&validation, &call);
                let cause = if self.injector.has_hit(&call) { FaultCause::Injected } else { FaultCause::Found };
                Ok(kind.map(|kind| Finding { kind, result: self.unexpected(&validation), cause }))
            }
            RerunMode::ReportDeterminismStats => {
                let call = self.next_call(validation.message);
                if !self.is_rerunning() {
                    self.differences.expect(call, validation.result);
                    return self.heed(&validation);
                }
                self.differences.compare(&call, validation.result);
                // The first pass has reported the finding already.
                self.heed(&validation).map(|_told| None)
            }
        }
    }

    /// Reports the result or fails, without a rerun.
    fn heed(&self, validation: &Validation<'_>) -> Result<Option<Finding>, UnexpectedResult> {
        let result = || self.unexpected(validation);
        match (validation.rejected, validation.severity) {
            (false, _) => Ok(None),
            (true, Severity::Fatal) => Err(result()),
            (true, Severity::NonFatal) => {
                Ok(Some(Finding { kind: FindingKind::Tolerated, result: result(), cause: FaultCause::Found }))
            }
        }
    }

    /// Finding about a result, if it was rejected before or is now.
    fn classify(&mut self, validation: &Validation<'_>, call: &Call) -> Option<FindingKind> {
        if self.state == RerunState::InitialRun {
            return self.classify_initial_run(validation, call);
        }
        if !self.is_rerunning() {
            return None;
        }
        let failure = self.failure.as_ref().filter(|failure| failure.call == *call)?;
        let differs = self.injector.distorts(call, self.state)
            // Written so that a comparison that yields NaN counts as a difference.
            || !matches!(relative_difference(&failure.result, &validation.result).partial_cmp(&validation.tolerance),
                Some(Ordering::Less | Ordering::Equal));
        let placement = &self.config.placement;
        let same_device =
            failure.node == placement.node && failure.device == placement.device && !self.injector.has_hit(call);
        let (kind, fatal_request): (_, fn(&mut Requests)) = match (self.state, differs) {
            (RerunState::RerunningInPlace, true) => (FindingKind::Transient, |r| r.exit = true),
            (RerunState::RerunningInPlace, false) => (FindingKind::Reproducible, |r| r.checkpoint = true),
            _ if same_device => {
                self.requests.restart = true;
                return Some(FindingKind::SameDevice);
            }
            (_, true) => (FindingKind::Persistent, |r| r.exit = true),
            (_, false) => (FindingKind::Correct, |r| r.exit = true),
        };
        match validation.severity {
            Severity::Fatal => fatal_request(&mut self.requests),
            Severity::NonFatal => self.requests.carry_on = true,
        }
        Some(kind)
    }

    fn classify_initial_run(&mut self, validation: &Validation<'_>, call: &Call) -> Option<FindingKind> {
        // The first iteration of a process is not judged: its results vary with warm-up.
        if !self.first_iteration_is_over || self.failure.is_some() {
            return None;
        }
        if !self.injector.hits(call) && !validation.rejected {
            return None;
        }
        let RankLocation { node, device, .. } = self.config.placement.clone();
        self.failure = Some(Failure { call: call.clone(), result: validation.result, node, device });
        self.requests.rerun = true;
        Some(FindingKind::RerunRequested)
    }

    fn next_call(&mut self, message: &str) -> Call {
        let num_calls = self.num_calls.entry(message.to_owned()).or_default();
        *num_calls += 1;
        Call { message: message.to_owned(), sequence: *num_calls }
    }

    fn unexpected(&self, validation: &Validation<'_>) -> UnexpectedResult {
        UnexpectedResult {
            placement: self.config.placement.clone(),
            iteration: self.iteration,
            result: validation.result.to_string(),
            message: validation.message.to_owned(),
        }
    }

    /// Takes the differences between the results of repeated passes since the last call, check by
    /// check.
    pub fn take_differences(&mut self) -> Vec<CheckDifferences> {
        self.differences.take()
    }

    /// State for a checkpoint; `None` unless a rerun from it is due. It differs from rank to rank.
    pub fn checkpoint(&self) -> Option<RerunCheckpoint> {
        (self.state == RerunState::WillRerunFromCheckpoint).then(|| RerunCheckpoint {
            state: self.state,
            completed_iterations: self.iteration.saturating_sub(1),
            failure: self.failure.clone(),
            pending_injection: self.injector.pending.as_ref().map(|fault| fault.call.clone()),
            pending_injection_type: self.injector.pending.as_ref().map(|fault| fault.kind),
        })
    }

    /// Position of the draws of injected faults; `None` unless faults are injected.
    pub fn injection_draws(&self) -> Option<u64> {
        self.injector.draws()
    }

    /// Goes on drawing injected faults where [`Self::injection_draws`] stood.
    pub fn continue_injection(&mut self, draws: u64) {
        self.injector.continue_at(draws);
    }

    /// Restores the state of a checkpoint. With reruns disabled it is dropped: the step simply
    /// runs.
    ///
    /// # Errors
    /// A state that no checkpoint should hold.
    pub fn load_checkpoint(&mut self, checkpoint: RerunCheckpoint) -> Result<(), RerunCheckpointError> {
        if checkpoint.state != RerunState::WillRerunFromCheckpoint {
            return Err(RerunCheckpointError { found: checkpoint.state });
        }
        self.iteration = checkpoint.completed_iterations;
        if self.config.mode == RerunMode::ValidateResults {
            self.state = checkpoint.state;
            self.first_iteration_is_over = true;
            self.failure = checkpoint.failure;
            let kind = checkpoint.pending_injection_type.unwrap_or(self.config.injection.kind);
            self.injector.pending = checkpoint.pending_injection.map(|call| Fault { call, kind });
        }
        Ok(())
    }
}
