//! The norm of all parameters (`logger.log_params_norm`), where the record of a step shows it.

use crate::train::reporting::report::{StepReport, is_reported_every};
use crate::train::subsystems::contract::{RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

pub(super) struct ParameterNorm;

impl Subsystem for ParameterNorm {
    fn name(&self) -> &str {
        "parameter norm"
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        let logger = &run.state.config.logger;
        let is_due = |interval| is_reported_every(&run.state.config, interval, step.iteration);
        if logger.log_params_norm && (is_due(logger.log_interval) || is_due(logger.tensorboard_log_interval)) {
            step.params_norm = Some(run.training.parameter_norm()?);
        }
        Ok(())
    }
}
