//! Configuration and counters of a run. Plain data.

use std::sync::Arc;

use crate::checkpoint::TrainState;
use crate::config::RunConfig;

/// Configuration and counters of a run; the name is Megatron Bridge's.
#[derive(Clone, Debug)]
pub struct GlobalState {
    /// The configuration.
    pub config: Arc<RunConfig>,
    /// Counters.
    pub train_state: TrainState,
}
