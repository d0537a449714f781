//! Names of the parts of linear attention's projection.

use crate::families::prelude::*;
use crate::huggingface::weight_map::LinearRows;

pub(crate) const PROJECTION: &[WeightRule] = &[layer!(
    "self_attention.in_proj.weight",
    "linear_attn.in_proj_qkv.weight",
    "linear_attn.in_proj_z.weight",
    "linear_attn.in_proj_b.weight",
    "linear_attn.in_proj_a.weight"
)
.fused(Fusion::Linear(&[LinearRows::Mixed, LinearRows::Values, LinearRows::Heads, LinearRows::Decays]))];
