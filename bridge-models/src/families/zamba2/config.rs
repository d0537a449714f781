//! Settings of Zamba2; absent ones have the values of `Zamba2Config`.

use crate::decoder::SharedConfig;
use crate::families::mamba2::mamba;
use crate::families::pairs::{self, MixerNames, expanded, write_expanded};
use crate::families::prelude::*;
use crate::families::rows::ROWS_BESIDE_ACTIVATION;
use crate::huggingface::settings::groups_divide_heads;

pub(super) const SETTINGS: &[Setting] = &[
    size("vocab_size", |c| &mut c.vocab_size),
    size("hidden_size", |c| &mut c.hidden_size),
    size("num_hidden_layers", |c| &mut c.num_layers),
    size_from("intermediate_size", |c| &mut c.ffn_hidden_size, |_, c| Ok(4 * c.hidden_size)),
    size_or("num_attention_heads", |c| &mut c.num_attention_heads, 32),
    size_from("num_key_value_heads", |c| &mut c.num_query_groups, |_, c| Ok(c.num_attention_heads)),
    Setting::Rule(groups_divide_heads),
    Setting::Keys { read: read_positions, write: write_positions },
    Setting::Keys { read: read_layers, write: write_layers },
    size_or("num_mem_blocks", |c| &mut shared(c).num_blocks, 1),
    size_or("adapter_rank", |c| &mut shared(c).adapter_rank, 128),
    Setting::Keys { read: read_heads, write: write_heads },
    Setting::Rows(ROWS_BESIDE_ACTIVATION),
    // Heads are twice as wide as usual, and scores are not smaller for it.
    Setting::Always(|c| c.softmax_scale = 1.0 / (c.kv_channels as f64 / 2.0).sqrt()),
    Setting::Activation("hidden_act", |c| &mut c.activation, Activation::Gelu),
    Setting::Switch("add_bias_linear", |c| &mut c.mlp_bias, false),
    rms_norm_epsilon(1e-5),
    tied_embeddings(true),
    Setting::Rule(|fields, c| {
        let layers = c.hybrid.iter().flat_map(|hybrid| &hybrid.layers);
        let users = layers.filter(|block| **block == HybridBlock::SharedMamba).count();
        let is_shared = c.hybrid.as_ref().is_some_and(|hybrid| users > hybrid.shared.num_blocks);
        let expected = "true: with false transformers shares no block either";
        fields.require(c.share_embeddings_and_output_weights || !is_shared, "tie_word_embeddings", "false", expected)
    }),
    Setting::Keys { read: read_rope, write: write_rope },
    size_or("mamba_d_state", |c| &mut mamba(c).state_size, 64),
    size_or("mamba_d_conv", |c| &mut mamba(c).conv_kernel, 4),
    size_or("mamba_ngroups", |c| &mut mamba(c).num_groups, 1),
    size_or("n_mamba_heads", |c| &mut mamba(c).num_heads, 8),
    size_or("chunk_size", |c| &mut mamba(c).chunk_size, 256),
    Setting::Number("time_step_min", |c| &mut mamba(c).least_time_step, 1e-3),
    Setting::Keys { read: read_mamba, write: write_expanded },
    // They follow from others, choose a kernel, or are for initial values; transformers has the
    // convolution's bias in any case.
    Setting::Unused(&[
        "attention_head_dim",
        "attention_hidden_size",
        "hybrid_layer_ids",
        "kv_channels",
        "mamba_headdim",
        "num_logits_to_keep",
        "num_query_groups",
        "time_step_floor",
        "time_step_max",
        "use_conv_bias",
        "use_mamba_kernels",
        "use_mem_eff_path",
    ]),
];

fn shared(config: &mut DecoderConfig) -> &mut SharedConfig {
    &mut config.hybrid.get_or_insert_with(|| HybridConfig::new(Vec::new())).shared
}

const LONG: &str = "use_long_context";
const POSITIONS: &str = "max_position_embeddings";

fn read_positions(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let positions = fields.size(POSITIONS)?.unwrap_or(4096);
    config.max_position_embeddings = if fields.bool(LONG)?.unwrap_or(false) { 16_384 } else { positions };
    Ok(())
}

fn write_positions(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert(POSITIONS.into(), json!(config.max_position_embeddings));
    settings.insert(LONG.into(), json!(false));
}

const LAYERS: &str = "layers_block_type";
const NAMES: MixerNames = &[pairs::MAMBA, (HybridBlock::SharedMamba, &["hybrid"])];

/// The layers that the file names; by default the layers with these numbers use a shared block.
fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let usual = |layer| if [6, 12, 18, 24, 30, 36, 42, 47, 51].contains(&layer) { NAMES[1].0 } else { NAMES[0].0 };
    let named = pairs::listed_blocks(fields, LAYERS, NAMES)?;
    let layers = named.unwrap_or_else(|| (0..54).map(usual).collect());
    let (count, expected) = (layers.len(), format!("one entry for each of {} layers", config.num_layers));
    fields.require(count == config.num_layers, LAYERS, &format!("{count} layers"), &expected)?;
    config.hybrid = Some(HybridConfig::new(layers));
    Ok(())
}

fn write_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let layers = config.hybrid.iter().flat_map(|hybrid| &hybrid.layers);
    settings.insert(LAYERS.into(), pairs::block_names(layers.copied(), NAMES));
}

const ADAPTERS: &str = "use_shared_attention_adapter";

/// Heads share twice the model's width.
fn read_heads(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let (width, heads) = (2 * config.hidden_size, config.num_attention_heads);
    let expected = format!("a divisor of twice hidden_size ({width})");
    fields.require(width.is_multiple_of(heads), "num_attention_heads", &heads.to_string(), &expected)?;
    (config.kv_channels, config.gated_linear_unit) = (width / heads, true);
    shared(config).attention_adapters = fields.bool(ADAPTERS)?.unwrap_or(false);
    let has_own_keys = !shared(config).attention_adapters || config.num_query_groups == heads;
    fields.require(has_own_keys, ADAPTERS, "true", "false with fewer key and value heads than heads")
}

fn write_heads(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let adapters = config.hybrid.as_ref().is_some_and(|hybrid| hybrid.shared.attention_adapters);
    settings.insert(ADAPTERS.into(), json!(adapters));
}

const ROTATES: &str = "use_mem_rope";

fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let rotates = fields.bool(ROTATES)?.unwrap_or(false) && config.has_block(HybridBlock::SharedMamba);
    ["rope_theta", "rope_scaling", "rope_parameters"].iter().for_each(|key| fields.ask(key));
    if rotates { rope::read(fields, config, RopeForm::USUAL) } else { Ok(()) }
}

fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let rotates = matches!(config.position_embedding, PositionEmbedding::Rope(_));
    settings.insert(ROTATES.into(), json!(rotates));
    if rotates {
        rope::write(config, settings);
    }
}

/// Heads that share a multiple of the model's width, biases as in the other blocks, and a norm with
/// an epsilon of its own.
fn read_mamba(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let (inner, heads) = (expanded(fields, config)?, mamba(config).num_heads);
    let expected = format!("a divisor of mamba_expand x hidden_size ({inner})");
    fields.require(inner.is_multiple_of(heads), "n_mamba_heads", &heads.to_string(), &expected)?;
    let (bias, epsilon) = (config.mlp_bias, config.norm.epsilon);
    let mamba = mamba(config);
    (mamba.head_size, mamba.proj_bias) = (inner / heads, bias);
    mamba.norm_epsilon = Some(1e-5).filter(|own| *own != epsilon);
    let divides = heads.is_multiple_of(mamba.num_groups);
    fields.require(divides, "mamba_ngroups", &mamba.num_groups.to_string(), &format!("a divisor of {heads} heads"))
}
