//! Names of Nemotron-H's parameters. Each layer has one norm and one block, whatever its type.
//! Folders on disk call the model `backbone` and have the experts of a layer apart; the state of a
//! module calls it `model` and has them in one tensor.

use crate::families::prelude::*;

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["backbone.embeddings.weight"]).fused(Fusion::Vocabulary),
    rule("decoder.final_layernorm.weight", &["backbone.norm_f.weight"]),
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
    rule("decoder.layers.{}.input_layernorm.weight", &["backbone.layers.{}.norm.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["backbone.layers.{}.mixer.o_proj.weight"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["backbone.layers.{}.norm.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["backbone.layers.{}.mixer.up_proj.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.bias", &["backbone.layers.{}.mixer.up_proj.bias"]),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["backbone.layers.{}.mixer.down_proj.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc2.bias", &["backbone.layers.{}.mixer.down_proj.bias"]),
    rule("decoder.layers.{}.mlp.router.weight", &["backbone.layers.{}.mixer.gate.weight"]),
    rule("decoder.layers.{}.mlp.router.expert_bias", &["backbone.layers.{}.mixer.gate.e_score_correction_bias"]),
    rule("decoder.layers.{}.mlp.fc1_latent_proj.weight", &["backbone.layers.{}.mixer.fc1_latent_proj.weight"]),
    rule("decoder.layers.{}.mlp.fc1_latent_proj.bias", &["backbone.layers.{}.mixer.fc1_latent_proj.bias"]),
    rule("decoder.layers.{}.mlp.fc2_latent_proj.weight", &["backbone.layers.{}.mixer.fc2_latent_proj.weight"]),
    rule("decoder.layers.{}.mlp.fc2_latent_proj.bias", &["backbone.layers.{}.mixer.fc2_latent_proj.bias"]),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc1.weight",
        &["backbone.layers.{}.mixer.shared_experts.up_proj.weight"],
    ),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc1.bias",
        &["backbone.layers.{}.mixer.shared_experts.up_proj.bias"],
    ),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc2.weight",
        &["backbone.layers.{}.mixer.shared_experts.down_proj.weight"],
    ),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc2.bias",
        &["backbone.layers.{}.mixer.shared_experts.down_proj.bias"],
    ),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.weight",
        &[
            "backbone.layers.{}.mixer.q_proj.weight",
            "backbone.layers.{}.mixer.k_proj.weight",
            "backbone.layers.{}.mixer.v_proj.weight",
        ],
    )
    .fused(Fusion::Qkv),
];

pub(super) const OUTPUT: &[WeightRule] = &[rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary)];

/// The experts that tokens are sent to.
pub(super) const APART: &[WeightRule] = &[
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &["backbone.layers.{}.mixer.experts.{}.up_proj.weight"],
    ),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["backbone.layers.{}.mixer.experts.{}.down_proj.weight"],
    ),
];

pub(super) const STACKED: &[WeightRule] = &stacked([
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "mixer.experts.up_proj"),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "mixer.experts.down_proj"),
]);
