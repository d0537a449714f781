//! Names of Nemotron-H's parameters. Each layer has one norm and one block, whatever its type.
//! Folders on disk call the model `backbone` and have the experts of a layer apart; the state of a
//! module calls it `model` and has them in one tensor.

use crate::families::prelude::*;

/// A rule of a layer.
macro_rules! block {
    ($($name:literal),+ $(,)?) => { prefixed!("decoder.layers.{}.", "backbone.layers.{}.", $($name),+) };
}

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["backbone.embeddings.weight"]).fused(Fusion::Vocabulary),
    rule("decoder.final_layernorm.weight", &["backbone.norm_f.weight"]),
    block!("norm.weight", "norm.weight"),
    block!("mixer.in_proj.weight", "mixer.in_proj.weight"),
    block!("mixer.in_proj.bias", "mixer.in_proj.bias"),
    block!("mixer.conv1d.weight", "mixer.conv1d.weight").fused(Fusion::Convolution),
    block!("mixer.conv1d.bias", "mixer.conv1d.bias"),
    block!("mixer.A_log", "mixer.A_log"),
    block!("mixer.D", "mixer.D"),
    block!("mixer.dt_bias", "mixer.dt_bias"),
    block!("mixer.norm.weight", "mixer.norm.weight"),
    block!("mixer.out_proj.weight", "mixer.out_proj.weight"),
    block!("mixer.out_proj.bias", "mixer.out_proj.bias"),
    block!("input_layernorm.weight", "norm.weight"),
    block!("self_attention.linear_proj.weight", "mixer.o_proj.weight"),
    block!("pre_mlp_layernorm.weight", "norm.weight"),
    block!("mlp.linear_fc1.weight", "mixer.up_proj.weight"),
    block!("mlp.linear_fc1.bias", "mixer.up_proj.bias"),
    block!("mlp.linear_fc2.weight", "mixer.down_proj.weight"),
    block!("mlp.linear_fc2.bias", "mixer.down_proj.bias"),
    block!("mlp.router.weight", "mixer.gate.weight"),
    block!("mlp.router.expert_bias", "mixer.gate.e_score_correction_bias"),
    block!("mlp.fc1_latent_proj.weight", "mixer.fc1_latent_proj.weight"),
    block!("mlp.fc1_latent_proj.bias", "mixer.fc1_latent_proj.bias"),
    block!("mlp.fc2_latent_proj.weight", "mixer.fc2_latent_proj.weight"),
    block!("mlp.fc2_latent_proj.bias", "mixer.fc2_latent_proj.bias"),
    block!("mlp.shared_experts.linear_fc1.weight", "mixer.shared_experts.up_proj.weight"),
    block!("mlp.shared_experts.linear_fc1.bias", "mixer.shared_experts.up_proj.bias"),
    block!("mlp.shared_experts.linear_fc2.weight", "mixer.shared_experts.down_proj.weight"),
    block!("mlp.shared_experts.linear_fc2.bias", "mixer.shared_experts.down_proj.bias"),
    block!("self_attention.linear_qkv.weight", "mixer.q_proj.weight", "mixer.k_proj.weight", "mixer.v_proj.weight")
        .fused(Fusion::Qkv),
];

pub(super) const OUTPUT: &[WeightRule] = &[rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary)];

/// The experts that tokens are sent to.
pub(super) const APART: &[WeightRule] = &[
    block!("mlp.experts.local_experts.{}.linear_fc1.weight", "mixer.experts.{}.up_proj.weight"),
    block!("mlp.experts.local_experts.{}.linear_fc2.weight", "mixer.experts.{}.down_proj.weight"),
];

pub(super) const STACKED: &[WeightRule] = &stacked([
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "mixer.experts.up_proj"),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "mixer.experts.down_proj"),
]);
