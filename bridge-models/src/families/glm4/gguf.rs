//! GLM-4 as llama.cpp has it, which rotates neighbouring pairs too. Gate and up are one matrix.

use crate::families::llama::gguf::{PARTLY_ROTATED, RMS_NORM, SIZES};
use crate::families::prelude::*;
use crate::families::qwen3::gguf::{ATTENTION, ENDS, NORMS};

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "glm4",
    settings: &[SIZES, PARTLY_ROTATED, RMS_NORM],
    switches: &[("blk.0.attn_q.bias", "attention_bias")],
    tensors: &[ENDS, NORMS, ATTENTION, OWN],
    ..GgufFamily::USUAL
};

const OWN: &[GgufName] = &[
    ("blk.{}.post_attention_norm.weight", "model.layers.{}.post_self_attn_layernorm.weight", Rearrangement::None),
    ("blk.{}.post_ffw_norm.weight", "model.layers.{}.post_mlp_layernorm.weight", Rearrangement::None),
    ("blk.{}.ffn_up.weight", "model.layers.{}.mlp.gate_up_proj.weight", Rearrangement::None),
    ("blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight", Rearrangement::None),
];
