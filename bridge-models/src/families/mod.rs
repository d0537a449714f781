//! Families of Hugging Face models: a folder each, and a line in [`FAMILIES`]. A folder has
//! `config.rs`, which maps keys of `config.json` to fields of the decoder, and `weights.rs`, which
//! maps parameters to tensors. [`crate::huggingface`] describes these tables.

mod cohere2;
mod deepseek_v3;
mod gemma2;
mod gemma3;
mod glm4;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod llama;
mod mamba2;
mod mistral;
mod mixtral;
mod mixture;
mod nemotron_h;
mod olmo2;
mod olmoe;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod smollm3;
mod starcoder2;
mod t5;
#[cfg(test)]
mod testing;

use crate::decoder::DecoderConfig;
use crate::huggingface::gguf::GgufFamily;
use crate::huggingface::{Family, HfError};

/// All families. A decoder that several can hold, and that came from no folder, is written as the
/// first of them.
pub const FAMILIES: &[&Family] = &[
    &gpt2::FAMILY,
    &llama::FAMILY,
    &mistral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &phi3::FAMILY,
    &starcoder2::FAMILY,
    &smollm3::FAMILY,
    &mamba2::FAMILY,
    &nemotron_h::FAMILY,
    &gpt_neox::FAMILY,
    &olmo2::FAMILY,
    &granite::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &cohere2::FAMILY,
    &glm4::FAMILY,
    &t5::FAMILY,
    &mixtral::FAMILY,
    &qwen3_moe::FAMILY,
    &deepseek_v3::FAMILY,
    &olmoe::FAMILY,
    &gpt_oss::FAMILY,
];

/// The families that llama.cpp has too: `gguf.rs` of the folder, and a line here. A file is read as
/// the first with its architecture.
pub(crate) const GGUF_FAMILIES: &[&GgufFamily] =
    &[&gpt2::gguf::GGUF, &llama::gguf::GGUF, &mistral::gguf::GGUF, &qwen2::gguf::GGUF, &qwen3::gguf::GGUF];

/// The family of a `model_type`.
pub fn with_model_type(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().copied().find(|family| family.model_type() == model_type)
}

/// Hugging Face family that can hold a decoder: the family of the model type `origin` if it can, or
/// else the first family that can.
///
/// # Errors
/// If no family fits: gives the reason of each family.
pub fn find(config: &DecoderConfig, origin: Option<&str>) -> Result<&'static Family, HfError> {
    let mut reasons = Vec::new();
    for family in origin.and_then(with_model_type).iter().chain(FAMILIES) {
        match family.settings(config) {
            Ok(_) => return Ok(family),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(HfError::NoFamily { reasons })
}
