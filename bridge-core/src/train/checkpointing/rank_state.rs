//! What a checkpoint holds of each rank by itself: what its loss checks have seen, and its rerun state machine.

use bridge_dist::comm::CommError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::restore::field;
use super::save::json;
use crate::checkpoint::Checkpoint;
use crate::config::RunConfig;
use crate::resilience::rerun::RerunCheckpoint;
use crate::resilience::{LossChecks, SpikyLossDetector};
use crate::train::run::TrainingRun;
use crate::train::{TrainError, ranks};

/// What one rank has that no other rank has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RankState {
    loss_checks: LossChecks,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rerun_state_machine: Option<RerunCheckpoint<f64>>,
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

/// The states of all ranks, in rank order. All ranks call this together.
pub(super) fn gather(run: &TrainingRun) -> Result<Vec<RankState>, CommError> {
    let mine = RankState {
        loss_checks: run.loss_checks.clone(),
        rerun_state_machine: run.rerun.checkpoint(),
        injection_draws: run.rerun.injection_draws(),
    };
    ranks::gather(run.groups.world(), &mine)
}

/// Puts the states of all ranks into `extra`: what they have seen together, for a run at another layout, and what each has.
pub(super) fn put(run: &TrainingRun, states: Vec<RankState>, extra: &mut Map<String, Value>) -> Result<(), TrainError> {
    extra.insert("loss_checks".into(), json(&together(&states, &run.loss_checks))?);
    let is_plain =
        |state: &RankState| state.rerun_state_machine.is_none() && state.injection_draws.is_none() && states.len() == 1;
    if !states.iter().all(is_plain) {
        let seats = Seats::of(&run.config);
        extra.insert("rank_states".into(), json(&AllRanks { seats, ranks: states })?);
    }
    Ok(())
}

fn together(states: &[RankState], checks: &LossChecks) -> LossChecks {
    let detectors = states.iter().filter_map(|state| state.loss_checks.spiky_loss.as_ref());
    LossChecks { spiky_loss: SpikyLossDetector::together(detectors), ..checks.clone() }
}

/// Restores what this rank has by itself. On other ranks than the checkpoint's, or with other micro-batches, each rank's loss checks know what
/// all ranks have seen, and a step that was to be repeated runs as any other: which rank's result was in doubt no longer says anything.
pub(super) fn restore(
    run: &mut TrainingRun,
    extra: &Map<String, Value>,
    checkpoint: &Checkpoint,
) -> Result<(), TrainError> {
    let saved = field::<AllRanks>(extra, "rank_states", checkpoint)?;
    let seats = Seats::of(&run.config);
    let rank = run.groups.world().rank();
    let is_due = |all: &AllRanks| all.ranks.iter().any(|state| state.rerun_state_machine.is_some());
    let mut checks = field::<LossChecks>(extra, "loss_checks", checkpoint)?;
    // Checkpoints of one rank's state, which all ranks share.
    let mut rerun = field(extra, "rerun_state_machine", checkpoint)?;
    match saved {
        Some(all) if all.seats == seats && rank < all.ranks.len() => {
            let mine = &all.ranks[rank];
            checks = Some(mine.loss_checks.clone());
            rerun = mine.rerun_state_machine.clone();
            if let Some(draws) = mine.injection_draws {
                run.rerun.continue_injection(draws);
            }
        }
        Some(all) if is_due(&all) => run.reporter.note(
            "the checkpoint's step was to be repeated on the ranks that saved it; this run has others, or other micro-batches, and runs it as \
             any other step",
        ),
        _ => {}
    }
    if let (Some(mine), Some(saved)) = (&mut run.loss_checks.spiky_loss, checks.and_then(|checks| checks.spiky_loss)) {
        *mine = mine.after(&saved);
    }
    if let Some(state) = rerun {
        run.rerun.load_checkpoint(state)?;
    }
    Ok(())
}
