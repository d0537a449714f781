//! Names of the parameters that Llama has in parts.

use crate::families::prelude::*;

pub(super) const FUSED: &[WeightRule] = &[
    layer!("self_attention.linear_qkv.weight", "self_attn.qkv_proj.weight").fused(Fusion::PackedQkv),
    // The gate's rows come first there too.
    layer!("mlp.linear_fc1.weight", "mlp.gate_up_proj.weight"),
];
