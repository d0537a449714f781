//! Nemotron as llama.cpp has it: one is added to the weights of its norms.

use crate::families::gemma;
use crate::families::llama::gguf::{PARTLY_ROTATED, SIZES};
use crate::families::prelude::*;
use crate::families::qwen3::gguf::ATTENTION;
use crate::families::starcoder2::gguf::NORM_BIASES;

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "nemotron",
    settings: &[SIZES, PARTLY_ROTATED, &[("attention.layer_norm_epsilon", "norm_eps", GgufNumber::Float)]],
    switches: &[("blk.0.attn_q.bias", "attention_bias"), ("blk.0.ffn_up.bias", "mlp_bias")],
    tensors: &[ENDS, gemma::gguf::NORMS, NORM_BIASES, ATTENTION, PLAIN],
    ..GgufFamily::USUAL
};

const ENDS: &[GgufName] = &[
    ("token_embd.weight", "model.embed_tokens.weight", Rearrangement::None),
    ("output.weight", "lm_head.weight", Rearrangement::None),
];

/// A feed-forward block without a gate.
pub(in crate::families) const PLAIN: &[GgufName] = &[
    ("blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight", Rearrangement::None),
    ("blk.{}.ffn_up.bias", "model.layers.{}.mlp.up_proj.bias", Rearrangement::None),
    ("blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight", Rearrangement::None),
    ("blk.{}.ffn_down.bias", "model.layers.{}.mlp.down_proj.bias", Rearrangement::None),
];
