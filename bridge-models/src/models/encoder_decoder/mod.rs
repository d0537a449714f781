//! An encoder and a decoder that attends to the encoder's output, as in T5 (Raffel et al.,
//! arXiv:1910.10683).
//!
//! | file | content |
//! | --- | --- |
//! | `layer` | one layer of either stack: its norms and its blocks |
//! | `model` | [`EncoderDecoder`]: the stacks, as segments, and the boundaries between them |
//! | `cost` | costs of the segments |
//! | `generate` | the encoder once, then the decoder token by token |
//! | `builder` | kind `t5` for the model registry |
//!
//! The architecture is a [`DecoderConfig`](crate::DecoderConfig) with an encoder; the maths of the
//! layers is in `crate::blocks`.

mod builder;
mod cost;
mod generate;
mod layer;
mod model;

pub use builder::{KIND, T5ModelConfig};
pub use model::EncoderDecoder;

pub(crate) use builder::register;
pub(crate) use cost::outline;
pub(crate) use model::declare;
