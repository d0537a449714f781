//! Activations that pullbacks keep. Separate from [`Buffer`], which the offload of kept tensors
//! builds on.

use burn::backend::Cube;

use super::Buffer;
use crate::offload::Kept;
use crate::vjp::Lift;

/// Activation that a pullback keeps; see [`Kept`].
pub(crate) struct KeptBuffer(Kept);

impl Buffer {
    /// The buffer as a pullback keeps it: for activations, never for parameters.
    pub fn kept(self) -> KeptBuffer {
        KeptBuffer(Kept::new(Cube::lift(self.0)))
    }
}

impl KeptBuffer {
    /// The buffer again.
    pub fn buffer(self) -> Buffer {
        Buffer(Cube::lower(self.0.into_dispatch()))
    }
}
