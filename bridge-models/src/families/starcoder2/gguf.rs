//! StarCoder 2 as llama.cpp has it: without the window, and with all biases.

use crate::families::llama::gguf::{ROTATED, SIZES};
use crate::families::prelude::*;
use crate::families::qwen3::gguf::{ATTENTION, ENDS, NORMS};

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "starcoder2",
    settings: &[SIZES, ROTATED, &[("attention.layer_norm_epsilon", "norm_epsilon", GgufNumber::Float)]],
    tensors: &[ENDS, NORMS, NORM_BIASES, ATTENTION, UNIT],
    ..GgufFamily::USUAL
};

/// Biases of norms.
pub(in crate::families) const NORM_BIASES: &[GgufName] = &[
    ("output_norm.bias", "model.norm.bias", Rearrangement::None),
    ("blk.{}.attn_norm.bias", "model.layers.{}.input_layernorm.bias", Rearrangement::None),
    ("blk.{}.ffn_norm.bias", "model.layers.{}.post_attention_layernorm.bias", Rearrangement::None),
];

const UNIT: &[GgufName] = &[
    ("blk.{}.ffn_up.weight", "model.layers.{}.mlp.c_fc.weight", Rearrangement::None),
    ("blk.{}.ffn_up.bias", "model.layers.{}.mlp.c_fc.bias", Rearrangement::None),
    ("blk.{}.ffn_down.weight", "model.layers.{}.mlp.c_proj.weight", Rearrangement::None),
    ("blk.{}.ffn_down.bias", "model.layers.{}.mlp.c_proj.bias", Rearrangement::None),
];
