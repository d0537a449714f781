//! Names of Nemotron-H's parameters. Each layer has one norm and one block, whatever its type.
//! Folders on disk call the model `backbone` and have the experts of a layer apart; the state of a
//! module calls it `model` and has them in one tensor.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule, stacked};

/// Weights of both layouts, under a prefix.
macro_rules! weights {
    ($prefix:literal) => {
        [
            rule("embedding.word_embeddings.weight", &[concat!($prefix, "embeddings.weight")])
                .fused(Fusion::Vocabulary),
            rule("decoder.final_layernorm.weight", &[concat!($prefix, "norm_f.weight")]),
            rule("decoder.layers.{}.norm.weight", &[concat!($prefix, "layers.{}.norm.weight")]),
            rule("decoder.layers.{}.mixer.in_proj.weight", &[concat!($prefix, "layers.{}.mixer.in_proj.weight")]),
            rule("decoder.layers.{}.mixer.in_proj.bias", &[concat!($prefix, "layers.{}.mixer.in_proj.bias")]),
            rule("decoder.layers.{}.mixer.conv1d.weight", &[concat!($prefix, "layers.{}.mixer.conv1d.weight")])
                .fused(Fusion::Convolution),
            rule("decoder.layers.{}.mixer.conv1d.bias", &[concat!($prefix, "layers.{}.mixer.conv1d.bias")]),
            rule("decoder.layers.{}.mixer.A_log", &[concat!($prefix, "layers.{}.mixer.A_log")]),
            rule("decoder.layers.{}.mixer.D", &[concat!($prefix, "layers.{}.mixer.D")]),
            rule("decoder.layers.{}.mixer.dt_bias", &[concat!($prefix, "layers.{}.mixer.dt_bias")]),
            rule("decoder.layers.{}.mixer.norm.weight", &[concat!($prefix, "layers.{}.mixer.norm.weight")]),
            rule("decoder.layers.{}.mixer.out_proj.weight", &[concat!($prefix, "layers.{}.mixer.out_proj.weight")]),
            rule("decoder.layers.{}.mixer.out_proj.bias", &[concat!($prefix, "layers.{}.mixer.out_proj.bias")]),
            rule("decoder.layers.{}.input_layernorm.weight", &[concat!($prefix, "layers.{}.norm.weight")]),
            rule(
                "decoder.layers.{}.self_attention.linear_proj.weight",
                &[concat!($prefix, "layers.{}.mixer.o_proj.weight")],
            ),
            rule("decoder.layers.{}.pre_mlp_layernorm.weight", &[concat!($prefix, "layers.{}.norm.weight")]),
            rule("decoder.layers.{}.mlp.linear_fc1.weight", &[concat!($prefix, "layers.{}.mixer.up_proj.weight")]),
            rule("decoder.layers.{}.mlp.linear_fc1.bias", &[concat!($prefix, "layers.{}.mixer.up_proj.bias")]),
            rule("decoder.layers.{}.mlp.linear_fc2.weight", &[concat!($prefix, "layers.{}.mixer.down_proj.weight")]),
            rule("decoder.layers.{}.mlp.linear_fc2.bias", &[concat!($prefix, "layers.{}.mixer.down_proj.bias")]),
            rule("decoder.layers.{}.mlp.router.weight", &[concat!($prefix, "layers.{}.mixer.gate.weight")]),
            rule(
                "decoder.layers.{}.mlp.router.expert_bias",
                &[concat!($prefix, "layers.{}.mixer.gate.e_score_correction_bias")],
            ),
            rule(
                "decoder.layers.{}.mlp.fc1_latent_proj.weight",
                &[concat!($prefix, "layers.{}.mixer.fc1_latent_proj.weight")],
            ),
            rule(
                "decoder.layers.{}.mlp.fc1_latent_proj.bias",
                &[concat!($prefix, "layers.{}.mixer.fc1_latent_proj.bias")],
            ),
            rule(
                "decoder.layers.{}.mlp.fc2_latent_proj.weight",
                &[concat!($prefix, "layers.{}.mixer.fc2_latent_proj.weight")],
            ),
            rule(
                "decoder.layers.{}.mlp.fc2_latent_proj.bias",
                &[concat!($prefix, "layers.{}.mixer.fc2_latent_proj.bias")],
            ),
            rule(
                "decoder.layers.{}.mlp.shared_experts.linear_fc1.weight",
                &[concat!($prefix, "layers.{}.mixer.shared_experts.up_proj.weight")],
            ),
            rule(
                "decoder.layers.{}.mlp.shared_experts.linear_fc1.bias",
                &[concat!($prefix, "layers.{}.mixer.shared_experts.up_proj.bias")],
            ),
            rule(
                "decoder.layers.{}.mlp.shared_experts.linear_fc2.weight",
                &[concat!($prefix, "layers.{}.mixer.shared_experts.down_proj.weight")],
            ),
            rule(
                "decoder.layers.{}.mlp.shared_experts.linear_fc2.bias",
                &[concat!($prefix, "layers.{}.mixer.shared_experts.down_proj.bias")],
            ),
            rule(
                "decoder.layers.{}.self_attention.linear_qkv.weight",
                &[
                    concat!($prefix, "layers.{}.mixer.q_proj.weight"),
                    concat!($prefix, "layers.{}.mixer.k_proj.weight"),
                    concat!($prefix, "layers.{}.mixer.v_proj.weight"),
                ],
            )
            .fused(Fusion::Qkv),
        ]
    };
}

pub(super) const ON_DISK: &[WeightRule] = &weights!("backbone.");

pub(super) const OF_MODULE: &[WeightRule] = &stacked(weights!("model."));

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
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &["model.layers.{}.mixer.experts.up_proj"],
    ),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["model.layers.{}.mixer.experts.down_proj"],
    ),
]);
