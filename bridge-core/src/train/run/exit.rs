//! When to save, and when to stop.

use crate::config::is_due;
use crate::train::exit_reason::ExitReason;
use crate::train::resume::checkpointing::{save_checkpoint, save_non_persistent};
use crate::train::run::error::TrainError;
use crate::train::step::training_run::TrainingRun;
use crate::train::subsystems::contract::LoopRequest;

/// Carries out the request of a step, and those of evaluations since the last call: saves a
/// checkpoint if one is due or requested, at most once, and returns the reason to stop, if any.
pub(in crate::train) fn checkpoint_and_decide_exit(
    run: &mut TrainingRun,
    mut request: LoopRequest,
) -> Result<Option<ExitReason>, TrainError> {
    request.join(std::mem::take(&mut run.evaluation_request));
    let step = run.state.train_state.step;
    let due = |interval| is_due(interval, step);
    let reason = run.stop_requests.poll(&run.state.config, &run.groups)?;
    let reason = reason.or_else(|| request.exit.map(|(code, why)| ExitReason::Subsystem(code, why)));
    let reason = reason.or_else(|| due(run.state.config.train.exit_interval).then_some(ExitReason::Interval(step)));
    let interval_save =
        due(run.state.config.checkpoint.save_interval) || due(run.state.config.checkpoint.save_retain_interval);
    if run.saves() && run.outputs.last_saved_step != Some(step) {
        if interval_save || request.saves || reason.is_some() {
            save_checkpoint(run)?;
        } else if step < run.state.config.train.train_iters as u64
            && due(run.state.config.checkpoint.non_persistent_save_interval)
        {
            // The last step has a persistent checkpoint right after this.
            save_non_persistent(run)?;
        }
    }
    Ok(reason)
}
