//! How long ranks wait for each other: `dist.distributed_timeout_seconds_after_init`, if that is given, once they have made a step.

use std::time::Duration;

use crate::train::TrainError;
use crate::train::report::StepReport;
use crate::train::subsystem::{RunContext, Subsystem};

pub(super) struct Timeouts;

impl Subsystem for Timeouts {
    fn name(&self) -> &str {
        "timeouts"
    }

    fn measure(&mut self, run: &mut RunContext, _step: &mut StepReport) -> Result<(), TrainError> {
        if let Some(seconds) = run.state.config.dist.distributed_timeout_seconds_after_init {
            run.groups.world().set_timeout(Duration::from_secs(seconds as u64));
        }
        Ok(())
    }
}
