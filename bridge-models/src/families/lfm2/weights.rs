//! Names of LFM2's parameters.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(crate) const MIXERS: &[WeightRule] = &[
    rule("decoder.layers.{}.norm.weight", &["model.layers.{/2}.operator_norm.weight"]),
    rule("decoder.layers.{}.input_layernorm.weight", &["model.layers.{/2}.operator_norm.weight"]),
    rule("decoder.layers.{}.mixer.in_proj.weight", &["model.layers.{/2}.conv.in_proj.weight"]),
    rule("decoder.layers.{}.mixer.in_proj.bias", &["model.layers.{/2}.conv.in_proj.bias"]),
    rule("decoder.layers.{}.mixer.conv.weight", &["model.layers.{/2}.conv.conv.weight"]).fused(Fusion::Convolution),
    rule("decoder.layers.{}.mixer.conv.bias", &["model.layers.{/2}.conv.conv.bias"]),
    rule("decoder.layers.{}.mixer.out_proj.weight", &["model.layers.{/2}.conv.out_proj.weight"]),
    rule("decoder.layers.{}.mixer.out_proj.bias", &["model.layers.{/2}.conv.out_proj.bias"]),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.weight",
        &[
            "model.layers.{/2}.self_attn.q_proj.weight",
            "model.layers.{/2}.self_attn.k_proj.weight",
            "model.layers.{/2}.self_attn.v_proj.weight",
        ],
    )
    .fused(Fusion::Qkv),
    rule("decoder.layers.{}.self_attention.q_layernorm.weight", &["model.layers.{/2}.self_attn.q_layernorm.weight"]),
    rule("decoder.layers.{}.self_attention.k_layernorm.weight", &["model.layers.{/2}.self_attn.k_layernorm.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["model.layers.{/2}.self_attn.out_proj.weight"]),
];

pub(crate) const FEED_FORWARD: &[WeightRule] = &[
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["model.layers.{/2}.ffn_norm.weight"]),
    rule(
        "decoder.layers.{}.mlp.linear_fc1.weight",
        &["model.layers.{/2}.feed_forward.w1.weight", "model.layers.{/2}.feed_forward.w3.weight"],
    )
    .fused(Fusion::GateUp),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["model.layers.{/2}.feed_forward.w2.weight"]),
    rule("decoder.final_layernorm.weight", &["model.embedding_norm.weight"]),
];
