//! Name of the sinks in files.

use crate::families::prelude::*;

pub(super) const SINKS: &[WeightRule] =
    &[layer!("self_attention.core_attention.softmax_offset", "self_attn.attention_sink_bias")];
