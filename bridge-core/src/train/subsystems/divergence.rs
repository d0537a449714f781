//! Warns of a loss that is finite, worse than guessing, and no longer falls: the weights have run
//! away, and the run would train them to its end.

use std::collections::VecDeque;

use crate::model::ParameterRole;
use crate::train::reporting::report::StepReport;
use crate::train::subsystems::contract::{LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

/// Steps in a row that must be so.
const STEPS: usize = 20;
/// Loss, as a multiple of that of a model which finds all tokens equally likely, above which a
/// model has learned worse than nothing. A model that was just drawn may begin there.
const WORSE: f64 = 1.2;
/// The later half of the losses, as a multiple of the earlier, from which on they do not fall.
const FALLING: f64 = 0.98;

#[derive(Default)]
pub(super) struct DivergenceWatch {
    /// Loss of a model which finds all tokens equally likely; `None` where the size of the
    /// vocabulary is not known.
    guess: Option<f64>,
    /// The last losses, all worse than the guess.
    recent: VecDeque<f64>,
    is_said: bool,
}

impl DivergenceWatch {
    /// Takes the loss of a step, and says whether the run has diverged.
    fn diverges(&mut self, guess: f64, loss: f64) -> bool {
        if loss.is_nan() || loss <= WORSE * guess {
            self.recent.clear();
            return false;
        }
        self.recent.push_back(loss);
        if self.recent.len() < STEPS {
            return false;
        }
        let half = STEPS / 2;
        let earlier: f64 = self.recent.iter().take(half).sum();
        let later: f64 = self.recent.iter().skip(half).sum();
        self.recent.pop_front();
        later > FALLING * earlier
    }
}

impl Subsystem for DivergenceWatch {
    fn name(&self) -> &str {
        "divergence"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        // The first stage, whose first rank speaks, has the table of words.
        let parameters = run.chunks().iter().flat_map(|chunk| chunk.parameters());
        let tables = parameters.filter(|parameter| parameter.role == ParameterRole::Embedding);
        self.guess = tables.map(|table| table.shape[0]).max().map(|rows| (rows as f64).ln());
        Ok(())
    }

    fn after_step(&mut self, run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        let (Some(guess), Some(loss)) = (self.guess, step.cross_entropy()) else { return Ok(LoopRequest::default()) };
        let loss = loss.value();
        if !self.is_said && self.diverges(guess, loss) {
            self.is_said = true;
            run.warn(&format!(
                "the loss is {loss:.4} at iteration {}, has been worse than guessing ({guess:.4}) for {STEPS} iterations, and does not fall: the run has \
                 diverged. A smaller optimizer.lr (`--find-lr` looks for one), a longer warm-up or clip_grad may keep it from that",
                step.iteration
            ));
        }
        Ok(LoopRequest::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said_at(losses: impl Iterator<Item = f64>) -> Option<usize> {
        let mut watch = DivergenceWatch::default();
        losses.into_iter().position(|loss| watch.diverges(5.0, loss))
    }

    #[test]
    fn a_loss_that_stays_worse_than_guessing_is_told() {
        let run_away = |step: usize| if step < 3 { 5.0 } else { 80.0 + (step % 3) as f64 };
        assert_eq!(said_at((0..60).map(run_away)), Some(3 + STEPS - 1));
        assert_eq!(said_at((0..60).map(|step| 7.0 + step as f64)), Some(STEPS - 1), "rising");
    }

    #[test]
    fn healthy_runs_are_left_alone() {
        assert_eq!(said_at((0..60).map(|step| 20.0 * 0.97_f64.powi(step))), None, "drawn badly, but falling");
        assert_eq!(said_at((0..60).map(|_| 5.9)), None, "no better than guessing");
        let spikes = |step: usize| if step.is_multiple_of(STEPS) { 5.0 } else { 300.0 };
        assert_eq!(said_at((0..60).map(spikes)), None, "it comes back");
        assert_eq!(said_at((0..60).map(|_| f64::NAN)), None, "others speak of these");
    }
}
