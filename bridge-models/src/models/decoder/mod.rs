//! A decoder-only transformer: one set of layers that covers GPT-2 and the Llama line by configuration.
//!
//! | file | what it has |
//! | --- | --- |
//! | `config` | [`DecoderConfig`]: the resolved architecture, as plain data |
//! | `section` | [`DecoderConfig`] from and to the config tree's `[model]` section |
//! | `difference` | the first field in which two decoders differ |
//! | `validate` | whether the fields of a configuration fit each other |
//! | `layer` | one layer: its norms and its blocks |
//! | `model` | [`Decoder`]: the loop over layers, as segments |
//! | `builder` | kind `gpt` for the model registry |
//! | `divisions` | sizes that must divide over the ranks |
//! | `presets` | the benchmark's shapes |
//!
//! The maths of the layers is in `crate::blocks`. Nothing here knows Hugging Face's names; those are in [`crate::huggingface`].

mod builder;
pub(crate) mod config;
mod difference;
mod divisions;
mod layer;
mod model;
pub mod presets;
mod section;
pub(crate) mod validate;

#[cfg(test)]
mod tests;

pub use builder::{GptModelBuilder, GptModelConfig, KIND, build_decoder, register_builtin};
pub use config::{
    BlockOrder, DecoderConfig, Dispatcher, LayerPattern, MoeConfig, NormConfig, NormKind, NormPlacement,
    PositionEmbedding, ResidualConfig, RopeConfig, RopeScaling, YarnConfig,
};
pub use model::Decoder;
