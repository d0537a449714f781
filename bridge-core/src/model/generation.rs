//! State of the layers in generation (KV cache, SSM state). This file does not read the content of
//! the state.

use std::any::{Any, type_name};
use std::fmt;

/// Generation state of one layer, of the layer's own type: a KV cache, whole or windowed; the state
/// of a convolution or a state space model.
pub type LayerState = Box<dyn Any + Send>;

/// Generation state of the layers of a chunk.
#[derive(Default)]
pub struct GenerationState {
    layers: Vec<LayerState>,
    /// Number of tokens seen.
    pub length: usize,
}

impl GenerationState {
    /// State before the first token; `layers` in order.
    pub fn new(layers: Vec<LayerState>) -> Self {
        Self { layers, length: 0 }
    }

    /// The state of layer `local`, counted in the chunk.
    ///
    /// # Panics
    /// If there is no such layer, or its state is of another type: it belongs to another model.
    pub fn layer<T: Any>(&mut self, local: usize) -> &mut T {
        let state = self.layers[local].downcast_mut();
        state.unwrap_or_else(|| panic!("the state of layer {local} is no {}", type_name::<T>()))
    }
}

impl fmt::Debug for GenerationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GenerationState({} layers, {} tokens seen)", self.layers.len(), self.length)
    }
}
