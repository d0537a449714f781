//! The state machine itself: which pass comes next, what a result means, whether to exit.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Display;

use serde::{Deserialize, Serialize};

use super::finding::{Finding, FindingKind, Placement, UnexpectedResult};
use super::injection::{ErrorInjection, Injector};
use super::state::{
    Call, DeterminismStats, ExitDecision, Failure, ForwardBackward, RerunCheckpoint, RerunCheckpointError, RerunState,
    Votes,
};

/// What rejected results lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RerunMode {
    /// An error, or a warning when the check is not fatal.
    #[default]
    Disabled,
    /// Reruns.
    ValidateResults,
    /// Every step runs twice, and differences are counted.
    ReportDeterminismStats,
}

/// Parameters of a [`RerunStateMachine`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RerunConfig {
    /// What rejected results lead to.
    pub mode: RerunMode,
    /// Faults put in on purpose.
    pub injection: ErrorInjection,
    /// Where this rank runs.
    pub placement: Placement,
}

/// What a rejected result does when reruns have not explained it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It ends the run.
    Fatal,
    /// It is reported, and training goes on.
    NonFatal,
}

/// A result to validate.
#[derive(Clone, Copy, Debug)]
pub struct Validation<'a, T> {
    /// The result.
    pub result: T,
    /// Whether the caller finds it unacceptable.
    pub rejected: bool,
    /// What was checked. With the number of earlier calls in the pass it identifies the call, so it must not contain
    /// anything that varies from pass to pass.
    pub message: &'a str,
    /// Largest difference at which two results count as the same.
    pub tolerance: f64,
    /// What a rejection does.
    pub severity: Severity,
}

/// What ranks ask for within a pass.
#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    rerun: bool,
    checkpoint: bool,
    restart: bool,
    exit: bool,
    carry_on: bool,
}

/// One rank's state machine over results of type `T`.
#[derive(Clone, Debug)]
pub struct RerunStateMachine<T = f64> {
    config: RerunConfig,
    state: RerunState,
    iteration: u64,
    first_iteration_is_over: bool,
    requests: Requests,
    failure: Option<Failure<T>>,
    injector: Injector,
    /// Calls so far in this pass, by message.
    num_calls: BTreeMap<String, u64>,
    /// Results of the initial run, when differences are counted.
    initial_results: BTreeMap<Call, T>,
    stats: BTreeMap<String, DeterminismStats>,
}

impl<T: Clone + Display> RerunStateMachine<T> {
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
            initial_results: BTreeMap::new(),
            stats: BTreeMap::new(),
        }
    }

    /// Where the machine stands.
    pub fn state(&self) -> RerunState {
        self.state
    }

    /// What rejected results lead to at present.
    pub fn mode(&self) -> RerunMode {
        self.config.mode
    }

    /// Changes the mode, for instance to disable reruns during an evaluation, and returns the one before.
    pub fn set_mode(&mut self, mode: RerunMode) -> RerunMode {
        std::mem::replace(&mut self.config.mode, mode)
    }

    /// Tells the machine how many iterations are complete; called before the loop, after a checkpoint is loaded.
    pub fn align_iteration(&mut self, completed_iterations: u64) {
        self.iteration = completed_iterations;
    }

    /// The iteration in progress or just completed, counted from 1.
    pub fn iteration(&self) -> u64 {
        self.iteration
    }

    /// Whether the pass in progress repeats an earlier one.
    pub fn is_rerunning(&self) -> bool {
        matches!(self.state, RerunState::RerunningInPlace | RerunState::RerunningFromCheckpoint)
    }

    /// Differences counted so far, by what was checked.
    pub fn determinism_stats(&self) -> &BTreeMap<String, DeterminismStats> {
        &self.stats
    }

    /// Moves to the next pass of the step, or to its end.
    ///
    /// Where ranks disagree the graver request wins: a checkpoint or restart before an exit before going on.
    ///
    /// # Errors
    /// Whatever `votes` reports.
    pub fn next_pass<V: Votes>(&mut self, votes: &mut V) -> Result<ForwardBackward, V::Error> {
        match self.state {
            RerunState::NotRunningYet => {
                self.iteration += 1;
                self.start_pass(RerunState::InitialRun);
                self.initial_results.clear();
                self.failure = None;
                Ok(match self.config.mode {
                    RerunMode::Disabled => ForwardBackward::Run,
                    _ => ForwardBackward::SnapshotAndRun,
                })
            }
            RerunState::InitialRun => {
                if self.config.mode == RerunMode::Disabled || !votes.all_reduce_any(self.requests.rerun)? {
                    return Ok(self.finish_step());
                }
                self.start_pass(RerunState::RerunningInPlace);
                Ok(ForwardBackward::RestoreAndRun)
            }
            RerunState::RerunningInPlace => self.after_rerun_in_place(votes),
            RerunState::WillRerunFromCheckpoint => {
                self.iteration += 1;
                self.start_pass(RerunState::RerunningFromCheckpoint);
                Ok(ForwardBackward::SnapshotAndRun)
            }
            RerunState::RerunningFromCheckpoint => {
                if votes.all_reduce_any(self.requests.restart)? {
                    self.state = RerunState::RerunningAgainFromCheckpoint;
                    return Ok(ForwardBackward::RestoreAndStop);
                }
                self.go_on_or_stop(votes)
            }
            RerunState::RerunningAgainFromCheckpoint => Ok(ForwardBackward::RestoreAndStop),
        }
    }

    fn after_rerun_in_place<V: Votes>(&mut self, votes: &mut V) -> Result<ForwardBackward, V::Error> {
        if self.config.mode == RerunMode::ReportDeterminismStats {
            return Ok(self.finish_step());
        }
        if votes.all_reduce_any(self.requests.checkpoint)? {
            self.state = RerunState::WillRerunFromCheckpoint;
            return Ok(ForwardBackward::RestoreAndStop);
        }
        self.go_on_or_stop(votes)
    }

    /// Ends the step if some rank says to go on and none says to exit; otherwise stays, which means exit.
    fn go_on_or_stop<V: Votes>(&mut self, votes: &mut V) -> Result<ForwardBackward, V::Error> {
        let exit = votes.all_reduce_any(self.requests.exit)?;
        let carry_on = votes.all_reduce_any(self.requests.carry_on)?;
        Ok(if carry_on && !exit { self.finish_step() } else { ForwardBackward::RestoreAndStop })
    }

    fn start_pass(&mut self, state: RerunState) {
        self.state = state;
        self.requests = Requests::default();
        self.num_calls.clear();
    }

    fn finish_step(&mut self) -> ForwardBackward {
        self.state = RerunState::NotRunningYet;
        self.first_iteration_is_over = true;
        self.injector.pending = None;
        ForwardBackward::Done
    }

    /// What to do after the passes of a step.
    pub fn exit_decision(&self) -> ExitDecision {
        match self.config.mode {
            RerunMode::ValidateResults => ExitDecision::of(self.state),
            RerunMode::Disabled | RerunMode::ReportDeterminismStats => ExitDecision::Continue,
        }
    }

    /// Looks at one result of the pass in progress. `compare` says how far two results are apart.
    ///
    /// Returns what there is to log, if anything.
    ///
    /// # Errors
    /// A rejected result of a fatal check, when the mode is [`RerunMode::Disabled`].
    pub fn validate_result(
        &mut self,
        validation: Validation<'_, T>,
        compare: impl Fn(&T, &T) -> f64,
    ) -> Result<Option<Finding>, UnexpectedResult> {
        match self.config.mode {
            RerunMode::Disabled => match (validation.rejected, validation.severity) {
                (false, _) => Ok(None),
                (true, Severity::Fatal) => Err(self.unexpected(&validation)),
                (true, Severity::NonFatal) => Ok(Some(self.finding(FindingKind::Tolerated, &validation))),
            },
            RerunMode::ReportDeterminismStats => {
                self.count_difference(&validation, compare);
                Ok(None)
            }
            RerunMode::ValidateResults => {
                Ok(self.judge(&validation, compare).map(|kind| self.finding(kind, &validation)))
            }
        }
    }

    fn judge(&mut self, validation: &Validation<'_, T>, compare: impl Fn(&T, &T) -> f64) -> Option<FindingKind> {
        let call = self.next_call(validation.message);
        if self.state == RerunState::InitialRun {
            return self.judge_initial_run(validation, call);
        }
        if !self.is_rerunning() {
            return None;
        }
        let failure = self.failure.as_ref().filter(|failure| failure.call == call)?;
        let differs = self.injector.distorts(&call, self.state)
            // Written so that a comparison that yields NaN counts as a difference.
            || !matches!(compare(&failure.result, &validation.result).partial_cmp(&validation.tolerance),
                Some(Ordering::Less | Ordering::Equal));
        let placement = &self.config.placement;
        let same_device = failure.node == placement.node && failure.device == placement.device;
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

    fn judge_initial_run(&mut self, validation: &Validation<'_, T>, call: Call) -> Option<FindingKind> {
        // The first iteration of a process is not judged: its results vary with warm-up.
        if !self.first_iteration_is_over || self.failure.is_some() {
            return None;
        }
        if !self.injector.hits(&call) && !validation.rejected {
            return None;
        }
        let Placement { node, device, .. } = self.config.placement.clone();
        self.failure = Some(Failure { call, result: validation.result.clone(), node, device });
        self.requests.rerun = true;
        Some(FindingKind::RerunRequested)
    }

    fn count_difference(&mut self, validation: &Validation<'_, T>, compare: impl Fn(&T, &T) -> f64) {
        let call = self.next_call(validation.message);
        match self.state {
            RerunState::InitialRun => {
                self.initial_results.insert(call, validation.result.clone());
                self.requests.rerun = true;
            }
            RerunState::RerunningInPlace => {
                if let Some(initial) = self.initial_results.get(&call) {
                    let difference = compare(initial, &validation.result);
                    self.stats.entry(call.message).or_default().record(difference);
                }
            }
            _ => {}
        }
    }

    fn next_call(&mut self, message: &str) -> Call {
        let num_calls = self.num_calls.entry(message.to_owned()).or_default();
        *num_calls += 1;
        Call { message: message.to_owned(), sequence: *num_calls }
    }

    fn unexpected(&self, validation: &Validation<'_, T>) -> UnexpectedResult {
        UnexpectedResult {
            placement: self.config.placement.clone(),
            iteration: self.iteration,
            result: validation.result.to_string(),
            message: validation.message.to_owned(),
        }
    }

    fn finding(&self, kind: FindingKind, validation: &Validation<'_, T>) -> Finding {
        Finding { kind, result: self.unexpected(validation) }
    }

    /// What a checkpoint must hold, which is nothing unless a rerun from it is due. Differs from rank to rank.
    pub fn checkpoint(&self) -> Option<RerunCheckpoint<T>> {
        (self.state == RerunState::WillRerunFromCheckpoint).then(|| RerunCheckpoint {
            state: self.state,
            completed_iterations: self.iteration.saturating_sub(1),
            failure: self.failure.clone(),
            pending_injection: self.injector.pending.clone(),
        })
    }

    /// Where the draws of injected faults stand; nothing unless faults are injected.
    pub fn injection_draws(&self) -> Option<u64> {
        self.injector.draws()
    }

    /// Goes on drawing injected faults where [`Self::injection_draws`] stood.
    pub fn continue_injection(&mut self, draws: u64) {
        self.injector.continue_at(draws);
    }

    /// Takes over what a checkpoint holds. With reruns disabled it is dropped: the step simply runs.
    ///
    /// # Errors
    /// A state that no checkpoint should hold.
    pub fn load_checkpoint(&mut self, checkpoint: RerunCheckpoint<T>) -> Result<(), RerunCheckpointError> {
        if checkpoint.state != RerunState::WillRerunFromCheckpoint {
            return Err(RerunCheckpointError { found: checkpoint.state });
        }
        self.iteration = checkpoint.completed_iterations;
        if self.config.mode == RerunMode::ValidateResults {
            self.state = checkpoint.state;
            self.first_iteration_is_over = true;
            self.failure = checkpoint.failure;
            self.injector.pending = checkpoint.pending_injection;
        }
        Ok(())
    }
}
