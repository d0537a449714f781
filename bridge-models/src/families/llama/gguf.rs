//! Llama as llama.cpp has it. Families that descend from it share most rows.

use crate::huggingface::gguf::{GgufFamily, GgufNumber, Rearrangement};

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "llama",
    settings: SETTINGS,
    switches: &[("blk.0.attn_q.bias", "attention_bias"), ("blk.0.ffn_up.bias", "mlp_bias")],
    tensors: TENSORS,
};

pub(in crate::families) const SETTINGS: &[(&str, &str, GgufNumber)] = &[
    ("context_length", "max_position_embeddings", GgufNumber::Count),
    ("embedding_length", "hidden_size", GgufNumber::Count),
    ("feed_forward_length", "intermediate_size", GgufNumber::Count),
    ("block_count", "num_hidden_layers", GgufNumber::Count),
    ("attention.head_count", "num_attention_heads", GgufNumber::Count),
    ("attention.head_count_kv", "num_key_value_heads", GgufNumber::Count),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps", GgufNumber::Float),
    ("attention.key_length", "head_dim", GgufNumber::Count),
    ("attention.value_length", "head_dim", GgufNumber::Count),
    ("rope.dimension_count", "head_dim", GgufNumber::Count),
    ("rope.freq_base", "rope_theta", GgufNumber::Float),
];

pub(in crate::families) const TENSORS: &[(&str, &str, Rearrangement)] = &[
    ("token_embd.weight", "model.embed_tokens.weight", Rearrangement::None),
    ("output_norm.weight", "model.norm.weight", Rearrangement::None),
    ("output.weight", "lm_head.weight", Rearrangement::None),
    ("blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight", Rearrangement::None),
    ("blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", Rearrangement::PairedHeads),
    ("blk.{}.attn_q.bias", "model.layers.{}.self_attn.q_proj.bias", Rearrangement::PairedHeads),
    ("blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", Rearrangement::PairedHeads),
    ("blk.{}.attn_k.bias", "model.layers.{}.self_attn.k_proj.bias", Rearrangement::PairedHeads),
    ("blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight", Rearrangement::None),
    ("blk.{}.attn_v.bias", "model.layers.{}.self_attn.v_proj.bias", Rearrangement::None),
    ("blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight", Rearrangement::None),
    ("blk.{}.attn_output.bias", "model.layers.{}.self_attn.o_proj.bias", Rearrangement::None),
    ("blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight", Rearrangement::None),
    ("blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight", Rearrangement::None),
    ("blk.{}.ffn_gate.bias", "model.layers.{}.mlp.gate_proj.bias", Rearrangement::None),
    ("blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight", Rearrangement::None),
    ("blk.{}.ffn_up.bias", "model.layers.{}.mlp.up_proj.bias", Rearrangement::None),
    ("blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight", Rearrangement::None),
    ("blk.{}.ffn_down.bias", "model.layers.{}.mlp.down_proj.bias", Rearrangement::None),
];
