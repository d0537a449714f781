//! Waits for the device every `train.train_sync_interval` steps.

use crate::config::is_due;
use crate::train::error::CommonError;
use crate::train::reporting::report::StepReport;
use crate::train::subsystems::contract::{LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

pub(super) struct Synchronize;

impl Subsystem for Synchronize {
    fn name(&self) -> &str {
        "device synchronization"
    }

    fn after_step(&mut self, run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        if is_due(run.state.config.train.train_sync_interval, step.iteration) {
            run.device().sync().map_err(|error| CommonError::Device(format!("{error:?}")))?;
        }
        Ok(LoopRequest::default())
    }
}
