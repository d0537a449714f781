//! Cohere (Command R): a Cohere 2 without windows, whose layers are all rotated. Queries and keys
//! may have norms with weights for each head.

pub(super) mod gguf;
#[cfg(test)]
mod tests;

use super::cohere2::LAYERS;
use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "cohere",
    architecture: "CohereForCausalLM",
    settings: SETTINGS,
    weights: &[QK_NORMS, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `CohereConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(LAYERS),
    norm_of_each_head("use_qk_norm"),
    Setting::Group(&RopeForm { theta: 500_000.0, interleaved: true, ..RopeForm::USUAL }),
];

/// Norms of queries and keys whose weights differ from head to head.
pub(super) const fn norm_of_each_head(key: &'static str) -> Setting {
    Setting::Flag(
        key,
        false,
        |c| c.qk_layernorm,
        |c, on| {
            c.qk_layernorm = on;
            c.qk_layernorm_scope = if on { QkNormScope::EachHead } else { QkNormScope::Head };
        },
    )
}

/// Names of the norms of queries and keys, with a row of weights for each head.
const QK_NORMS: &[WeightRule] = &[
    layer!("self_attention.q_layernorm.weight", "self_attn.q_norm.weight").fused(Fusion::HeadRows),
    layer!("self_attention.k_layernorm.weight", "self_attn.k_norm.weight").fused(Fusion::HeadRows),
];
