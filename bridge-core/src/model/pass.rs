//! Arguments of segments in a pass, besides their input.

use std::sync::{Arc, Mutex, PoisonError};

use bridge_data::loader::SequencePart;
use bridge_kernels::Philox;

use super::{ForwardContext, Mode};

/// Current pass for the adaptations of a chunk: the stream of its dropout masks, `None` in
/// evaluation. The chunk sets it before it runs a segment, and again where a segment is recomputed.
#[derive(Clone, Debug, Default)]
pub(super) struct PassStream(Arc<Mutex<Option<Philox>>>);

impl PassStream {
    /// A segment runs. Ranks that have other parts of the same sequences have streams of their own.
    pub fn begin(&self, context: &ForwardContext) {
        self.set(match (context.mode, context.batch.part) {
            (Mode::Train(stream), SequencePart::Context { rank, .. }) => Some(stream.derive(rank as u64)),
            (Mode::Train(stream), SequencePart::Whole) => Some(stream),
            (Mode::Evaluate, _) => None,
        });
    }

    /// Ends the pass: later segments run without training.
    pub fn end(&self) {
        self.set(None);
    }

    fn set(&self, stream: Option<Philox>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }

    /// Another that says the same as this one now, and stays so.
    pub fn detached(&self) -> Self {
        Self(Arc::new(Mutex::new(self.get())))
    }

    pub fn get(&self) -> Option<Philox> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
