//! Gemma as llama.cpp has it: one is added to the weights of its norms. Biases and an output of its
//! own are refused.

use crate::families::llama::gguf::SETTINGS;
use crate::families::prelude::*;
use crate::families::qwen3::gguf::{ATTENTION, UNIT};

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "gemma",
    settings: SETTINGS,
    tensors: &[EMBEDDING, NORMS, ATTENTION, UNIT],
    ..GgufFamily::USUAL
};

/// Embedding, where it is the output too.
pub(in crate::families) const EMBEDDING: &[GgufName] =
    &[("token_embd.weight", "model.embed_tokens.weight", Rearrangement::None)];

/// Norms whose weights are stored minus one in Hugging Face's files.
pub(in crate::families) const NORMS: &[GgufName] = &[
    ("output_norm.weight", "model.norm.weight", Rearrangement::PlusOne),
    ("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", Rearrangement::PlusOne),
    ("blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight", Rearrangement::PlusOne),
];
