//! Bytes of activations that went to the host in a step (`model.cpu_offloading`,
//! `model.fine_grained_activation_offloading`), on the first rank.

use bridge_kernels::offload::Moved;

use crate::logging::Figure;
use crate::train::reporting::report::StepReport;
use crate::train::subsystems::contract::{RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

/// Counts from one step to the next.
#[derive(Default)]
pub(super) struct MovedActivations {
    before: Moved,
}

impl Subsystem for MovedActivations {
    fn name(&self) -> &str {
        "activations on the host"
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        let Some(moved) = run.training.pipeline.moved() else { return Ok(()) };
        let before = std::mem::replace(&mut self.before, moved);
        let bytes = moved.bytes.saturating_sub(before.bytes);
        let what = "Activations moved to the host in a step, on the first rank";
        let figure = Figure::new("offloaded_activation_bytes", "bytes", what, bytes as f64).file();
        step.figures.push(figure.board("offloaded-activation-bytes").json(164, "offloaded_activation_bytes"));
        Ok(())
    }
}
