//! Hunyuan 4: DeepSeek-V3.2 with sinks, gates on attention's output, several residual streams, and
//! bounds of the units of experts. Layers share chosen keys as GLM-5's do.

#[cfg(test)]
mod tests;

use super::deepseek_v3::config::{LatentSizes, SHARED, read_latent_rope};
use super::deepseek_v32::{INDEXER, IndexerTypes, QUERY_LATENTS, indexer};
use super::mixture::{self, MlpLayerTypes, SharedExperts, SigmoidRouter};
use super::prelude::*;
use super::{deepseek_v3, deepseek_v32, llama};
use crate::decoder::StreamsConfig;

pub(super) static FAMILY: Family = Family {
    model_type: "hy_v4",
    architecture: "HYV4ForCausalLM",
    settings: SETTINGS,
    weights: &[
        OWN,
        deepseek_v32::INDEXER_WEIGHTS,
        deepseek_v3::weights::LATENT_ATTENTION,
        mixture::SHARED,
        mixture::APART,
        llama::WEIGHTS,
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

/// Settings; absent ones have the values of `HYV4Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    positions(262_144),
    Setting::Group(&LatentSizes { query: Some(1536), key_value: 512, rotated: 64, plain: 192, value: Some(256) }),
    QUERY_LATENTS,
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 768),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 256),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    Setting::Group(&SigmoidRouter { factor: 2.827, ..SigmoidRouter::UNGROUPED }),
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    Setting::Group(&MlpLayerTypes(None)),
    Setting::Rows(BLOCKS),
    initializer_range(0.006),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Keys { read: |fields, c| read_latent_rope(fields, c, false, RopeForm::USUAL), write: rope::write },
    Setting::Rows(INDEXER),
    size_or("index_n_heads", |c| &mut indexer(c).heads, 16),
    Setting::Group(&IndexerTypes(2, 4)),
    Setting::Always(|c| {
        (c.output_gate, c.attention_sinks) = (Some(OutputGateForm::Element), true);
        (indexer(c).rotates_last, indexer(c).norm_epsilon) = (true, c.norm.epsilon);
        streams(c).sinkhorn_iterations = 0;
    }),
    size_or("hc_mult", |c| &mut streams(c).count, 4),
    Setting::Number("hc_magnitude", |c| &mut streams(c).output_magnitude, 2.0),
    Setting::Number("hc_eps", |c| &mut streams(c).epsilon, 1e-6),
    LIMIT,
    Setting::Unused(&["layer_types", "head_dim", "qk_head_dim", "learnable_sink_init"]),
];

/// Residual streams of a decoder of a family that has several in every model.
pub(super) fn streams(config: &mut DecoderConfig) -> &mut StreamsConfig {
    config.streams.get_or_insert_with(StreamsConfig::neutral)
}

/// Bound of the units of routed experts.
const LIMIT: Setting = Setting::Keys {
    read: |fields, config| {
        let limit = fields.number("swiglu_limit")?.unwrap_or(10.0);
        fields.require(limit > 0.0, "swiglu_limit", &limit.to_string(), "a number above 0")?;
        experts(config).activation_clamp = Some(limit);
        Ok(())
    },
    write: |config, settings| {
        let limit = config.moe.as_ref().and_then(|moe| moe.activation_clamp);
        settings.extend(limit.map(|limit| ("swiglu_limit".to_owned(), json!(limit))));
    },
};

/// Names of streams, sinks and gates. All experts of a layer are in one tensor.
const OWN: &[WeightRule] = &[
    layer!("self_attention_hyper_connection.weight", "hc_pre.hc_attn_layer.hc_fn"),
    layer!("self_attention_hyper_connection.bias", "hc_pre.hc_attn_layer.hc_base"),
    layer!("self_attention_hyper_connection.scale", "hc_pre.hc_attn_layer.hc_scale"),
    layer!("mlp_hyper_connection.weight", "hc_pre.hc_mlp_layer.hc_fn"),
    layer!("mlp_hyper_connection.bias", "hc_pre.hc_mlp_layer.hc_base"),
    layer!("mlp_hyper_connection.scale", "hc_pre.hc_mlp_layer.hc_scale"),
    rule("decoder.final_hyper_connection.weight", &["model.hc_pre.hc_head.hc_head_fn"]),
    rule("decoder.final_hyper_connection.bias", &["model.hc_pre.hc_head.hc_head_base"]),
    rule("decoder.final_hyper_connection.scale", &["model.hc_pre.hc_head.hc_head_scale"]),
    layer!("self_attention.core_attention.softmax_offset", "self_attn.learnable_sink_param"),
    layer!("self_attention.linear_gate.weight", "self_attn.linear_gate.weight"),
    layer!("mlp.linear_fc1.weight", "mlp.linear_gate.weight", "mlp.up_proj.weight").fused(Fusion::GateUp),
    layer!(
        "mlp.shared_experts.linear_fc1.weight",
        "mlp.shared_experts.linear_gate.weight",
        "mlp.shared_experts.up_proj.weight"
    )
    .fused(Fusion::GateUp),
    layer!("mlp.experts.local_experts.{}.linear_fc1.weight", "mlp.experts.gate_up_proj"),
    layer!("mlp.experts.local_experts.{}.linear_fc2.weight", "mlp.experts.down_proj"),
];
