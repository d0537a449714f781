//! Families of Hugging Face models: a folder each, and a line in [`FAMILIES`]. A family has a table
//! that maps keys of `config.json` to fields of the decoder, and one that maps parameters to
//! tensors: both in `mod.rs`, those of large families in `config.rs` and `weights.rs`.
//! [`crate::huggingface`] describes these tables.

mod afmoe;
mod apertus;
mod arcee;
mod bailing_hybrid;
mod bailing_moe_v2;
mod bamba;
mod cohere;
mod cohere2;
mod cohere2_moe;
mod cwm;
mod dbrx;
mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod deepseek_v4;
mod dots1;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod exaone_moe;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm_moe_dsa;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granitemoe;
mod granitemoehybrid;
mod hunyuan_v1_dense;
mod hunyuan_v1_moe;
mod hy_v3;
mod hy_v4;
mod jamba;
mod kimi_k2;
mod kimi_linear;
mod lfm2;
mod lfm2_moe;
mod lfm3;
mod llama;
mod llama4_text;
mod longcat_flash;
mod mamba2;
mod mimo;
mod mimo_v2_flash;
mod minicpm3;
mod minimax_m2;
mod minimax_m3;
mod ministral;
mod ministral3;
mod mistral;
mod mistral4;
mod mixtral;
mod mixture;
pub(crate) mod multimodal;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod olmo;
mod olmo2;
mod olmo3;
mod olmo_hybrid;
mod olmoe;
mod pairs;
mod phi;
mod phi3;
mod phimoe;
mod prelude;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod rows;
mod sarvam_mla;
mod sarvam_moe;
mod seed_oss;
mod smollm3;
mod solar_open;
mod stablelm;
mod starcoder2;
mod step3p5;
mod t5;
mod vaultgemma;
mod zamba2;

use crate::decoder::DecoderConfig;
use crate::huggingface::gguf::GgufFamily;
#[cfg(test)]
use crate::huggingface::tests::small as testing;
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
    &gemma3n::FAMILY,
    &gemma4::FAMILY,
    &cohere2::FAMILY,
    &glm4::FAMILY,
    &t5::FAMILY,
    &mixtral::FAMILY,
    &qwen3_moe::FAMILY,
    &deepseek_v3::FAMILY,
    &olmoe::FAMILY,
    &gpt_oss::FAMILY,
    &qwen3_next::FAMILY,
    &qwen3_5::FAMILY,
    &qwen3_5_moe::FAMILY,
    &olmo_hybrid::FAMILY,
    &kimi_linear::FAMILY,
    &longcat_flash::FAMILY,
    &zamba2::FAMILY,
    &bailing_hybrid::FAMILY,
    &gemma::FAMILY,
    &glm::FAMILY,
    &olmo3::FAMILY,
    &exaone4::FAMILY,
    &seed_oss::FAMILY,
    &ministral::FAMILY,
    &arcee::FAMILY,
    &nemotron::FAMILY,
    &ernie4_5::FAMILY,
    &minicpm3::FAMILY,
    &cohere::FAMILY,
    &cwm::FAMILY,
    &vaultgemma::FAMILY,
    &mimo::FAMILY,
    &mimo_v2_flash::FAMILY,
    &step3p5::FAMILY,
    &afmoe::FAMILY,
    &hunyuan_v1_dense::FAMILY,
    &hunyuan_v1_moe::FAMILY,
    &stablelm::FAMILY,
    &ministral3::FAMILY,
    &mistral4::FAMILY,
    &dbrx::FAMILY,
    &phi::FAMILY,
    &apertus::FAMILY,
    &phimoe::FAMILY,
    &olmo::FAMILY,
    &nanochat::FAMILY,
    &ernie4_5_moe::FAMILY,
    &granitemoehybrid::FAMILY,
    &bamba::FAMILY,
    &lfm2::FAMILY,
    &lfm2_moe::FAMILY,
    &jamba::FAMILY,
    &falcon_h1::FAMILY,
    &qwen2_moe::FAMILY,
    &glm4_moe::FAMILY,
    &glm4_moe_lite::FAMILY,
    &deepseek_v2::FAMILY,
    &kimi_k2::FAMILY,
    &sarvam_mla::FAMILY,
    &minimax_m2::FAMILY,
    &dots1::FAMILY,
    &hy_v3::FAMILY,
    &exaone_moe::FAMILY,
    &granitemoe::FAMILY,
    &solar_open::FAMILY,
    &sarvam_moe::FAMILY,
    &bailing_moe_v2::FAMILY,
    &deepseek_v32::FAMILY,
    &glm_moe_dsa::FAMILY,
    &minimax_m3::FAMILY,
    &hy_v4::FAMILY,
    &deepseek_v4::FAMILY,
    &cohere2_moe::FAMILY,
    &llama4_text::FAMILY,
    &lfm3::FAMILY,
];

/// Names that published files have instead of a family's own: `model_type`, class, and the family's
/// `model_type`. Exports keep them.
const OTHER_NAMES: &[(&str, &str, &str)] = &[
    ("kimi_k2", "DeepseekV3ForCausalLM", "kimi_k2"),
    ("sarvam_mla", "DeepseekV3ForCausalLM", "sarvam_mla"),
    // transformers has no class of its own for it, and saves the one that it borrows.
    ("sarvam_moe", "Glm4MoeForCausalLM", "sarvam_moe"),
    ("bailing_moe", "BailingMoeV2ForCausalLM", "bailing_moe_v2"),
];

/// The families that llama.cpp has too: `gguf.rs` of the folder, and a line here. A file is read as
/// the first with its architecture.
pub(crate) const GGUF_FAMILIES: &[&GgufFamily] = &[
    &gpt2::gguf::GGUF,
    &llama::gguf::GGUF,
    &mistral::gguf::GGUF,
    &qwen2::gguf::GGUF,
    &qwen3::gguf::GGUF,
    &gemma::gguf::GGUF,
    &starcoder2::gguf::GGUF,
    &olmo2::gguf::GGUF,
    &glm4::gguf::GGUF,
    &exaone4::gguf::GGUF,
    &seed_oss::gguf::GGUF,
    &arcee::gguf::GGUF,
    &nemotron::gguf::GGUF,
    &ernie4_5::gguf::GGUF,
    &cohere::gguf::GGUF,
];

/// The family of a `model_type`.
pub fn with_model_type(model_type: &str) -> Option<&'static Family> {
    let other = OTHER_NAMES.iter().find(|(name, ..)| *name == model_type);
    let own = other.map_or(model_type, |(.., own)| own);
    FAMILIES.iter().copied().find(|family| family.model_type() == own)
}

/// True if files with this `model_type` may name the class `architecture` besides the family's own.
pub(crate) fn has_other_class(model_type: &str, architecture: &str) -> bool {
    OTHER_NAMES.iter().any(|(name, class, _)| (*name, *class) == (model_type, architecture))
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
