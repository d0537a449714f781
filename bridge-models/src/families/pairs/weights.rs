//! Names of parameters in layers of a mixer and a feed-forward block, which are two of ours.

use crate::decoder::HybridBlock;
use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

/// The mixers, the blocks of Mamba-2 and of the first Mamba and attention, with their norms.
pub(crate) const MIXERS: &[WeightRule] = &[
    rule("decoder.layers.{}.norm.weight", &["model.layers.{/2}.input_layernorm.weight"]),
    rule("decoder.layers.{}.input_layernorm.weight", &["model.layers.{/2}.input_layernorm.weight"]),
    rule("decoder.layers.{}.mixer.in_proj.weight", &["model.layers.{/2}.mamba.in_proj.weight"]),
    rule("decoder.layers.{}.mixer.in_proj.bias", &["model.layers.{/2}.mamba.in_proj.bias"]),
    rule("decoder.layers.{}.mixer.conv1d.weight", &["model.layers.{/2}.mamba.conv1d.weight"])
        .fused(Fusion::Convolution),
    rule("decoder.layers.{}.mixer.conv1d.bias", &["model.layers.{/2}.mamba.conv1d.bias"]),
    rule("decoder.layers.{}.mixer.A_log", &["model.layers.{/2}.mamba.A_log"]),
    rule("decoder.layers.{}.mixer.D", &["model.layers.{/2}.mamba.D"]),
    rule("decoder.layers.{}.mixer.dt_bias", &["model.layers.{/2}.mamba.dt_bias"])
        .only(|config| config.has_block(HybridBlock::Mamba)),
    rule("decoder.layers.{}.mixer.norm.weight", &["model.layers.{/2}.mamba.norm.weight"]),
    rule("decoder.layers.{}.mixer.out_proj.weight", &["model.layers.{/2}.mamba.out_proj.weight"]),
    rule("decoder.layers.{}.mixer.out_proj.bias", &["model.layers.{/2}.mamba.out_proj.bias"]),
    rule("decoder.layers.{}.mixer.x_proj.weight", &["model.layers.{/2}.mamba.x_proj.weight"]),
    rule("decoder.layers.{}.mixer.dt_layernorm.weight", &["model.layers.{/2}.mamba.dt_layernorm.weight"]),
    rule("decoder.layers.{}.mixer.b_layernorm.weight", &["model.layers.{/2}.mamba.b_layernorm.weight"]),
    rule("decoder.layers.{}.mixer.c_layernorm.weight", &["model.layers.{/2}.mamba.c_layernorm.weight"]),
    rule("decoder.layers.{}.mixer.dt_proj.weight", &["model.layers.{/2}.mamba.dt_proj.weight"]),
    rule("decoder.layers.{}.mixer.dt_bias", &["model.layers.{/2}.mamba.dt_proj.bias"]),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.weight",
        &[
            "model.layers.{/2}.self_attn.q_proj.weight",
            "model.layers.{/2}.self_attn.k_proj.weight",
            "model.layers.{/2}.self_attn.v_proj.weight",
        ],
    )
    .fused(Fusion::Qkv),
    rule(
        "decoder.layers.{}.self_attention.linear_qkv.bias",
        &[
            "model.layers.{/2}.self_attn.q_proj.bias",
            "model.layers.{/2}.self_attn.k_proj.bias",
            "model.layers.{/2}.self_attn.v_proj.bias",
        ],
    )
    .fused(Fusion::Qkv),
    rule("decoder.layers.{}.self_attention.linear_proj.weight", &["model.layers.{/2}.self_attn.o_proj.weight"]),
    rule("decoder.layers.{}.self_attention.linear_proj.bias", &["model.layers.{/2}.self_attn.o_proj.bias"]),
];

/// The feed-forward block with its norm, and the norm at the end.
pub(crate) const FEED_FORWARD: &[WeightRule] = &[
    rule("decoder.layers.{}.pre_mlp_layernorm.weight", &["model.layers.{/2}.pre_ff_layernorm.weight"]),
    rule(
        "decoder.layers.{}.mlp.linear_fc1.weight",
        &["model.layers.{/2}.feed_forward.gate_proj.weight", "model.layers.{/2}.feed_forward.up_proj.weight"],
    )
    .fused(Fusion::GateUp),
    rule("decoder.layers.{}.mlp.linear_fc2.weight", &["model.layers.{/2}.feed_forward.down_proj.weight"]),
    rule(
        "decoder.layers.{}.mlp.linear_fc1.bias",
        &["model.layers.{/2}.feed_forward.gate_proj.bias", "model.layers.{/2}.feed_forward.up_proj.bias"],
    )
    .fused(Fusion::GateUp),
    rule("decoder.layers.{}.mlp.linear_fc2.bias", &["model.layers.{/2}.feed_forward.down_proj.bias"]),
    rule("decoder.final_layernorm.weight", &["model.final_layernorm.weight"]),
];
