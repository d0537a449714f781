//! What a program hands to a run besides its configuration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bridge_dist::mesh::ProcessGroups;

use super::exits::CancelHandle;
use super::forward_step::{ForwardStep, LanguageModelStep};
use super::registry::Registry;
use super::reporter::Console;
use super::restart::Seat;
use super::subsystem::Subsystem;
use super::watched_signals::WatchSignals;
use crate::checkpoint::CheckpointManager;
use crate::logging::{Sink, Verbosity};
use crate::optim::OverrideProvider;

/// What a run needs besides its configuration. All of it is passed in; nothing is global.
pub struct RunOptions {
    /// Kinds of model and of dataset.
    pub registry: Registry,
    /// How micro-batches become losses. A recipe with `[dpo]` has a step of its own, which is taken instead; one with
    /// `[distillation]` has a loss of its own in training.
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
    /// Where console lines go. Only rank 0 has any.
    pub console: Console,
    /// How much is said there.
    pub verbosity: Verbosity,
    /// Sinks besides those of the recipe. Only those of rank 0 are served.
    pub sinks: Vec<Box<dyn Sink>>,
    /// The ranks of the run, as this one sees them.
    pub groups: ProcessGroups,
    /// Name of this machine, by which faults are told and a step that is repeated after a restart knows whether it is elsewhere; by default
    /// the host's. For machines whose host name changes with each start, as those of pods.
    pub node: Option<String>,
    /// What those who start ranks again know of this one.
    pub seat: Seat,
    /// When the program began: `train.exit_duration_in_mins` counts from here, so that set-up counts too.
    pub started: Instant,
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
            seat: Seat::default(),
            started: Instant::now(),
        }
    }
}

impl std::fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunOptions").field("registry", &self.registry).finish_non_exhaustive()
    }
}
