//! Qwen 3 in llama.cpp's format: rotated halves are stored as in Hugging Face's files.

use crate::families::llama::gguf::SETTINGS;
use crate::families::prelude::*;

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "qwen3",
    settings: SETTINGS,
    switches: &[("blk.0.attn_q.bias", "attention_bias")],
    tensors: &[ENDS, NORMS, ATTENTION, UNIT, QK_NORMS],
    ..GgufFamily::USUAL
};

/// Embedding, last norm, output.
pub(in crate::families) const ENDS: &[GgufName] = &[
    ("token_embd.weight", "model.embed_tokens.weight", Rearrangement::None),
    ("output_norm.weight", "model.norm.weight", Rearrangement::None),
    ("output.weight", "lm_head.weight", Rearrangement::None),
];

/// Norms before the two blocks of a layer.
pub(in crate::families) const NORMS: &[GgufName] = &[
    ("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", Rearrangement::None),
    ("blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight", Rearrangement::None),
];

pub(in crate::families) const ATTENTION: &[GgufName] = &[
    ("blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", Rearrangement::None),
    ("blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", Rearrangement::None),
    ("blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", Rearrangement::None),
    ("blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", Rearrangement::None),
    ("blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight", Rearrangement::None),
    ("blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias", Rearrangement::None),
    ("blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight", Rearrangement::None),
    ("blk.{}.attn_output.bias", "model.layers.{}.self_attn.o_proj.bias", Rearrangement::None),
];

pub(in crate::families) const UNIT: &[GgufName] = &[
    ("blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight", Rearrangement::None),
    ("blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight", Rearrangement::None),
    ("blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight", Rearrangement::None),
];

pub(in crate::families) const QK_NORMS: &[GgufName] = &[
    ("blk.{}.attn_q_norm.weight", "model.layers.{}.self_attn.q_norm.weight", Rearrangement::None),
    ("blk.{}.attn_k_norm.weight", "model.layers.{}.self_attn.k_norm.weight", Rearrangement::None),
];
