//! Looks at each rank's own losses before they are added up, so that what is found names the rank. What follows, all ranks do together.

use serde::{Deserialize, Serialize};

use super::run::TrainingRun;
use super::{TrainError, ranks};
use crate::resilience::rerun::Finding;

/// What one rank found among its losses of a pass.
#[derive(Clone, Serialize, Deserialize)]
struct Verdict {
    /// Lines for the log.
    notes: Vec<String>,
    /// Whether one of them ends the run.
    is_fatal: bool,
}

/// Validates the loss sums of this rank's part of each micro-batch, before ranks add them up. All ranks call this together.
///
/// Ranks of a tensor-parallel group have one loss, so the first of each group speaks for it; ranks where the model does not end have none.
///
/// # Errors
/// On the first rank that has one: a NaN or infinite loss, where reruns are disabled. On the others one that names that rank.
pub(super) fn judge(run: &mut TrainingRun, loss_sums: &[f64], num_tokens: &[f64]) -> Result<(), TrainError> {
    let (pipeline, tensor) = (run.groups.pipeline(), run.groups.tensor());
    let has_losses = pipeline.rank() + 1 == pipeline.size() && tensor.rank() == 0;
    let mut findings = Vec::new();
    let outcome = if has_losses { validate(run, loss_sums, num_tokens, &mut findings) } else { Ok(()) };
    let notes: Vec<String> = findings.iter().map(Finding::to_string).collect();
    let world = run.groups.world();
    if world.size() == 1 {
        notes.iter().for_each(|note| run.reporter.note(note));
        return outcome;
    }
    let verdict = Verdict { notes, is_fatal: outcome.is_err() };
    if !ranks::any(world, verdict.is_fatal || !verdict.notes.is_empty())? {
        return Ok(());
    }
    let verdicts = ranks::gather(world, &verdict)?;
    verdicts.iter().flat_map(|verdict| &verdict.notes).for_each(|note| run.reporter.note(note));
    match verdicts.iter().position(|verdict| verdict.is_fatal) {
        None => Ok(()),
        Some(rank) => Err(ranks::fail_on(world, rank, "looking at its losses", outcome.err())),
    }
}

fn validate(
    run: &mut TrainingRun,
    loss_sums: &[f64],
    num_tokens: &[f64],
    findings: &mut Vec<Finding>,
) -> Result<(), TrainError> {
    for (loss_sum, tokens) in loss_sums.iter().zip(num_tokens) {
        findings.extend(run.loss_checks.validate(&mut run.rerun, loss_sum / tokens.max(1.0))?);
    }
    Ok(())
}
