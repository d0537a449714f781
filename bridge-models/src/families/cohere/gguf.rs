//! Cohere as llama.cpp has it, which rotates neighbouring pairs too: one norm a layer, no biases,
//! and no output of its own.

use crate::families::gemma::gguf::EMBEDDING;
use crate::families::llama::gguf::{ROTATED, SIZES};
use crate::families::prelude::*;
use crate::families::qwen3::gguf::{ATTENTION, UNIT};

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "command-r",
    settings: &[SIZES, ROTATED, OWN],
    tensors: &[EMBEDDING, NORMS, ATTENTION, UNIT],
    ..GgufFamily::USUAL
};

const OWN: &[GgufSetting] = &[
    ("attention.layer_norm_epsilon", "layer_norm_eps", GgufNumber::Float),
    ("logit_scale", "logit_scale", GgufNumber::Float),
];

const NORMS: &[GgufName] = &[
    ("output_norm.weight", "model.norm.weight", Rearrangement::None),
    ("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", Rearrangement::None),
];
