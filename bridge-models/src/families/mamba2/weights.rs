//! Names of Mamba-2's parameters.

use crate::families::prelude::*;

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["backbone.embeddings.weight"]).fused(Fusion::Vocabulary),
    rule("decoder.layers.{}.norm.weight", &["backbone.layers.{}.norm.weight"]),
    rule("decoder.layers.{}.mixer.in_proj.weight", &["backbone.layers.{}.mixer.in_proj.weight"]),
    rule("decoder.layers.{}.mixer.in_proj.bias", &["backbone.layers.{}.mixer.in_proj.bias"]),
    rule("decoder.layers.{}.mixer.conv1d.weight", &["backbone.layers.{}.mixer.conv1d.weight"])
        .fused(Fusion::Convolution),
    rule("decoder.layers.{}.mixer.conv1d.bias", &["backbone.layers.{}.mixer.conv1d.bias"]),
    rule("decoder.layers.{}.mixer.A_log", &["backbone.layers.{}.mixer.A_log"]),
    rule("decoder.layers.{}.mixer.D", &["backbone.layers.{}.mixer.D"]),
    rule("decoder.layers.{}.mixer.dt_bias", &["backbone.layers.{}.mixer.dt_bias"]),
    rule("decoder.layers.{}.mixer.norm.weight", &["backbone.layers.{}.mixer.norm.weight"]),
    rule("decoder.layers.{}.mixer.out_proj.weight", &["backbone.layers.{}.mixer.out_proj.weight"]),
    rule("decoder.layers.{}.mixer.out_proj.bias", &["backbone.layers.{}.mixer.out_proj.bias"]),
    rule("decoder.final_layernorm.weight", &["backbone.norm_f.weight"]),
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary),
];
