//! What a run is and how far it is. Plain data.

use std::sync::Arc;

use crate::checkpoint::TrainState;
use crate::config::RunConfig;

/// What a run is and how far it is.
#[derive(Clone, Debug)]
pub struct GlobalState {
    /// The configuration.
    pub config: Arc<RunConfig>,
    /// Counters.
    pub train_state: TrainState,
}
