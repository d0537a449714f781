//! Names of the parameters that Llama has in parts.

use crate::huggingface::weight_map::{Fusion, WeightRule, rule};

pub(super) const FUSED: &[WeightRule] = &[
    rule("decoder.layers.{}.self_attention.linear_qkv.weight", &["model.layers.{}.self_attn.qkv_proj.weight"])
        .fused(Fusion::PackedQkv),
    // The gate's rows come first there too.
    rule("decoder.layers.{}.mlp.linear_fc1.weight", &["model.layers.{}.mlp.gate_up_proj.weight"]),
];
