//! Names of LongCat-Flash's parameters: a file's layer has two of each block, and the experts.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(super) const OWN: &[WeightRule] = &[
    rule("decoder.layers.{}.input_layernorm.weight", &["model.layers.{/2}.input_layernorm.{%2}.weight"]),
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["model.layers.{/2}.post_attention_layernorm.{%2}.weight"]),
    rule(
        "decoder.layers.{}.self_attention.linear_q_down_proj.weight",
        &["model.layers.{/2}.self_attn.{%2}.q_a_proj.weight"],
    ),
    rule(
        "decoder.layers.{}.self_attention.linear_q_down_proj.bias",
        &["model.layers.{/2}.self_attn.{%2}.q_a_proj.bias"],
    ),
    rule(
        "decoder.layers.{}.self_attention.q_layernorm.weight",
        &["model.layers.{/2}.self_attn.{%2}.q_a_layernorm.weight"],
    ),
    rule(
        "decoder.layers.{}.self_attention.linear_q_up_proj.weight",
        &["model.layers.{/2}.self_attn.{%2}.q_b_proj.weight"],
    ),
    rule(
        "decoder.layers.{}.self_attention.linear_kv_down_proj.weight",
        &["model.layers.{/2}.self_attn.{%2}.kv_a_proj_with_mqa.weight"],
    ),
    rule(
        "decoder.layers.{}.self_attention.linear_kv_down_proj.bias",
        &["model.layers.{/2}.self_attn.{%2}.kv_a_proj_with_mqa.bias"],
    ),
    rule(
        "decoder.layers.{}.self_attention.kv_layernorm.weight",
        &["model.layers.{/2}.self_attn.{%2}.kv_a_layernorm.weight"],
    ),
    rule(
        "decoder.layers.{}.self_attention.linear_kv_up_proj.weight",
        &["model.layers.{/2}.self_attn.{%2}.kv_b_proj.weight"],
    ),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["model.layers.{/2}.self_attn.{%2}.o_proj.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["model.layers.{/2}.self_attn.{%2}.o_proj.bias"]),
    rule(
        "decoder.layers.{}.mlp.linear_fc1.weight",
        &["model.layers.{/2}.mlps.{%2}.gate_proj.weight", "model.layers.{/2}.mlps.{%2}.up_proj.weight"],
    )
    .fused(Fusion::GateUp),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["model.layers.{/2}.mlps.{%2}.down_proj.weight"]),
    rule("decoder.layers.{}.mlp.router.weight", &["model.layers.{/2}.mlp.router.classifier.weight"]),
    rule("decoder.layers.{}.mlp.router.expert_bias", &["model.layers.{/2}.mlp.router.e_score_correction_bias"]),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &["model.layers.{/2}.mlp.experts.{}.gate_proj.weight", "model.layers.{/2}.mlp.experts.{}.up_proj.weight"],
    )
    .fused(Fusion::GateUp),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["model.layers.{/2}.mlp.experts.{}.down_proj.weight"],
    ),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc1.weight",
        &["model.layers.{/2}.mlp.experts.gate_up_proj"],
    )
    .with_identities(),
    rule(
        "decoder.layers.{}.mlp.experts.local_experts.{}.linear_fc2.weight",
        &["model.layers.{/2}.mlp.experts.down_proj"],
    )
    .stacked(),
];
