//! Names of the parts of linear attention's projection.

use crate::huggingface::weight_map::{Fusion, LinearRows, WeightRule, rule};

pub(crate) const PROJECTION: &[WeightRule] = &[rule(
    "decoder.layers.{}.self_attention.in_proj.weight",
    &[
        "model.layers.{}.linear_attn.in_proj_qkv.weight",
        "model.layers.{}.linear_attn.in_proj_z.weight",
        "model.layers.{}.linear_attn.in_proj_b.weight",
        "model.layers.{}.linear_attn.in_proj_a.weight",
    ],
)
.fused(Fusion::Linear(&[LinearRows::Mixed, LinearRows::Values, LinearRows::Heads, LinearRows::Decays]))];
