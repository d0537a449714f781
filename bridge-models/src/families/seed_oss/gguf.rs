//! Seed-OSS as llama.cpp has it: the norm of the feed-forward block has the name of one behind
//! attention, and attention's output has no bias.

use crate::families::llama::gguf::SETTINGS;
use crate::families::prelude::*;
use crate::families::qwen3::gguf::{ATTENTION, ENDS, UNIT};

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "seed_oss",
    settings: SETTINGS,
    switches: &[("blk.0.attn_q.bias", "attention_bias")],
    tensors: &[ENDS, NORMS, ATTENTION, UNIT],
    ..GgufFamily::USUAL
};

const NORMS: &[GgufName] = &[
    ("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", Rearrangement::None),
    ("blk.{}.post_attention_norm.weight", "model.layers.{}.post_attention_layernorm.weight", Rearrangement::None),
];
