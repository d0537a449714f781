//! Time limits for other ranks: `dist.distributed_timeout_seconds_after_init`, if it is set, after
//! the first step; and at most `inprocess_restart.soft_timeout` after set-up, so that a rank that
//! does not arrive is found in time.

use std::time::Duration;

use crate::train::reporting::report::StepReport;
use crate::train::subsystems::contract::{RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

pub(super) struct Timeouts;

/// The longest wait that in-process restarts allow.
fn soft_timeout(run: &RunContext) -> Duration {
    let settings = run.state.config.inprocess_restart.as_ref().filter(|settings| settings.enabled);
    settings
        .map_or(Duration::MAX, |settings| Duration::try_from_secs_f64(settings.soft_timeout).unwrap_or(Duration::MAX))
}

impl Subsystem for Timeouts {
    fn name(&self) -> &str {
        "timeouts"
    }

    fn on_run_start(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let world = run.groups.world();
        world.set_timeout(world.timeout().min(soft_timeout(run)));
        Ok(())
    }

    fn measure(&mut self, run: &mut RunContext, _step: &mut StepReport) -> Result<(), SubsystemError> {
        if let Some(seconds) = run.state.config.dist.distributed_timeout_seconds_after_init {
            run.groups.world().set_timeout(Duration::from_secs(seconds as u64).min(soft_timeout(run)));
        }
        Ok(())
    }
}
