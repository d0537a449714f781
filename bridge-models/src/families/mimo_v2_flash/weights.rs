//! Name of the sinks in files.

use crate::huggingface::weight_map::{WeightRule, rule};

pub(super) const SINKS: &[WeightRule] = &[rule(
    "decoder.layers.{}.self_attention.core_attention.softmax_offset",
    &["model.layers.{}.self_attn.attention_sink_bias"],
)];
