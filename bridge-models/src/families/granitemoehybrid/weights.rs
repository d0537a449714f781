//! Names of the feed-forward blocks, each with its gate and its values in one matrix, and of the
//! experts, which are all in one tensor, in files and in the state of a module.

use crate::huggingface::weight_map::{WeightRule, rule, stacked};

pub(super) const WEIGHTS: &[WeightRule] = &[
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["model.layers.{/2}.post_attention_layernorm.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["model.layers.{/2}.shared_mlp.input_linear.weight"]),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["model.layers.{/2}.shared_mlp.output_linear.weight"]),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc1.weight",
        &["model.layers.{/2}.shared_mlp.input_linear.weight"],
    ),
    rule(
        "decoder.layers.{}.mlp.shared_experts.linear_fc2.weight",
        &["model.layers.{/2}.shared_mlp.output_linear.weight"],
    ),
];

pub(super) const ON_DISK: &[WeightRule] = &[
    rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{/2}.block_sparse_moe.router.layer.weight"]),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &["model.layers.{/2}.block_sparse_moe.input_linear.weight"],
    ),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["model.layers.{/2}.block_sparse_moe.output_linear.weight"],
    ),
];

pub(super) const OF_MODULE: &[WeightRule] = &stacked([
    rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{/2}.block_sparse_moe.router.weight"]),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &["model.layers.{/2}.block_sparse_moe.experts.gate_up_proj"],
    ),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["model.layers.{/2}.block_sparse_moe.experts.down_proj"],
    ),
]);
