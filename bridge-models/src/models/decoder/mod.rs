//! A decoder-only transformer: one set of layers that covers GPT-2 and the Llama line by
//! configuration.
//!
//! | file | content |
//! | --- | --- |
//! | `transformer_layer` | a transformer layer: norms, attention, feed-forward block |
//! | `hybrid_layer` | a layer of a hybrid model: a norm and one block, such as Mamba's |
//! | `shared_block` | a transformer block that several layers of a hybrid share |
//! | `decoder_layer` | a transformer layer or a hybrid layer |
//! | `model` | [`Decoder`]: the loop over layers, as segments |
//! | `listing` | the linear layers of a model |
//! | `mtp` | layers of multi-token prediction (MTP) |
//! | `passing` | tensors that pass layers beside the residual stream |
//! | `builder` | kinds `gpt` and `mamba` for the model registry |
//! | `presets` | the benchmark's shapes |
//!
//! The maths of the layers is in `crate::blocks`. This module does not use Hugging Face's names,
//! which are in [`crate::huggingface`].

mod builder;
mod decoder_layer;
mod hybrid_layer;
pub(crate) mod listing;
mod model;
mod mtp;
mod passing;
pub mod presets;
mod shared_block;
mod transformer_layer;

#[cfg(test)]
mod tests;

pub use crate::architecture::choices::{KeySource, LayerPattern, RopeScaling, YarnConfig};
pub use crate::architecture::config::{
    AltUpConfig, CompressedConfig, DecoderConfig, EncoderConfig, IndexerConfig, LatentConfig, LinearAttentionConfig,
    MoeConfig, NormConfig, PerLayerConfig, PositionEmbedding, QueryScaleConfig, RelativeConfig, ResidualConfig,
    RopeConfig, StreamsConfig, WindowedConfig,
};
pub use crate::architecture::hybrid::{
    BlockFactors, HybridBlock, HybridConfig, MambaConfig, SharedConfig, ShortConvConfig,
};
pub use builder::{
    GptModelBuilder, GptModelConfig, KIND, MAMBA_KIND, build_decoder, register_builtin, section_of_kind,
};
pub use model::Decoder;
pub(crate) use mtp::name_behind_layers;
