//! Hunyuan 4: DeepSeek-V3.2 with sinks, gates on attention's output, several residual streams, and
//! bounds of the units of experts. Layers share chosen keys as GLM-5's do.

pub(super) mod config;
#[cfg(test)]
mod tests;
mod weights;

use super::{deepseek_v3, deepseek_v32, llama, mixture};
use crate::huggingface::Family;

pub(super) static FAMILY: Family = Family {
    model_type: "hy_v4",
    architecture: "HYV4ForCausalLM",
    settings: config::SETTINGS,
    weights: &[
        weights::OWN,
        deepseek_v32::weights::INDEXER,
        deepseek_v3::weights::LATENT_ATTENTION,
        mixture::SHARED,
        mixture::APART,
        llama::weights::WEIGHTS,
    ],
    module_names: &[
        (".hc_pre.hc_attn_layer.hc_", ".attn_hc."),
        (".hc_pre.hc_mlp_layer.hc_", ".ffn_hc."),
        (".hc_pre.hc_head.hc_head_", ".hc_head.hc_"),
        (".learnable_sink_param", ".sinks"),
        (".linear_gate.", ".gate_proj."),
    ],
    dropped: &["model.mtp_layers."],
    aliases: &[("num_local_experts", "n_routed_experts")],
    ..Family::USUAL
};
