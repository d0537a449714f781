//! Where Nemotron-H's parameters are. Each layer has one norm and one block, whatever it is.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["model.embeddings.weight"]).fused(Fusion::Vocabulary),
    rule("decoder.layers.{}.norm.weight", &["model.layers.{}.norm.weight"]),
    rule("decoder.layers.{}.mixer.in_proj.weight", &["model.layers.{}.mixer.in_proj.weight"]),
    rule("decoder.layers.{}.mixer.in_proj.bias", &["model.layers.{}.mixer.in_proj.bias"]),
    rule("decoder.layers.{}.mixer.conv1d.weight", &["model.layers.{}.mixer.conv1d.weight"]).fused(Fusion::Convolution),
    rule("decoder.layers.{}.mixer.conv1d.bias", &["model.layers.{}.mixer.conv1d.bias"]),
    rule("decoder.layers.{}.mixer.A_log", &["model.layers.{}.mixer.A_log"]),
    rule("decoder.layers.{}.mixer.D", &["model.layers.{}.mixer.D"]),
    rule("decoder.layers.{}.mixer.dt_bias", &["model.layers.{}.mixer.dt_bias"]),
    rule("decoder.layers.{}.mixer.norm.weight", &["model.layers.{}.mixer.norm.weight"]),
    rule("decoder.layers.{}.mixer.out_proj.weight", &["model.layers.{}.mixer.out_proj.weight"]),
    rule("decoder.layers.{}.mixer.out_proj.bias", &["model.layers.{}.mixer.out_proj.bias"]),
    rule("decoder.layers.{}.input_layernorm.weight", &["model.layers.{}.norm.weight"]),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.weight",
        &[
            "model.layers.{}.mixer.q_proj.weight",
            "model.layers.{}.mixer.k_proj.weight",
            "model.layers.{}.mixer.v_proj.weight",
        ],
    )
    .fused(Fusion::Qkv),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.bias",
        &[
            "model.layers.{}.mixer.q_proj.bias",
            "model.layers.{}.mixer.k_proj.bias",
            "model.layers.{}.mixer.v_proj.bias",
        ],
    )
    .fused(Fusion::Qkv),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["model.layers.{}.mixer.o_proj.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["model.layers.{}.mixer.o_proj.bias"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["model.layers.{}.norm.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["model.layers.{}.mixer.up_proj.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.bias", &["model.layers.{}.mixer.up_proj.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["model.layers.{}.mixer.down_proj.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc2.bias", &["model.layers.{}.mixer.down_proj.bias"]),
    rule("decoder.final_layernorm.weight", &["model.norm_f.weight"]),
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary),
];
