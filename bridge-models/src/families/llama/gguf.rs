//! Llama as llama.cpp has it. Families that descend from it share most rows.

use crate::families::prelude::*;
use crate::families::qwen3::gguf::{ENDS, NORMS, UNIT};

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "llama",
    settings: SETTINGS,
    switches: &[("blk.0.attn_q.bias", "attention_bias"), ("blk.0.ffn_up.bias", "mlp_bias")],
    tensors: TENSORS,
    ..GgufFamily::USUAL
};

pub(in crate::families) const SETTINGS: &[&[GgufSetting]] = &[SIZES, RMS_NORM, ROTATED];

/// Sizes, and the base of the rotary frequencies.
pub(in crate::families) const SIZES: &[GgufSetting] = &[
    ("context_length", "max_position_embeddings", GgufNumber::Count),
    ("embedding_length", "hidden_size", GgufNumber::Count),
    ("feed_forward_length", "intermediate_size", GgufNumber::Count),
    ("block_count", "num_hidden_layers", GgufNumber::Count),
    ("attention.head_count", "num_attention_heads", GgufNumber::Count),
    ("attention.head_count_kv", "num_key_value_heads", GgufNumber::Count),
    ("attention.key_length", "head_dim", GgufNumber::Count),
    ("attention.value_length", "head_dim", GgufNumber::Count),
    ("rope.freq_base", "rope_theta", GgufNumber::Float),
];

pub(in crate::families) const RMS_NORM: &[GgufSetting] =
    &[("attention.layer_norm_rms_epsilon", "rms_norm_eps", GgufNumber::Float)];

/// Whole heads are rotated.
pub(in crate::families) const ROTATED: &[GgufSetting] = &[("rope.dimension_count", "head_dim", GgufNumber::Count)];

/// A part of each head is rotated.
pub(in crate::families) const PARTLY_ROTATED: &[GgufSetting] =
    &[("rope.dimension_count", "partial_rotary_factor", GgufNumber::OfHead)];

pub(in crate::families) const TENSORS: &[&[GgufName]] = &[ENDS, NORMS, PAIRED, UNIT, UNIT_BIASES];

/// Attention whose queries and keys are stored with rotated pairs side by side.
pub(in crate::families) const PAIRED: &[GgufName] = &[
    ("blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", Rearrangement::PairedHeads),
    ("blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", Rearrangement::PairedHeads),
    ("blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", Rearrangement::PairedHeads),
    ("blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", Rearrangement::PairedHeads),
    ("blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight", Rearrangement::None),
    ("blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias", Rearrangement::None),
    ("blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight", Rearrangement::None),
    ("blk.{}.attn_output.bias", "model.layers.{}.self_attn.o_proj.bias", Rearrangement::None),
];

const UNIT_BIASES: &[GgufName] = &[
    ("blk.{}.ffn_gate.bias", "model.layers.{}.mlp.gate_proj.bias", Rearrangement::None),
    ("blk.{}.ffn_up.bias", "model.layers.{}.mlp.up_proj.bias", Rearrangement::None),
    ("blk.{}.ffn_down.bias", "model.layers.{}.mlp.down_proj.bias", Rearrangement::None),
];
