//! Settings of Hunyuan 4; absent ones have the values of `HYV4Config`.

use crate::decoder::StreamsConfig;
use crate::families::deepseek_v3::config::{LatentSizes, SHARED, read_latent_rope};
use crate::families::deepseek_v32::config::{INDEXER, IndexerTypes, QUERY_LATENTS, indexer};
use crate::families::mixture::{MlpLayerTypes, SharedExperts, SigmoidRouter};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(262_144)),
    Setting::Group(&LatentSizes { query: Some(1536), key_value: 512, rotated: 64, plain: 192, value: Some(256) }),
    QUERY_LATENTS,
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(768)),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, |_, _| Ok(256)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Group(&SigmoidRouter { factor: 2.827, ..SigmoidRouter::UNGROUPED }),
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    Setting::Group(&MlpLayerTypes(None)),
    Setting::Rows(BLOCKS),
    Setting::Number("initializer_range", |c| &mut c.init_method_std, |_, _| Ok(0.006)),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: |fields, c| read_latent_rope(fields, c, false, RopeForm::USUAL), write: rope::write },
    Setting::Rows(INDEXER),
    size_or("index_n_heads", |c| &mut indexer(c).heads, |_, _| Ok(16)),
    Setting::Group(&IndexerTypes(2, 4)),
    Setting::Always(|c| {
        (c.output_gate, c.attention_sinks) = (Some(OutputGateForm::Element), true);
        (indexer(c).rotates_last, indexer(c).norm_epsilon) = (true, c.norm.epsilon);
        streams(c).sinkhorn_iterations = 0;
    }),
    size_or("hc_mult", |c| &mut streams(c).count, |_, _| Ok(4)),
    Setting::Number("hc_magnitude", |c| &mut streams(c).output_magnitude, |_, _| Ok(2.0)),
    Setting::Number("hc_eps", |c| &mut streams(c).epsilon, |_, _| Ok(1e-6)),
    LIMIT,
    Setting::Unused(&["layer_types", "head_dim", "qk_head_dim", "learnable_sink_init"]),
];

/// Residual streams of a decoder of a family that has several in every model.
pub(crate) fn streams(config: &mut DecoderConfig) -> &mut StreamsConfig {
    config.streams.get_or_insert_with(StreamsConfig::neutral)
}

/// Bound of the units of routed experts.
pub(crate) const LIMIT: Setting = Setting::Keys {
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
