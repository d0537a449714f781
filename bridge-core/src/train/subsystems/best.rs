//! Keeps the checkpoint with the lowest validation loss (`checkpoint.keep_best`): one is saved
//! after each evaluation that is better than all before, and the pointer to it keeps retention from
//! deleting it. The choice of the metric is here for all code that compares evaluations.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::{ConfigError, ConfigErrors, ErrorKind, RunConfig};
use crate::logging::{Occasion, Split};
use crate::train::engine::forward_step::{ForwardStep, LM_LOSS};
use crate::train::error::CommonError;
use crate::train::objectives::dpo::DPO_LOSSES;
use crate::train::reporting::report::EvaluationReport;
use crate::train::subsystems::contract::{Loaded, LoopRequest, RunContext, Subsystem, saved};
use crate::train::subsystems::error::SubsystemError;

/// Key of the state in `train_state.json`.
const KEY: &str = "best_checkpoint";

/// True if an evaluation is compared with others: the one at the end reads other samples than those
/// before it.
pub(super) fn is_compared(report: &EvaluationReport) -> bool {
    (report.split, report.occasion) == (Split::Valid, Occasion::DuringTraining)
}

/// The loss that evaluations are compared by: `validation.metric`, by default the loss that the
/// model is judged by. In runs with a custom loss, `lm loss` stands for that loss too.
pub(super) fn metric(config: &RunConfig, report: &EvaluationReport) -> Result<f64, CommonError> {
    let asked = config.validation.metric.as_deref().filter(|name| *name != LM_LOSS);
    let name = asked.unwrap_or(report.objective);
    report.losses.get(name).map(|ratio| ratio.value()).ok_or_else(|| {
        let known = report.losses.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        CommonError::setting("validation.metric", format!("the evaluation has no loss `{name}`; it has: {known}"))
    })
}

/// Refuses a `validation.metric` that no evaluation of the run will have, as far as the names of
/// losses are known: each may be of one of several validation sets.
///
/// # Errors
/// The setting, with the names that there are.
pub fn check_metric(config: &RunConfig, forward_step: &dyn ForwardStep) -> Result<(), ConfigErrors> {
    const KEY: &str = "validation.metric";
    let names = if config.dpo.is_some() { Some(DPO_LOSSES.to_vec()) } else { forward_step.loss_names() };
    let (Some(metric), Some(names)) = (&config.validation.metric, names) else { return Ok(()) };
    let is_of_set =
        |name: &&str| config.validation.multiple_validation_sets && metric.starts_with(&format!("{name} of "));
    // The name stands for the loss that the model is judged by.
    let is_objective = *metric == LM_LOSS;
    if is_objective || names.iter().any(|name| name == metric || is_of_set(name)) {
        return Ok(());
    }
    let expected = names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let error = ConfigError::new(ErrorKind::WrongType, KEY, "no evaluation of this run has a loss of this name")
        .with_found(format!("{metric:?}"))
        .with_expected(format!("one of {expected}"))
        .with_nearest(metric, names)
        .with_location(config.location(KEY));
    Err(error.into())
}

/// The best evaluation so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct KeepBest {
    /// Best loss and its iteration.
    best: Option<(f64, u64)>,
}

/// The iteration of the best checkpoint, in the state that is about to be saved.
pub(in crate::train) fn best_of(state: &Map<String, Value>) -> Option<u64> {
    let best: KeepBest = serde_json::from_value(state.get(KEY)?.clone()).ok()?;
    Some(best.best?.1)
}

impl Subsystem for KeepBest {
    fn name(&self) -> &str {
        "best checkpoint"
    }

    fn on_evaluation(
        &mut self,
        run: &mut RunContext,
        report: &EvaluationReport,
    ) -> Result<LoopRequest, SubsystemError> {
        let config = &run.state.config;
        if !config.checkpoint.keep_best || !is_compared(report) {
            return Ok(LoopRequest::default());
        }
        let (loss, iteration) = (metric(config, report)?, report.iteration);
        if !loss.is_finite() || self.best.is_some_and(|(best, _)| loss >= best) {
            return Ok(LoopRequest::default());
        }
        self.best = Some((loss, iteration));
        Ok(LoopRequest::default()
            .save()
            .note(format!("iteration {iteration} has the lowest validation loss so far, {}", loss as f32)))
    }

    fn on_save(&mut self, run: &mut RunContext, state: &mut Map<String, Value>) -> Result<(), SubsystemError> {
        if run.state.config.checkpoint.keep_best {
            state.insert(KEY.to_owned(), saved(self)?);
        }
        Ok(())
    }

    fn on_load(&mut self, _run: &mut RunContext, loaded: &Loaded) -> Result<(), SubsystemError> {
        *self = loaded.field(KEY)?.unwrap_or_default();
        Ok(())
    }
}
