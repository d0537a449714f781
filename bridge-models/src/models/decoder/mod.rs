//! A decoder-only transformer: one set of layers that covers GPT-2 and the Llama line by
//! configuration.
//!
//! | file | what it has |
//! | --- | --- |
//! | `config` | [`DecoderConfig`]: the resolved architecture, as plain data |
//! | `choices` | what its fields choose from |
//! | `section` | [`DecoderConfig`] from and to the config tree's `[model]` section |
//! | `moe_words` | what the section says of a mixture of experts |
//! | `derived` | sizes and factors that follow from its fields |
//! | `difference` | the first field in which two decoders differ |
//! | `limits` | the largest size, and the error about a key |
//! | `validate` | whether the fields of a configuration fit each other |
//! | `layer` | one layer: its norms and its blocks |
//! | `hybrid`, `hybrid_layer` | models whose layers have one block each, Mamba's among them |
//! | `layers` | a layer of either sort |
//! | `model` | [`Decoder`]: the loop over layers, as segments |
//! | `listing` | the linear layers of a model |
//! | `mtp` | layers that predict further tokens |
//! | `builder` | kinds `gpt` and `mamba` for the model registry |
//! | `divisions` | sizes that must divide over the ranks |
//! | `presets` | the benchmark's shapes |
//!
//! The maths of the layers is in `crate::blocks`. Nothing here knows Hugging Face's names; those
//! are in [`crate::huggingface`].

mod builder;
pub(crate) mod choices;
pub(crate) mod config;
mod derived;
mod difference;
mod divisions;
pub(crate) mod hybrid;
mod hybrid_layer;
mod layer;
mod layers;
pub(crate) mod limits;
pub(crate) mod listing;
mod model;
mod moe_words;
mod mtp;
pub mod presets;
mod section;
pub(crate) mod validate;

#[cfg(test)]
mod tests;

pub use builder::{
    GptModelBuilder, GptModelConfig, KIND, MAMBA_KIND, build_decoder, register_builtin, section_of_kind,
};
pub use choices::{
    BlockOrder, Dispatcher, DropPolicy, LayerPattern, NormKind, NormPlacement, QkNormScope, RopeScaling,
    RouterPrecision, ScoreFunction, YarnConfig,
};
pub use config::{
    DecoderConfig, EncoderConfig, LatentConfig, MoeConfig, NormConfig, PositionEmbedding, RelativeConfig,
    ResidualConfig, RopeConfig,
};
pub use hybrid::{HybridBlock, HybridConfig, MambaConfig};
pub use model::Decoder;
pub(crate) use mtp::name_behind_layers;
