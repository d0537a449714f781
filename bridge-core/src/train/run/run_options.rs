//! Options that a program passes to a run besides its configuration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bridge_dist::mesh::ProcessGroups;

use crate::checkpoint::CheckpointManager;
use crate::logging::{Sink, Verbosity};
use crate::optim::OverrideProvider;
use crate::train::data::registry::Registry;
use crate::train::engine::forward_step::{ForwardStep, LanguageModelStep};
use crate::train::ranks::rank_env::RankEnv;
use crate::train::reporting::reporter::Console;
use crate::train::stop::stop_requests::{CancelHandle, WatchSignals};
use crate::train::subsystems::contract::Subsystem;

/// Options of a run besides its configuration. All of them are passed in; nothing is global.
pub struct RunOptions {
    /// Kinds of model and of dataset.
    pub registry: Registry,
    /// Computation of losses from micro-batches. A recipe with `[dpo]` has its own step, which is
    /// used instead; one with `[distillation]` has its own loss in training.
    pub forward_step: Box<dyn ForwardStep>,
    /// Subsystems of the program, called in this order.
    pub subsystems: Vec<Box<dyn Subsystem>>,
    /// Overrides of weight decay and learning rate by parameter; `None` takes the usual rules.
    pub overrides: Option<Box<dyn OverrideProvider>>,
    /// Places of checkpoints besides folders, which `checkpoint.custom_manager_class` may name.
    pub managers: BTreeMap<String, Arc<dyn CheckpointManager>>,
    /// Stops the run from outside.
    pub cancel: CancelHandle,
    /// Signals to watch.
    pub signals: WatchSignals,
    /// Destination of console lines. Only rank 0 has any.
    pub console: Console,
    /// Verbosity of the console.
    pub verbosity: Verbosity,
    /// Sinks besides those of the recipe. Only those of rank 0 are served.
    pub sinks: Vec<Box<dyn Sink>>,
    /// The ranks of the run, as this one sees them.
    pub groups: ProcessGroups,
    /// Name of this machine, for fault messages, and for a step that is repeated after a restart to
    /// know if it runs elsewhere; the default is the host's name. For machines whose host name
    /// changes with each start, such as pods.
    pub node: Option<String>,
    /// Environment of this rank, from the launcher that restarts ranks.
    pub rank_env: RankEnv,
    /// When the program began: `train.exit_duration_in_mins` counts from here, so that set-up
    /// counts too.
    pub program_start: Instant,
}

impl RunOptions {
    /// Options with the given kinds and lines on standard output, for a program that begins now.
    pub fn new(registry: Registry) -> Self {
        Self {
            registry,
            forward_step: Box::new(LanguageModelStep),
            subsystems: Vec::new(),
            overrides: None,
            managers: BTreeMap::new(),
            cancel: CancelHandle::default(),
            signals: WatchSignals::default(),
            console: Console::Human,
            verbosity: Verbosity::default(),
            sinks: Vec::new(),
            groups: ProcessGroups::single(),
            node: None,
            rank_env: RankEnv::default(),
            program_start: Instant::now(),
        }
    }
}

impl std::fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunOptions").field("registry", &self.registry).finish_non_exhaustive()
    }
}
