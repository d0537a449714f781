//! A decoder-only transformer: one set of layers that covers GPT-2 and the Llama line by configuration.
//!
//! | file | what it has |
//! | --- | --- |
//! | `config` | [`DecoderConfig`]: the resolved architecture, as plain data |
//! | `transformer` | [`DecoderConfig`] from and to the config tree's `[model]` section |
//! | `rope` | rotary frequencies and their scaling |
//! | `init` | initial values, from seed and parameter name alone |
//! | `embedding`, `attention`, `mlp`, `norm`, `linear`, `residual`, `layer`, `head` | the maths |
//! | `moe` | mixture of experts |
//! | `model` | [`Decoder`]: the loop over layers, as segments |
//! | `context_parallel` | attention over sequences that ranks share |
//! | `placement` | which slice of each parameter a rank holds |
//! | `regions` | where activations are gathered, summed and cut between ranks |
//! | `builder` | kind `gpt` for the model registry |
//! | `presets` | the benchmark's shapes |
//!
//! Nothing here knows Hugging Face's names; those are in [`crate::huggingface`].
//!
//! Shape legend: `b` batch, `t` sequence, `n` tokens (`b * t`), `c` hidden size, `h` query heads, `g` key/value groups, `d`
//! head size, `f` feed-forward size, `v` vocabulary.

mod attention;
mod builder;
mod config;
mod context_parallel;
mod embedding;
mod head;
mod init;
mod layer;
mod linear;
mod mlp;
mod model;
mod moe;
mod norm;
mod placement;
pub mod presets;
mod regions;
mod residual;
mod rope;
mod transformer;

#[cfg(test)]
mod tests;

pub use builder::{GptModelBuilder, GptModelConfig, KIND, build_decoder, register_builtin};
pub use config::{
    DecoderConfig, Dispatcher, LayerPattern, MoeConfig, NormConfig, NormKind, PositionEmbedding, RopeConfig,
    RopeScaling,
};
pub use model::Decoder;
