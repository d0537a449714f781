//! Identity and progress of a run. Plain data.

use std::sync::Arc;

use crate::checkpoint::TrainState;
use crate::config::RunConfig;

/// Identity and progress of a run.
#[derive(Clone, Debug)]
pub struct GlobalState {
    /// The configuration.
    pub config: Arc<RunConfig>,
    /// Counters.
    pub train_state: TrainState,
}
