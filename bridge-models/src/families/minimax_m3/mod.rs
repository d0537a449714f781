//! MiniMax-M3, the language model: attention of some layers to blocks of keys that an indexer
//! chooses for each group of heads, and MiniMax-M2's experts with GPT-OSS's unit and a shared
//! expert.

#[cfg(test)]
mod tests;

use super::gpt_oss::{read_clamp, write_clamp};
use super::minimax_m2::read_rope;
use super::mixture::{self, ExpertFactor, FACTOR, FirstDense, MlpLayerTypes, sigmoid_router};
use super::prelude::*;
use super::rows::ROWS_BESIDE_ACTIVATION;
use super::{llama, mixtral, qwen3};
use crate::decoder::{IndexerConfig, KeySource};
use crate::huggingface::windows::layers_of_two_types;

pub(super) static FAMILY: Family = Family {
    model_type: "minimax_m3_vl_text",
    architecture: "MiniMaxM3VLForCausalLM",
    settings: SETTINGS,
    weights: &[OWN, mixtral::APART, mixtral::SHARED, qwen3::QK_NORMS, mixture::STACKED, llama::WEIGHTS],
    module_names: &[
        (".block_sparse_moe.", ".mlp."),
        (".self_attn.index_q_", ".self_attn.indexer.q_"),
        (".self_attn.index_k_", ".self_attn.indexer.k_"),
    ],
    dropped: &["mtp.", "model.mtp."],
    aliases: &[("num_experts", "num_local_experts")],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `MiniMaxM3VLTextConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES_BESIDE_MLP),
    Setting::KeyValueHeads(4),
    head_size(128),
    positions(524_288),
    Setting::Rows(ROWS_BESIDE_ACTIVATION),
    Setting::Always(|c| {
        (c.norm.zero_centered_gamma, c.qk_layernorm) = (true, true);
        (c.activation, c.linear_offset) = (Activation::QuickGelu, 1.0);
        sigmoid_router(c);
    }),
    size_or("dense_intermediate_size", |c| &mut c.ffn_hidden_size, 12_288),
    size_or("intermediate_size", |c| &mut experts(c).ffn_hidden_size, 3072),
    size_or("shared_intermediate_size", shared_size, 3072),
    size_or("num_local_experts", |c| &mut experts(c).num_experts, 128),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 4),
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
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
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
    let chooses = |layer| config.indexer_of(layer).is_some();
    settings.insert("layer_types".into(), windows::names_of_layers(LAYER_TYPES, config.num_layers, chooses));
    let Some(indexer) = config.indexer else { return };
    let block_size = indexer.block_size.unwrap_or(1);
    let sizes = [indexer.heads, indexer.head_size, block_size, indexer.topk / block_size, indexer.local_blocks];
    settings.extend(SIZES.iter().zip(sizes).map(|((key, ..), size)| ((*key).to_owned(), json!(size))));
}

/// Names of the router's bias and of the indexer, and of matrices that the state of a module has in
/// one.
const OWN: &[WeightRule] = &[
    layer!("mlp.router.expert_bias", "block_sparse_moe.e_score_correction_bias"),
    layer!("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias").stacked(),
    layer!("mlp.linear_fc1.weight", "mlp.gate_up_proj.weight").stacked(),
    layer!("mlp.shared_experts.linear_fc1.weight", "mlp.shared_experts.gate_up_proj.weight").stacked(),
    layer!("self_attention.core_attention.indexer.linear_wq_b.weight", "self_attn.index_q_proj.weight"),
    layer!("self_attention.core_attention.indexer.q_norm.weight", "self_attn.index_q_norm.weight"),
    layer!("self_attention.core_attention.indexer.linear_wk.weight", "self_attn.index_k_proj.weight"),
    layer!("self_attention.core_attention.indexer.k_norm.weight", "self_attn.index_k_norm.weight"),
];
