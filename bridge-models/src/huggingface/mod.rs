//! Hugging Face folders in and out: `config.json` to a decoder's configuration, safetensors to its parameters, and back.
//!
//! | file | what it has |
//! | --- | --- |
//! | `weight_map` | what a table of weights means: fusing, splitting, transposing, padding |
//! | `checkpoint` | safetensors files, single and sharded, memory-mapped |
//! | `import`, `export` | folders to chunks and back |
//! | `fields` | typed reading of `config.json` |
//!
//! Each family's settings and table of weights are in [`crate::families`]. No maths of a model here.

mod checkpoint;
pub(crate) mod error;
pub(crate) mod export;
pub(crate) mod fields;
mod import;
pub(crate) mod weight_map;

#[cfg(test)]
mod tests;

pub use checkpoint::{HfCheckpoint, HostTensor};
pub use error::{HfError, TensorProblem};
pub use export::{ExportOptions, Exporter, StorageDtype, export};
pub use import::{HfModel, import_hook};
pub use weight_map::{WeightEntry, WeightMap};

use crate::decoder::DecoderConfig;
use crate::families::{gpt2, llama};
use fields::Fields;
use weight_map::WeightRule;

/// A family of Hugging Face models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `GPT2LMHeadModel`.
    Gpt2,
    /// `LlamaForCausalLM`: Llama 1 to 3, SmolLM2, TinyLlama and others of `model_type` `llama`.
    Llama,
}

impl Family {
    const ALL: [Self; 2] = [Self::Gpt2, Self::Llama];

    /// The family's `model_type` in `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
        }
    }

    /// The family with this `model_type`.
    pub fn from_model_type(model_type: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.model_type() == model_type)
    }

    /// The family that can hold a decoder of this configuration, if there is one.
    pub fn of(config: &DecoderConfig) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.settings(config).is_ok())
    }

    /// The class name in `config.json`'s `architectures`.
    fn architecture(self) -> &'static str {
        match self {
            Self::Gpt2 => "GPT2LMHeadModel",
            Self::Llama => "LlamaForCausalLM",
        }
    }

    /// The prefix of the tensors of the model without its head; files may leave it out.
    fn prefix(self) -> &'static str {
        match self {
            Self::Gpt2 => "transformer.",
            Self::Llama => "model.",
        }
    }

    fn rules(self) -> &'static [WeightRule] {
        match self {
            Self::Gpt2 => gpt2::RULES,
            Self::Llama => llama::RULES,
        }
    }

    /// Suffixes of tensors that files may have and that are not parameters.
    fn buffers(self) -> &'static [&'static str] {
        match self {
            Self::Gpt2 => &[".attn.bias", ".attn.masked_bias"],
            Self::Llama => &[".rotary_emb.inv_freq"],
        }
    }

    fn decoder_config(self, fields: &Fields) -> Result<DecoderConfig, HfError> {
        match self {
            Self::Gpt2 => gpt2::decoder_config(fields),
            Self::Llama => llama::decoder_config(fields),
        }
    }

    /// The family's settings in `config.json` for this decoder.
    fn settings(self, config: &DecoderConfig) -> Result<serde_json::Map<String, serde_json::Value>, HfError> {
        match self {
            Self::Gpt2 => gpt2::settings(config),
            Self::Llama => llama::settings(config),
        }
    }
}
