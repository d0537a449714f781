//! Keeps the last losses in the checkpoint, as a record of the model's quality.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::train::engine::forward_step::Ratio;
use crate::train::reporting::report::{EvaluationReport, StepReport};
use crate::train::subsystems::contract::{Loaded, LoopRequest, RunContext, Subsystem, saved};
use crate::train::subsystems::error::SubsystemError;

/// Key of the state in `train_state.json`: for `train` and `valid` the last `loss`, and its
/// `iteration`.
pub const LOSSES_KEY: &str = "losses";

#[derive(Debug, Serialize, Deserialize)]
struct Loss {
    loss: f64,
    iteration: u64,
}

#[derive(Default)]
pub(super) struct LossesOfRun {
    by_split: BTreeMap<String, Loss>,
}

impl LossesOfRun {
    /// Skips losses that are not finite: JSON cannot represent them.
    fn keep(&mut self, split: &str, loss: Option<&Ratio>, iteration: u64) {
        let loss = loss.map(|loss| loss.value()).filter(|loss| loss.is_finite());
        if let Some(loss) = loss {
            self.by_split.insert(split.to_owned(), Loss { loss, iteration });
        }
    }
}

impl Subsystem for LossesOfRun {
    fn name(&self) -> &str {
        "losses"
    }

    fn after_step(&mut self, _run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        self.keep("train", step.losses.get(step.objective), step.iteration);
        Ok(LoopRequest::default())
    }

    fn on_evaluation(
        &mut self,
        _run: &mut RunContext,
        report: &EvaluationReport,
    ) -> Result<LoopRequest, SubsystemError> {
        self.keep(report.split.name(), report.losses.get(report.objective), report.iteration);
        Ok(LoopRequest::default())
    }

    fn on_save(&mut self, _run: &mut RunContext, state: &mut Map<String, Value>) -> Result<(), SubsystemError> {
        state.insert(LOSSES_KEY.to_owned(), saved(&self.by_split)?);
        Ok(())
    }

    fn on_load(&mut self, _run: &mut RunContext, loaded: &Loaded) -> Result<(), SubsystemError> {
        self.by_split = loaded.field(LOSSES_KEY)?.unwrap_or_default();
        Ok(())
    }
}
