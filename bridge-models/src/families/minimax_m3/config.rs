//! Settings of MiniMax-M3; absent ones have the values of `MiniMaxM3VLTextConfig`.

use crate::decoder::{IndexerConfig, KeySource};
use crate::families::gpt_oss::config::{read_clamp, write_clamp};
use crate::families::llama::config::ROWS_BESIDE_ACTIVATION;
use crate::families::minimax_m2::config::read_rope;
use crate::families::mixture::{ExpertFactor, FACTOR, FirstDense, MlpLayerTypes, sigmoid_router};
use crate::families::prelude::*;
use crate::huggingface::windows::layers_of_two_types;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_BESIDE_MLP),
    Setting::KeyValueHeads(4),
    size_or("head_dim", |c| &mut c.kv_channels, |_, _| Ok(128)),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(524_288)),
    Setting::Rows(ROWS_BESIDE_ACTIVATION),
    Setting::Always(|c| {
        (c.norm.zero_centered_gamma, c.qk_layernorm) = (true, true);
        (c.activation, c.linear_offset) = (Activation::QuickGelu, 1.0);
        sigmoid_router(c);
    }),
    size_or("dense_intermediate_size", |c| &mut c.ffn_hidden_size, |_, _| Ok(12_288)),
    size_or("intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(3072)),
    size_or("shared_intermediate_size", shared_size, |_, _| Ok(3072)),
    size_or("num_local_experts", |c| &mut experts(c).num_experts, |_, _| Ok(128)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(4)),
    Setting::Group(&ExpertFactor(FACTOR, 2.0)),
    Setting::Group(&MlpLayerTypes(Some(FirstDense("first_k_dense_replace", 0)))),
    Setting::Keys {
        read: |fields, c| {
            let layers = marked(fields, "moe_layer_freq")?.filter(|_| fields.get("mlp_layer_types").is_none());
            layers.into_iter().for_each(|layers| experts(c).layers = LayerPattern::from_list(layers));
            Ok(())
        },
        write: |_, _| {},
    },
    Setting::Keys { read: read_clamp, write: write_clamp },
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: rope::write_with_percent },
    Setting::Keys { read: read_indexer, write: write_indexer },
    Setting::Only("swiglu_alpha", || json!(1.702)),
    Setting::Only("router_jitter_noise", || json!(0.0)),
    // Published files say "swigluoai", others "silu"; it is the same unit.
    Setting::Unused(&["hidden_act"]),
];

fn shared_size(config: &mut DecoderConfig) -> &mut usize {
    experts(config).shared_expert_intermediate_size.get_or_insert(0)
}

/// Names of a layer that sees all keys, and of one that chooses.
const LAYER_TYPES: [&str; 2] = ["full_attention", "minimax_m3_sparse"];

/// Sizes of the indexer: keys, keys in the table of published files, and values of absent keys.
const SIZES: [(&str, &str, usize); 5] = [
    ("index_n_heads", "sparse_num_index_heads", 4),
    ("index_head_dim", "sparse_index_dim", 128),
    ("index_block_size", "sparse_block_size", 128),
    ("index_topk_blocks", "sparse_topk_blocks", 16),
    ("index_local_blocks", "sparse_local_block", 1),
];

/// The layers that a list has a number above 0 for.
fn marked(fields: &Fields, key: &str) -> Result<Option<Vec<bool>>, HfError> {
    Ok(fields.layers(key)?.map(|numbers| numbers.into_iter().map(|number| number > 0).collect()))
}

fn read_indexer(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let published = fields.filled_table("sparse_attention_config", "sparse_attention_config.")?;
    let in_table = published.map(|table| marked(&table, "sparse_attention_freq")).transpose()?.flatten();
    let sparse = layers_of_two_types(fields, "layer_types", LAYER_TYPES, config.num_layers)?.or(in_table);
    let sparse = sparse.unwrap_or_else(|| vec![false; config.num_layers]);
    let mut sizes = [0; 5];
    for (index, (key, other, usual)) in SIZES.into_iter().enumerate() {
        let published = published.filter(|table| table.has(other));
        let (place, key) = published.map_or((*fields, key), |table| (table, other));
        // No block need be local.
        let is_zero = index == 4 && place.get(key).and_then(Value::as_u64) == Some(0);
        sizes[index] = if is_zero { 0 } else { place.size(key)?.unwrap_or(usual) };
    }
    if !sparse.contains(&true) {
        return Ok(());
    }
    let [heads, head_size, block_size, blocks, local_blocks] = sizes;
    config.indexer = Some(IndexerConfig {
        heads,
        head_size,
        topk: blocks.saturating_mul(block_size),
        block_size: Some(block_size),
        local_blocks,
        norm_epsilon: config.norm.epsilon,
        ..IndexerConfig::neutral()
    });
    let source = |chooses: bool| if chooses { KeySource::Chosen } else { KeySource::All };
    config.key_sources = KeySource::from_list(sparse.into_iter().map(source).collect());
    Ok(())
}

fn write_indexer(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let name = |layer| LAYER_TYPES[usize::from(config.indexer_of(layer).is_some())];
    settings.insert("layer_types".into(), json!((0..config.num_layers).map(name).collect::<Vec<_>>()));
    let Some(indexer) = config.indexer else { return };
    let block_size = indexer.block_size.unwrap_or(1);
    let sizes = [indexer.heads, indexer.head_size, block_size, indexer.topk / block_size, indexer.local_blocks];
    settings.extend(SIZES.iter().zip(sizes).map(|((key, ..), size)| ((*key).to_owned(), json!(size))));
}
