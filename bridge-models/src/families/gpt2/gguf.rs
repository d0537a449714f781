//! GPT-2 as llama.cpp has it: with a row an output, as other families.

use crate::families::prelude::*;

pub(in crate::families) static GGUF: GgufFamily = GgufFamily {
    family: &super::FAMILY,
    architecture: "gpt2",
    settings: &[&[
        ("context_length", "n_positions", GgufNumber::Count),
        ("embedding_length", "n_embd", GgufNumber::Count),
        ("feed_forward_length", "n_inner", GgufNumber::Count),
        ("block_count", "n_layer", GgufNumber::Count),
        ("attention.head_count", "n_head", GgufNumber::Count),
        ("attention.layer_norm_epsilon", "layer_norm_epsilon", GgufNumber::Float),
    ]],
    tensors: &[&[
        ("token_embd.weight", "transformer.wte.weight", Rearrangement::None),
        ("position_embd.weight", "transformer.wpe.weight", Rearrangement::None),
        ("output_norm.weight", "transformer.ln_f.weight", Rearrangement::None),
        ("output_norm.bias", "transformer.ln_f.bias", Rearrangement::None),
        ("output.weight", "lm_head.weight", Rearrangement::None),
        ("blk.{}.attn_norm.weight", "transformer.h.{}.ln_1.weight", Rearrangement::None),
        ("blk.{}.attn_norm.bias", "transformer.h.{}.ln_1.bias", Rearrangement::None),
        ("blk.{}.attn_qkv.weight", "transformer.h.{}.attn.c_attn.weight", Rearrangement::Transposed),
        ("blk.{}.attn_qkv.bias", "transformer.h.{}.attn.c_attn.bias", Rearrangement::None),
        ("blk.{}.attn_output.weight", "transformer.h.{}.attn.c_proj.weight", Rearrangement::Transposed),
        ("blk.{}.attn_output.bias", "transformer.h.{}.attn.c_proj.bias", Rearrangement::None),
        ("blk.{}.ffn_norm.weight", "transformer.h.{}.ln_2.weight", Rearrangement::None),
        ("blk.{}.ffn_norm.bias", "transformer.h.{}.ln_2.bias", Rearrangement::None),
        ("blk.{}.ffn_up.weight", "transformer.h.{}.mlp.c_fc.weight", Rearrangement::Transposed),
        ("blk.{}.ffn_up.bias", "transformer.h.{}.mlp.c_fc.bias", Rearrangement::None),
        ("blk.{}.ffn_down.weight", "transformer.h.{}.mlp.c_proj.weight", Rearrangement::Transposed),
        ("blk.{}.ffn_down.bias", "transformer.h.{}.mlp.c_proj.bias", Rearrangement::None),
    ]],
    ..GgufFamily::USUAL
};
