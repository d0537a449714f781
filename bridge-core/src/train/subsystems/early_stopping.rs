//! Ends training when evaluations no longer improve (`train.early_stopping_patience`). Checkpoints
//! contain its state: a run that stopped early and is started again does not train further.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::best::{is_compared, metric};
use crate::train::engine::global_state::GlobalState;
use crate::train::reporting::report::EvaluationReport;
use crate::train::subsystems::contract::{Loaded, LoopRequest, RunContext, Subsystem, saved};
use crate::train::subsystems::error::SubsystemError;

/// Key of the state in `train_state.json`.
const KEY: &str = "early_stopping";

/// Record of the evaluations so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct EarlyStopping {
    /// The lowest loss, and in which iteration.
    best: Option<(f64, u64)>,
    /// Evaluations since the lowest loss.
    since: u64,
}

impl EarlyStopping {
    /// Counts an evaluation: one whose loss is below the lowest by more than `min_delta` begins the
    /// count again.
    fn count(&mut self, loss: f64, iteration: u64, min_delta: f64) {
        if loss.is_finite() && self.best.is_none_or(|(best, _)| loss < best - min_delta) {
            (self.best, self.since) = (Some((loss, iteration)), 0);
        } else {
            self.since += 1;
        }
    }
}

impl Subsystem for EarlyStopping {
    fn name(&self) -> &str {
        "early stopping"
    }

    fn on_evaluation(
        &mut self,
        run: &mut RunContext,
        report: &EvaluationReport,
    ) -> Result<LoopRequest, SubsystemError> {
        let train = &run.state.config.train;
        if train.early_stopping_patience.is_some() && is_compared(report) {
            self.count(metric(&run.state.config, report)?, report.iteration, train.early_stopping_min_delta);
        }
        Ok(LoopRequest::default())
    }

    fn stop_reason(&self, state: &GlobalState) -> Option<String> {
        let patience = state.config.train.early_stopping_patience? as u64;
        let best = self.best.map_or("none was finite".to_owned(), |(loss, iteration)| {
            format!("the lowest was {} in iteration {iteration}", loss as f32)
        });
        (self.since >= patience)
            .then(|| format!("early stopping: no better validation loss in {} evaluations, {best}", self.since))
    }

    fn on_save(&mut self, run: &mut RunContext, state: &mut Map<String, Value>) -> Result<(), SubsystemError> {
        if run.state.config.train.early_stopping_patience.is_some() {
            state.insert(KEY.to_owned(), saved(self)?);
        }
        Ok(())
    }

    fn on_load(&mut self, _run: &mut RunContext, loaded: &Loaded) -> Result<(), SubsystemError> {
        *self = loaded.field(KEY)?.unwrap_or_default();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_without_improvement_are_counted() {
        let mut stopping = EarlyStopping::default();
        let counts = [(5.0, 0), (4.9, 0), (4.9, 1), (f64::NAN, 2), (4.85, 3), (4.7, 0), (f64::INFINITY, 1)];
        for (place, (loss, since)) in counts.into_iter().enumerate() {
            stopping.count(loss, place as u64, 0.06);
            assert_eq!(stopping.since, since, "{loss}");
        }
        assert_eq!(stopping.best, Some((4.7, 5)));
        let text = serde_json::to_string(&stopping).unwrap();
        assert_eq!(serde_json::from_str::<EarlyStopping>(&text).unwrap(), stopping);
    }

    #[test]
    fn a_first_loss_that_is_not_finite_is_no_best_one() {
        let mut stopping = EarlyStopping::default();
        stopping.count(f64::NAN, 1, 0.0);
        assert_eq!((stopping.best, stopping.since), (None, 1));
    }
}
