//! What segments are told of the pass that runs them, besides their input.

use std::sync::{Arc, Mutex, PoisonError};

use bridge_kernels::Philox;

use super::Mode;

/// What the pass under way says to the adaptations of a chunk: the stream of its dropout masks, `None` in evaluation. The chunk says it before
/// it runs a segment, again where a segment is recomputed.
#[derive(Clone, Debug, Default)]
pub(super) struct PassStream(Arc<Mutex<Option<Philox>>>);

impl PassStream {
    pub fn set(&self, mode: Mode) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = match mode {
            Mode::Train(stream) => Some(stream),
            Mode::Evaluate => None,
        };
    }

    /// Another that says the same as this one now, and stays so.
    pub fn detached(&self) -> Self {
        Self(Arc::new(Mutex::new(self.get())))
    }

    pub fn get(&self) -> Option<Philox> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
