//! Settings of AFMoE; absent ones have the values of `AfmoeConfig`.

use crate::families::mixture::{read_factor, read_shared, sigmoid_router, write_factor, write_shared};
use crate::families::prelude::*;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(128)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(16_384)),
    Setting::Always(|c| {
        c.residual.norms = NormPlacement::Sandwich;
        c.qk_layernorm = true;
        c.output_gate = Some(OutputGateForm::Element);
        sigmoid_router(c);
    }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(1408)),
    size_or("num_experts", |c| &mut experts(c).num_experts, |_, _| Ok(64)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(6)),
    Setting::Keys { read: read_layers, write: write_layers },
    Setting::Keys {
        read: |fields, c| read_shared(fields, c, SHARED, Some(2)),
        write: |c, settings| write_shared(c, settings, SHARED),
    },
    Setting::Keys {
        read: |fields, c| read_factor(fields, c, FACTOR, 1.0),
        write: |c, settings| write_factor(c, settings, FACTOR),
    },
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys {
        read: |fields, c| {
            let is_scaled = fields.bool("mup_enabled")?.unwrap_or(false);
            c.embedding_multiplier = if is_scaled { (c.hidden_size as f64).sqrt() } else { 1.0 };
            Ok(())
        },
        write: |c, settings| {
            // Another factor is read back as another, and refused so.
            settings.insert("mup_enabled".into(), json!(c.embedding_multiplier != 1.0));
        },
    },
    Setting::Keys {
        read: |fields, c| {
            let pattern = fields.size("global_attn_every_n_layers")?.unwrap_or(4);
            windows::read_pattern(fields, c, 1024, pattern)
        },
        write: windows::write_pattern,
    },
    Setting::Keys { read: read_rope, write: rope::write },
];

/// The first layers have no experts.
fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let dense = fields.get(DENSE).map_or(Some(1), Value::as_u64);
    let dense = dense.ok_or_else(|| fields.error(DENSE, "something else", "an integer of at least 0"))?;
    let layers = (0..config.num_layers).map(|layer| layer as u64 >= dense).collect();
    experts(config).layers = LayerPattern::from_list(layers);
    Ok(())
}

fn write_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let first = (0..config.num_layers).find(|layer| config.moe_layer(*layer).is_some());
    settings.insert(DENSE.into(), json!(first.unwrap_or(config.num_layers)));
}

const DENSE: &str = "num_dense_layers";
const SHARED: &str = "num_shared_experts";
const FACTOR: &str = "route_scale";

/// Layers without a window are not rotated.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    rope::read(fields, config, RopeForm::USUAL)?;
    let without = windows::windowed_layers(config).into_iter().map(|has_window| !has_window).collect();
    match LayerPattern::from_list(without) {
        LayerPattern::All => config.position_embedding = PositionEmbedding::None,
        layers => config.no_rope_layers = layers,
    }
    Ok(())
}
