//! Checks each rank's own losses and gradients before ranks sum them, so that findings name the
//! rank, and decides with the rerun state machine whether a pass is repeated. Ranks act on the
//! result together.
//!
//! The step calls it directly, besides its calls as a subsystem: its findings change the step while
//! the step runs.

use bridge_dist::comm::CommError;
use bridge_dist::mesh::ProcessGroups;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::{RerunMode, RunConfig};
use crate::optim::GradientPart;
use crate::resilience::rerun::{
    CheckDifferences, ExitDecision, Finding, NextPass, RankLocation, RerunCheckpoint, RerunStateMachine,
    UnexpectedResult,
};
use crate::resilience::{LossChecks, SpikyLossDetector};
use crate::train::ranks::agreement;
use crate::train::reporting::report::{StepReport, TrainEnd, is_reported_every};
use crate::train::reporting::reporter::Reporter;
use crate::train::subsystems::contract::{Loaded, LoopRequest, RunContext, Subsystem, saved};
use crate::train::subsystems::error::SubsystemError;

/// The rerun state machine and the checks that feed it.
pub(in crate::train) struct LossWatch {
    rerun: RerunStateMachine,
    checks: LossChecks,
    /// Steps since the differences of repeated passes were last reported.
    compared_steps: u64,
    /// Lines about these differences, which the step prints.
    lines: Option<String>,
}

/// Results of one rank in a pass, before ranks sum anything.
pub(in crate::train) struct LocalResults {
    /// Loss of its part of each micro-batch, where the model ends.
    pub loss_sums: Vec<f64>,
    /// Tokens of that part.
    pub num_tokens: Vec<f64>,
    /// Norms of the rank's gradients, if they are checked.
    pub gradients: Vec<(GradientPart, f64)>,
    /// Factor of these norms.
    pub loss_scale: f64,
}

/// Findings of one rank among its losses of a pass.
#[derive(Clone, Serialize, Deserialize)]
struct Findings {
    /// Lines for the log.
    notes: Vec<String>,
    /// True if one of them ends the run.
    is_fatal: bool,
}

impl LossWatch {
    pub fn new(rerun: RerunStateMachine, checks: LossChecks) -> Self {
        Self { rerun, checks, compared_steps: 0, lines: None }
    }

    /// True if another pass follows. All ranks call this together.
    pub fn next_pass(&mut self, groups: &ProcessGroups) -> Result<NextPass, CommError> {
        self.rerun.next_pass(&mut |vote| agreement::any(groups.world(), vote))
    }

    /// Decision if no pass follows, and the step is not done.
    pub fn exit_decision(&self) -> ExitDecision {
        self.rerun.exit_decision()
    }

    /// True if this pass repeats another.
    pub fn is_rerunning(&self) -> bool {
        self.rerun.is_rerunning()
    }

    /// Validates this rank's results of the micro-batches before ranks sum them. All ranks call
    /// this together.
    ///
    /// Ranks of a tensor-parallel group have the same loss, so the first rank of each group reports
    /// it. Only ranks of the last pipeline stage have a loss. Fails on a NaN or infinite result on
    /// the first rank that has one, unless steps are repeated because of it. All other ranks return
    /// an error that names this rank.
    pub fn validate(
        &mut self,
        groups: &ProcessGroups,
        reporter: &Reporter,
        local: &LocalResults,
    ) -> Result<(), SubsystemError> {
        let (pipeline, tensor) = (groups.pipeline(), groups.tensor());
        let has_losses = pipeline.rank() + 1 == pipeline.size() && tensor.rank() == 0;
        let mut findings = Vec::new();
        let outcome = if has_losses { self.validate_losses(local, &mut findings) } else { Ok(()) };
        let outcome = outcome.and_then(|()| self.validate_gradients(local, &mut findings));
        let notes: Vec<String> = findings.iter().map(Finding::to_string).collect();
        let world = groups.world();
        if world.size() == 1 {
            notes.iter().for_each(|note| reporter.note(note));
            return outcome;
        }
        let mine = Findings { notes, is_fatal: outcome.is_err() };
        if !agreement::any(world, mine.is_fatal || !mine.notes.is_empty())? {
            return Ok(());
        }
        let all = agreement::gather(world, &mine)?;
        all.iter().flat_map(|findings| &findings.notes).for_each(|note| reporter.note(note));
        match all.iter().position(|findings| findings.is_fatal) {
            None => Ok(()),
            Some(rank) => Err(agreement::fail_on(world, rank, "looking at its losses and gradients", outcome.err())),
        }
    }

    fn validate_losses(&mut self, local: &LocalResults, findings: &mut Vec<Finding>) -> Result<(), SubsystemError> {
        for (loss_sum, tokens) in local.loss_sums.iter().zip(&local.num_tokens) {
            let found = self.checks.validate(&mut self.rerun, loss_sum / tokens.max(1.0));
            findings.extend(found.map_err(|result| unexpected(result, "rerun_state_machine.check_for_nan_in_loss"))?);
        }
        Ok(())
    }

    fn validate_gradients(&mut self, local: &LocalResults, findings: &mut Vec<Finding>) -> Result<(), SubsystemError> {
        for (part, norm) in &local.gradients {
            let found = self.checks.validate_grad_norm(&mut self.rerun, part, *norm, local.loss_scale);
            findings.extend(found.map_err(|result| unexpected(result, "ddp.check_for_nan_in_grad"))?);
        }
        Ok(())
    }

    /// Differences between repeated passes of all ranks since the last call, as lines. All ranks
    /// call this together.
    fn differences(&mut self, run: &RunContext) -> Result<Option<String>, SubsystemError> {
        let mine = RankDifferences { place: self.rerun.placement().clone(), checks: self.rerun.take_differences() };
        let all = agreement::gather(run.groups.world(), &mine)?;
        let steps = std::mem::take(&mut self.compared_steps);
        let mut checks: Vec<&String> = all.iter().flat_map(|rank| &rank.checks).map(|check| &check.message).collect();
        checks.sort();
        checks.dedup();
        let mut lines = format!("differences between the two passes of each of {steps} steps:");
        for check in checks {
            lines.push_str(&format!("\n  {check}:"));
            for RankDifferences { place: RankLocation { rank, node, device }, checks } in &all {
                for found in checks.iter().filter(|found| found.message == *check) {
                    lines.push_str(&format!("\n    Rank {rank}, node {node}, device {device}: {found}"));
                }
            }
        }
        Ok(Some(lines).filter(|_| steps > 0))
    }
}

/// Differences between the repeated passes of a rank.
#[derive(Clone, Serialize, Deserialize)]
struct RankDifferences {
    place: RankLocation,
    checks: Vec<CheckDifferences>,
}

fn unexpected(result: UnexpectedResult, setting: &'static str) -> SubsystemError {
    SubsystemError::UnexpectedResult { result: Box::new(result), setting }
}

/// State of one rank that no other rank has.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RankState {
    loss_checks: LossChecks,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rerun_state_machine: Option<RerunCheckpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    injection_draws: Option<u64>,
}

/// Inputs that determine which losses a rank sees: if all of them are equal, rank n of one run is
/// rank n of the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RankLayout {
    world_size: usize,
    tensor: usize,
    context: usize,
    pipeline: usize,
    expert: usize,
    expert_tensor: usize,
    use_tp_pp_dp_mapping: bool,
    micro_batch_size: usize,
    global_batch_size: usize,
    rampup_batch_size: Option<[usize; 3]>,
}

impl RankLayout {
    fn from_config(config: &RunConfig) -> Self {
        let parallel = config.parallel;
        Self {
            world_size: parallel.world_size,
            tensor: parallel.tensor,
            context: parallel.context,
            pipeline: parallel.pipeline,
            expert: parallel.expert,
            expert_tensor: parallel.expert_tensor,
            use_tp_pp_dp_mapping: config.dist.use_tp_pp_dp_mapping,
            micro_batch_size: config.train.micro_batch_size,
            global_batch_size: config.train.global_batch_size,
            rampup_batch_size: config.train.rampup_batch_size,
        }
    }
}

/// The states of all ranks, in rank order, as a checkpoint holds them.
#[derive(Debug, Serialize, Deserialize)]
struct AllRanks {
    #[serde(rename = "seats")]
    layout: RankLayout,
    ranks: Vec<RankState>,
}

fn together(states: &[RankState], checks: &LossChecks) -> LossChecks {
    let detectors = |of: fn(&LossChecks) -> &Option<SpikyLossDetector>| {
        SpikyLossDetector::together(states.iter().filter_map(move |state| of(&state.loss_checks).as_ref()))
    };
    let (spiky_loss, large_grads) = (detectors(|checks| &checks.spiky_loss), detectors(|checks| &checks.large_grads));
    LossChecks { spiky_loss, large_grads, ..checks.clone() }
}

impl Subsystem for LossWatch {
    fn name(&self) -> &str {
        "loss watch"
    }

    /// Skipped iterations do not involve the machine, but they count.
    fn before_step(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        self.rerun.align_iteration(run.state.train_state.step);
        Ok(())
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        if self.rerun.mode() == RerunMode::ReportDeterminismStats {
            self.compared_steps += 1;
            if is_reported_every(&run.state.config, run.state.config.logger.log_interval, step.iteration) {
                self.lines = self.differences(run)?;
            }
        }
        Ok(())
    }

    fn after_step(&mut self, _run: &mut RunContext, _step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        Ok(self.lines.take().map_or_else(LoopRequest::default, |lines| LoopRequest::default().note(lines)))
    }

    /// Tells the differences of the steps that were not reported yet.
    fn on_run_end(&mut self, run: &mut RunContext, end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        if end.is_ok()
            && self.compared_steps > 0
            && let Some(lines) = self.differences(run)?
        {
            run.note(&lines);
        }
        Ok(())
    }

    /// All ranks' states; those of one rank alone where there is nothing more to say.
    fn on_save(&mut self, run: &mut RunContext, state: &mut Map<String, Value>) -> Result<(), SubsystemError> {
        let mine = RankState {
            loss_checks: self.checks.clone(),
            rerun_state_machine: self.rerun.checkpoint(),
            injection_draws: self.rerun.injection_draws(),
        };
        let ranks = agreement::gather(run.groups.world(), &mine)?;
        state.insert("loss_checks".into(), saved(&together(&ranks, &self.checks))?);
        let is_plain = |state: &RankState| {
            state.rerun_state_machine.is_none() && state.injection_draws.is_none() && ranks.len() == 1
        };
        if !ranks.iter().all(is_plain) {
            let layout = RankLayout::from_config(&run.state.config);
            state.insert("rank_states".into(), saved(&AllRanks { layout, ranks })?);
        }
        Ok(())
    }

    fn on_load(&mut self, run: &mut RunContext, loaded: &Loaded) -> Result<(), SubsystemError> {
        let layout = RankLayout::from_config(&run.state.config);
        let rank = run.groups.world().rank();
        let is_due = |all: &AllRanks| all.ranks.iter().any(|state| state.rerun_state_machine.is_some());
        let mut checks = loaded.field::<LossChecks>("loss_checks")?;
        // Checkpoints of one rank's state, which all ranks share.
        let mut rerun = loaded.field("rerun_state_machine")?;
        match loaded.field::<AllRanks>("rank_states")? {
            Some(all) if all.layout == layout && rank < all.ranks.len() => {
                let mine = &all.ranks[rank];
                checks = Some(mine.loss_checks.clone());
                rerun = mine.rerun_state_machine.clone();
                if let Some(draws) = mine.injection_draws {
                    self.rerun.continue_injection(draws);
                }
            }
            Some(all) if is_due(&all) => run.note(
                "the checkpoint's step was to be repeated on the ranks that saved it; this run has others, or other micro-batches, and runs it \
                 as any other step",
            ),
            _ => {}
        }
        if let Some(saved) = checks {
            let pairs =
                [(&mut self.checks.spiky_loss, saved.spiky_loss), (&mut self.checks.large_grads, saved.large_grads)];
            for (mine, saved) in pairs {
                *mine = mine.map(|mine| saved.map_or(mine, |saved| mine.after(&saved)));
            }
        }
        if let Some(state) = rerun {
            self.rerun.load_checkpoint(state)?;
        }
        Ok(())
    }
}
