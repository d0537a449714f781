//! Layers of a mixer and a feed-forward block, each with its norm: in a decoder whose layers have
//! one block each, two of its layers.

use crate::families::mamba2::{TIME_STEP_LIMIT, mamba, silu};
use crate::families::prelude::*;

const NUM_LAYERS: &str = "num_hidden_layers";

/// Makes two layers of each of the layers that `num_hidden_layers` counts: its mixer, then its
/// feed-forward block.
pub(super) fn set_layers(config: &mut DecoderConfig, mixers: &[HybridBlock], has_experts: impl Fn(usize) -> bool) {
    let feed_forward = |layer| if has_experts(layer) { HybridBlock::Moe } else { HybridBlock::Mlp };
    let pairs = mixers.iter().enumerate().flat_map(|(layer, mixer)| [*mixer, feed_forward(layer)]);
    let layers: Vec<HybridBlock> = pairs.collect();
    config.num_layers = layers.len();
    if layers.contains(&HybridBlock::Moe) {
        let with_experts = layers.iter().map(|block| *block == HybridBlock::Moe).collect();
        experts(config).layers = LayerPattern::from_list(with_experts);
    } else {
        config.moe = None;
    }
    match &mut config.hybrid {
        Some(hybrid) => hybrid.layers = layers,
        None => config.hybrid = Some(HybridConfig::new(layers)),
    }
}

/// Takes the rotation from a decoder without a layer that has attention. Layers and positions are
/// set before.
pub(super) fn rotates_attention_alone(config: &mut DecoderConfig) {
    if !layers(config).iter().any(|[mixer, _]| *mixer == HybridBlock::Attention) {
        config.position_embedding = PositionEmbedding::None;
    }
}

/// The mixer and the feed-forward block of each layer.
pub(super) fn layers(config: &DecoderConfig) -> Vec<[HybridBlock; 2]> {
    let layers = config.hybrid.as_ref().map_or(&[][..], |hybrid| &hybrid.layers);
    layers.as_chunks::<2>().0.to_vec()
}

/// Writes the number of layers.
pub(super) fn write_num_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert(NUM_LAYERS.into(), json!(layers(config).len()));
}

/// Names of mixers in lists of layers; the first name of each is the one written.
pub(super) type MixerNames = &'static [(HybridBlock, &'static [&'static str])];

/// Names of attention.
pub(super) const ATTENTION: (HybridBlock, &[&str]) = (HybridBlock::Attention, &["full_attention", "attention"]);
/// Names of Mamba-2's block.
pub(super) const MAMBA: (HybridBlock, &[&str]) = (HybridBlock::Mamba, &["linear_attention", "mamba"]);
/// Names of the short convolution.
pub(super) const SHORT_CONV: (HybridBlock, &[&str]) = (HybridBlock::ShortConv, &["conv"]);

const LAYER_TYPES: &str = "layer_types";

/// The mixers that `layer_types` lists; `None` if it is absent.
pub(super) fn listed_mixers(
    fields: &Fields,
    config: &DecoderConfig,
    known: MixerNames,
) -> Result<Option<Vec<HybridBlock>>, HfError> {
    let mixers = listed_blocks(fields, LAYER_TYPES, known)?;
    let has_all = mixers.as_ref().is_none_or(|mixers| mixers.len() == config.num_layers);
    let expected = format!("one entry for each of {} layers", config.num_layers);
    fields.require(has_all, LAYER_TYPES, "another number of entries", &expected)?;
    Ok(mixers)
}

/// The blocks that the list of names under `key` means; `None` if it is absent.
pub(super) fn listed_blocks(
    fields: &Fields,
    key: &str,
    known: MixerNames,
) -> Result<Option<Vec<HybridBlock>>, HfError> {
    let Some(types) = fields.get(key) else { return Ok(None) };
    let block = |name: &Value| known.iter().find(|(_, names)| names.iter().any(|known| name == known)).map(|(b, _)| *b);
    let blocks = types.as_array().and_then(|types| types.iter().map(block).collect::<Option<Vec<_>>>());
    blocks.map(Some).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(_, names)| names[0]).collect();
        fields.error(key, &types.to_string(), &format!("a list of {}", names.join(" or ")))
    })
}

/// The mixers of a file that lists the numbers of layers with attention under `key`, with `other`
/// in all other layers; `None` if it is absent. Numbers beyond the last layer mean nothing.
pub(super) fn numbered_mixers(
    fields: &Fields,
    config: &DecoderConfig,
    key: &str,
    other: HybridBlock,
) -> Result<Option<Vec<HybridBlock>>, HfError> {
    let Some(numbers) = fields.layers(key)? else { return Ok(None) };
    let mixer = |layer| if numbers.contains(&layer) { HybridBlock::Attention } else { other };
    Ok(Some((0..config.num_layers).map(mixer).collect()))
}

/// Writes the mixers by their names.
pub(super) fn write_mixers(config: &DecoderConfig, settings: &mut Map<String, Value>, known: MixerNames) {
    let mixers = layers(config).into_iter().map(|[mixer, _]| mixer);
    settings.insert(LAYER_TYPES.into(), block_names(mixers, known));
}

/// The list of these blocks' names. A block without a name changes when
/// the export is read back, so that it is refused.
pub(super) fn block_names(blocks: impl Iterator<Item = HybridBlock>, known: MixerNames) -> Value {
    let name = |block: HybridBlock| known.iter().find(|(known, _)| *known == block).unwrap_or(&known[0]).1[0];
    json!(blocks.map(name).collect::<Vec<&str>>())
}

/// A period of layers and an offset in it: their keys and defaults.
pub(super) struct Period {
    pub keys: [&'static str; 2],
    pub usual: [usize; 2],
}

impl Period {
    /// Reads a period and an offset below it.
    pub fn read(&self, fields: &Fields) -> Result<[usize; 2], HfError> {
        let [period_key, offset_key] = self.keys;
        let period = fields.size(period_key)?.unwrap_or(self.usual[0]);
        let offset = fields.count(offset_key)?.unwrap_or(self.usual[1]);
        let expected = format!("an integer below {period_key} ({period})");
        fields.require(offset < period, offset_key, &offset.to_string(), &expected)?;
        Ok([period, offset])
    }

    /// Writes a period and an offset that mean these layers. If none do, others are read back, and
    /// the decoder is refused so.
    pub fn write(&self, layers: &[bool], settings: &mut Map<String, Value>) {
        let count = layers.len();
        let offset = layers.iter().position(|layer| *layer).unwrap_or(count);
        let means = |period: &usize| layers.iter().enumerate().all(|(i, layer)| *layer == (i % period == offset));
        let mut periods =
            std::iter::once(self.usual[0]).filter(|period| *period > offset).chain(offset + 1..=count + 1);
        let period = periods.find(means).unwrap_or(count + 1);
        settings.insert(self.keys[0].into(), json!(period));
        settings.insert(self.keys[1].into(), json!(offset));
    }
}

/// The block of Mamba-2 under the names that hybrids have, as wide as a multiple of the stream. The
/// layers are set before.
pub(super) const MAMBA_BLOCK: Setting = Setting::Keys {
    read: |fields, config| {
        MAMBA_SIZES.iter().try_for_each(|row| row.read(fields, config))?;
        let inner = expanded(fields, config)?;
        read_head_size(fields, config, inner)
    },
    write: |config, settings| {
        if config.has_state_space() {
            MAMBA_SIZES.iter().for_each(|row| row.write(&mut config.clone(), settings));
            write_head_size(config, settings);
        } else {
            // transformers compares these sizes in models without such layers too.
            settings.insert("mamba_n_heads".into(), json!(1));
            settings.insert(HEAD_SIZE.into(), json!("auto"));
        }
    },
};

/// Sizes and switches of Mamba-2's block but the size of its heads.
pub(super) const MAMBA_SIZES: &[Setting] = &[
    size_or("mamba_n_heads", |c| &mut mamba(c).num_heads, 128),
    size_or("mamba_n_groups", |c| &mut mamba(c).num_groups, 1),
    size_or("mamba_d_state", |c| &mut mamba(c).state_size, 256),
    size_or("mamba_chunk_size", |c| &mut mamba(c).chunk_size, 256),
    TIME_STEP_LIMIT,
    Setting::Rows(MAMBA_CONVOLUTION),
];

/// Settings that the blocks of Mamba-2 and of the first Mamba share.
pub(super) const MAMBA_CONVOLUTION: &[Setting] = &[
    size_or("mamba_d_conv", |c| &mut mamba(c).conv_kernel, 4),
    Setting::Switch("mamba_conv_bias", |c| &mut mamba(c).conv_bias, true),
    Setting::Switch("mamba_proj_bias", |c| &mut mamba(c).proj_bias, false),
    Setting::Rule(|fields, config| if config.has_state_space() { silu(fields, "hidden_act") } else { Ok(()) }),
];

const EXPAND: &str = "mamba_expand";

/// The width of a block that is a multiple of the stream's.
pub(super) fn expanded(fields: &Fields, config: &DecoderConfig) -> Result<usize, HfError> {
    Ok(fields.size(EXPAND)?.unwrap_or(2).saturating_mul(config.hidden_size))
}

/// Writes the width of the block as a multiple of the stream's. Another width is read back as
/// another, and refused so.
pub(super) fn write_expanded(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let inner = config.hybrid.as_ref().map_or(0, |hybrid| hybrid.mamba.inner_size());
    settings.insert(EXPAND.into(), json!((inner / config.hidden_size.max(1)).max(1)));
}

const HEAD_SIZE: &str = "mamba_d_head";

/// Reads the size of a head of a block of `inner` channels; "auto" is equal parts.
pub(super) fn read_head_size(fields: &Fields, config: &mut DecoderConfig, inner: usize) -> Result<(), HfError> {
    let heads = mamba(config).num_heads;
    let is_auto = fields.get(HEAD_SIZE).is_none_or(|size| size == "auto");
    let head_size = if is_auto { inner / heads } else { fields.size(HEAD_SIZE)?.unwrap_or(1) };
    let expected = format!("{inner} channels over {heads} heads (mamba_n_heads)");
    fields.require(head_size.checked_mul(heads) == Some(inner), HEAD_SIZE, &head_size.to_string(), &expected)?;
    mamba(config).head_size = head_size;
    Ok(())
}

/// Writes the size of a head and the width of the block.
pub(super) fn write_head_size(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let head_size = config.hybrid.as_ref().map_or(1, |hybrid| hybrid.mamba.head_size);
    settings.insert(HEAD_SIZE.into(), json!(head_size));
    write_expanded(config, settings);
}

/// The mixers, the blocks of Mamba-2 and of the first Mamba and attention, with their norms.
pub(super) const MIXER_WEIGHTS: &[WeightRule] = &[
    half_layer!("norm.weight", "input_layernorm.weight"),
    half_layer!("input_layernorm.weight", "input_layernorm.weight"),
    half_layer!("mixer.in_proj.weight", "mamba.in_proj.weight"),
    half_layer!("mixer.in_proj.bias", "mamba.in_proj.bias"),
    half_layer!("mixer.conv1d.weight", "mamba.conv1d.weight").fused(Fusion::Convolution),
    half_layer!("mixer.conv1d.bias", "mamba.conv1d.bias"),
    half_layer!("mixer.A_log", "mamba.A_log"),
    half_layer!("mixer.D", "mamba.D"),
    half_layer!("mixer.dt_bias", "mamba.dt_bias").only(|config| config.has_block(HybridBlock::Mamba)),
    half_layer!("mixer.norm.weight", "mamba.norm.weight"),
    half_layer!("mixer.out_proj.weight", "mamba.out_proj.weight"),
    half_layer!("mixer.out_proj.bias", "mamba.out_proj.bias"),
    half_layer!("mixer.x_proj.weight", "mamba.x_proj.weight"),
    half_layer!("mixer.dt_layernorm.weight", "mamba.dt_layernorm.weight"),
    half_layer!("mixer.b_layernorm.weight", "mamba.b_layernorm.weight"),
    half_layer!("mixer.c_layernorm.weight", "mamba.c_layernorm.weight"),
    half_layer!("mixer.dt_proj.weight", "mamba.dt_proj.weight"),
    half_layer!("mixer.dt_bias", "mamba.dt_proj.bias"),
    half_layer!(
        "self_attention.linear_qkv.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight"
    )
    .fused(Fusion::Qkv),
    half_layer!(
        "self_attention.linear_qkv.bias",
        "self_attn.q_proj.bias",
        "self_attn.k_proj.bias",
        "self_attn.v_proj.bias"
    )
    .fused(Fusion::Qkv),
    half_layer!("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
    half_layer!("self_attention.linear_proj.bias", "self_attn.o_proj.bias"),
];

/// The feed-forward block with its norm, and the norm at the end.
pub(super) const FEED_FORWARD_WEIGHTS: &[WeightRule] = &[
    half_layer!("pre_mlp_layernorm.weight", "pre_ff_layernorm.weight"),
    half_layer!("mlp.linear_fc1.weight", "feed_forward.gate_proj.weight", "feed_forward.up_proj.weight")
        .fused(Fusion::GateUp),
    half_layer!("mlp.linear_fc2.weight", "feed_forward.down_proj.weight"),
    half_layer!("mlp.linear_fc1.bias", "feed_forward.gate_proj.bias", "feed_forward.up_proj.bias")
        .fused(Fusion::GateUp),
    half_layer!("mlp.linear_fc2.bias", "feed_forward.down_proj.bias"),
    rule("decoder.final_layernorm.weight", &["model.final_layernorm.weight"]),
];
