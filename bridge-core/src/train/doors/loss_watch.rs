//! Looks at each rank's own losses before they are added up, so that what is found names the rank, and decides with the rerun state machine
//! whether a pass is repeated. What follows, all ranks do together.
//!
//! It has a door of its own besides those of a subsystem: what it finds changes the step while it is made.

use bridge_dist::comm::CommError;
use bridge_dist::mesh::ProcessGroups;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::RunConfig;
use crate::resilience::rerun::{ExitDecision, Finding, NextPass, RerunCheckpoint, RerunStateMachine};
use crate::resilience::{LossChecks, SpikyLossDetector};
use crate::train::reporter::Reporter;
use crate::train::subsystem::{Loaded, RunContext, Subsystem, saved};
use crate::train::{TrainError, ranks};

/// The rerun state machine and the checks that feed it.
pub(in crate::train) struct LossWatch {
    rerun: RerunStateMachine,
    checks: LossChecks,
}

/// What one rank found among its losses of a pass.
#[derive(Clone, Serialize, Deserialize)]
struct Findings {
    /// Lines for the log.
    notes: Vec<String>,
    /// Whether one of them ends the run.
    is_fatal: bool,
}

impl LossWatch {
    pub fn new(rerun: RerunStateMachine, checks: LossChecks) -> Self {
        Self { rerun, checks }
    }

    /// Whether a pass comes next. All ranks call this together.
    pub fn next_pass(&mut self, groups: &ProcessGroups) -> Result<NextPass, CommError> {
        self.rerun.next_pass(&mut |vote| ranks::any(groups.world(), vote))
    }

    /// What to do where no pass comes next, and the step is not done.
    pub fn exit_decision(&self) -> ExitDecision {
        self.rerun.exit_decision()
    }

    /// Whether this pass repeats another.
    pub fn is_rerunning(&self) -> bool {
        self.rerun.is_rerunning()
    }

    /// Validates the loss sums of this rank's part of each micro-batch, before ranks add them up. All ranks call this together.
    ///
    /// Ranks of a tensor-parallel group have one loss, so the first of each group speaks for it; ranks where the model does not end have none.
    ///
    /// # Errors
    /// On the first rank that has one: a NaN or infinite loss, where reruns are disabled. On the others one that names that rank.
    pub fn judge(
        &mut self,
        (groups, reporter): (&ProcessGroups, &Reporter),
        loss_sums: &[f64],
        num_tokens: &[f64],
    ) -> Result<(), TrainError> {
        let (pipeline, tensor) = (groups.pipeline(), groups.tensor());
        let has_losses = pipeline.rank() + 1 == pipeline.size() && tensor.rank() == 0;
        let mut findings = Vec::new();
        let outcome = if has_losses { self.validate(loss_sums, num_tokens, &mut findings) } else { Ok(()) };
        let notes: Vec<String> = findings.iter().map(Finding::to_string).collect();
        let world = groups.world();
        if world.size() == 1 {
            notes.iter().for_each(|note| reporter.note(note));
            return outcome;
        }
        let mine = Findings { notes, is_fatal: outcome.is_err() };
        if !ranks::any(world, mine.is_fatal || !mine.notes.is_empty())? {
            return Ok(());
        }
        let all = ranks::gather(world, &mine)?;
        all.iter().flat_map(|findings| &findings.notes).for_each(|note| reporter.note(note));
        match all.iter().position(|findings| findings.is_fatal) {
            None => Ok(()),
            Some(rank) => Err(ranks::fail_on(world, rank, "looking at its losses", outcome.err())),
        }
    }

    fn validate(
        &mut self,
        loss_sums: &[f64],
        num_tokens: &[f64],
        findings: &mut Vec<Finding>,
    ) -> Result<(), TrainError> {
        for (loss_sum, tokens) in loss_sums.iter().zip(num_tokens) {
            findings.extend(self.checks.validate(&mut self.rerun, loss_sum / tokens.max(1.0))?);
        }
        Ok(())
    }
}

/// What one rank has that no other rank has.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RankState {
    loss_checks: LossChecks,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rerun_state_machine: Option<RerunCheckpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    injection_draws: Option<u64>,
}

/// What decides which losses a rank sees: with all of it equal, rank n of one run is rank n of the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seats {
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

impl Seats {
    fn of(config: &RunConfig) -> Self {
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
    seats: Seats,
    ranks: Vec<RankState>,
}

fn together(states: &[RankState], checks: &LossChecks) -> LossChecks {
    let detectors = states.iter().filter_map(|state| state.loss_checks.spiky_loss.as_ref());
    LossChecks { spiky_loss: SpikyLossDetector::together(detectors), ..checks.clone() }
}

impl Subsystem for LossWatch {
    fn name(&self) -> &str {
        "loss watch"
    }

    /// Iterations that are skipped are none of the machine's, but count.
    fn before_step(&mut self, run: &mut RunContext) -> Result<(), TrainError> {
        self.rerun.align_iteration(run.state.train_state.step);
        Ok(())
    }

    /// All ranks' states; those of one rank alone where there is nothing more to say.
    fn on_save(&mut self, run: &mut RunContext, state: &mut Map<String, Value>) -> Result<(), TrainError> {
        let mine = RankState {
            loss_checks: self.checks.clone(),
            rerun_state_machine: self.rerun.checkpoint(),
            injection_draws: self.rerun.injection_draws(),
        };
        let ranks = ranks::gather(run.groups.world(), &mine)?;
        state.insert("loss_checks".into(), saved(&together(&ranks, &self.checks))?);
        let is_plain = |state: &RankState| {
            state.rerun_state_machine.is_none() && state.injection_draws.is_none() && ranks.len() == 1
        };
        if !ranks.iter().all(is_plain) {
            let seats = Seats::of(&run.state.config);
            state.insert("rank_states".into(), saved(&AllRanks { seats, ranks })?);
        }
        Ok(())
    }

    fn on_load(&mut self, run: &mut RunContext, loaded: &Loaded) -> Result<(), TrainError> {
        let seats = Seats::of(&run.state.config);
        let rank = run.groups.world().rank();
        let is_due = |all: &AllRanks| all.ranks.iter().any(|state| state.rerun_state_machine.is_some());
        let mut checks = loaded.field::<LossChecks>("loss_checks")?;
        // Checkpoints of one rank's state, which all ranks share.
        let mut rerun = loaded.field("rerun_state_machine")?;
        match loaded.field::<AllRanks>("rank_states")? {
            Some(all) if all.seats == seats && rank < all.ranks.len() => {
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
        if let (Some(mine), Some(saved)) = (&mut self.checks.spiky_loss, checks.and_then(|checks| checks.spiky_loss)) {
            *mine = mine.after(&saved);
        }
        if let Some(state) = rerun {
            self.rerun.load_checkpoint(state)?;
        }
        Ok(())
    }
}
