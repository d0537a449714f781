//! Destination of gradients, and the steps at which they are written.

use std::path::PathBuf;
use std::sync::Arc;

use bridge_dist::mesh::ProcessGroups;

use super::saver::options;
use crate::checkpoint::ShardedWriter;
use crate::config::RunConfig;
use crate::resilience::Heartbeat;
use crate::train::resume::error::ResumeError;

/// Key in `train_state.json` that marks a folder of gradients, so that no run takes them for
/// weights.
pub(in crate::train) const GRADIENTS: &str = "gradients";

/// Destination of the gradients of some steps.
#[derive(Debug)]
pub(super) struct Dump {
    every: u64,
    pub root: PathBuf,
    pub writer: ShardedWriter,
}

/// Gradient dumps of a run.
#[derive(Debug)]
pub(in crate::train) struct GradientDumps {
    pub(super) weights: Option<Dump>,
    /// Gradients of the residual stream.
    pub(super) residuals: Option<Dump>,
}

impl Dump {
    /// Opens a dump in a folder of `checkpoint.save`; `None` without an interval. All ranks call
    /// this together.
    fn open(
        folder: &str,
        every: Option<usize>,
        config: &RunConfig,
        groups: &ProcessGroups,
        heartbeat: &Arc<Heartbeat>,
    ) -> Result<Option<Self>, ResumeError> {
        let settings = &config.checkpoint;
        let (Some(every), Some(save)) = (every, &settings.save) else { return Ok(None) };
        let root = save.join(folder);
        let world = groups.world();
        // A group of its own: a checkpoint may be written in the background meanwhile.
        let group = world.split(Some(0), world.rank(), folder)?.unwrap_or_else(|| world.clone());
        let writer = ShardedWriter::open(&root, options(settings, heartbeat), group)?;
        Ok(Some(Self { every: every as u64, root, writer }))
    }

    pub fn is_due(&self, step: u64) -> bool {
        step.is_multiple_of(self.every)
    }
}

impl GradientDumps {
    /// Dumps that a configuration asks for. All ranks call this together.
    pub(in crate::train) fn open(
        config: &RunConfig,
        groups: &ProcessGroups,
        heartbeat: &Arc<Heartbeat>,
    ) -> Result<Self, ResumeError> {
        let settings = &config.checkpoint;
        Ok(Self {
            weights: Dump::open("wgrads", settings.save_wgrads_interval, config, groups, heartbeat)?,
            residuals: Dump::open("dgrads", settings.save_dgrads_interval, config, groups, heartbeat)?,
        })
    }

    /// True if the gradients of the residual stream of a step are needed.
    pub(in crate::train) fn wants_residual_gradients(&self, step: u64) -> bool {
        self.residuals.as_ref().is_some_and(|dump| dump.is_due(step))
    }
}
