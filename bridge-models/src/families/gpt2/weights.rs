//! Names of GPT-2's parameters.

use crate::families::prelude::*;

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["transformer.wte.weight"]).fused(Fusion::Vocabulary),
    rule("embedding.position_embeddings.weight", &["transformer.wpe.weight"]),
    rule("decoder.layers.{}.input_layernorm.weight", &["transformer.h.{}.ln_1.weight"]),
    rule("decoder.layers.{}.input_layernorm.bias", &["transformer.h.{}.ln_1.bias"]),
    rule("decoder.layers.{}.self_attention.linear_qkv.weight", &["transformer.h.{}.attn.c_attn.weight"])
        .fused(Fusion::PackedQkv)
        .rows_are_inputs(),
    rule("decoder.layers.{}.self_attention.linear_qkv.bias", &["transformer.h.{}.attn.c_attn.bias"])
        .fused(Fusion::PackedQkv),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["transformer.h.{}.attn.c_proj.weight"])
        .rows_are_inputs(),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["transformer.h.{}.attn.c_proj.bias"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["transformer.h.{}.ln_2.weight"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.bias", &["transformer.h.{}.ln_2.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["transformer.h.{}.mlp.c_fc.weight"]).rows_are_inputs(),
    rule("decoder.layers.{}.mlp.linear_fc1.bias", &["transformer.h.{}.mlp.c_fc.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["transformer.h.{}.mlp.c_proj.weight"]).rows_are_inputs(),
    rule("decoder.layers.{}.mlp.linear_fc2.bias", &["transformer.h.{}.mlp.c_proj.bias"]),
    rule("decoder.final_layernorm.weight", &["transformer.ln_f.weight"]),
    rule("decoder.final_layernorm.bias", &["transformer.ln_f.bias"]),
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary),
];
