//! DBRX: LayerNorm without biases, a limit on queries, keys and values, and experts in every layer,
//! whose rows are all in three matrices.

#[cfg(test)]
mod tests;

use super::prelude::*;
use super::rows::EqualHeads;
use crate::huggingface::fields::{activation_called, activation_name};

pub(super) static FAMILY: Family = Family {
    model_type: "dbrx",
    architecture: "DbrxForCausalLM",
    settings: SETTINGS,
    weights: &[WEIGHTS],
    prefix: "transformer.",
    aliases: &[
        ("num_attention_heads", "n_heads"),
        ("hidden_size", "d_model"),
        ("num_hidden_layers", "n_layers"),
        ("max_position_embeddings", "max_seq_len"),
    ],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `DbrxConfig` and of its two tables. Jitter of the
/// router and the weight of its loss are of training, so that a recipe has them.
const SETTINGS: &[Setting] = &[
    size("vocab_size", |c| &mut c.vocab_size),
    size_or("d_model", |c| &mut c.hidden_size, 2048),
    size_or("n_heads", |c| &mut c.num_attention_heads, 16),
    size_or("n_layers", |c| &mut c.num_layers, 24),
    size_or("max_seq_len", |c| &mut c.max_position_embeddings, 2048),
    Setting::Group(&EqualHeads { width: "d_model", heads: "n_heads" }),
    Setting::Always(|c| {
        (c.norm.kind, c.norm.epsilon) = (Normalization::LayerNormNoBias, 1e-5);
        c.gated_linear_unit = true;
    }),
    USUAL_SOFTMAX_SCALE,
    initializer_range(0.02),
    Setting::Number("resid_pdrop", |c| &mut c.hidden_dropout, 0.0),
    Setting::Only("tie_word_embeddings", || json!(false)),
    Setting::Keys { read: read_attention, write: write_attention },
    Setting::Keys { read: read_experts, write: write_experts },
    // transformers drops nothing of the embedding; the number of key heads follows from a table.
    Setting::Unused(&["emb_pdrop", "num_key_value_heads"]),
];

const ATTENTION: &str = "attn_config";
const FEED_FORWARD: &str = "ffn_config";

/// The table of attention, and the rotation. Older files have its base in that table.
fn read_attention(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let absent = Map::new();
    let table = fields.table(ATTENTION, "attn_config.")?.unwrap_or(Fields::from_table("attn_config.", &absent));
    config.attention_dropout = table.number("attn_pdrop")?.unwrap_or(0.0);
    config.clip_qkv = table.number("clip_qkv")?;
    let (heads, groups) = (config.num_attention_heads, table.size("kv_n_heads")?.unwrap_or(1));
    let expected = format!("a divisor of n_heads ({heads})");
    table.require(heads.is_multiple_of(groups), "kv_n_heads", &groups.to_string(), &expected)?;
    config.num_query_groups = groups;
    let theta = table.number("rope_theta")?.unwrap_or(RopeForm::USUAL.theta);
    rope::read(fields, config, RopeForm { theta, ..RopeForm::USUAL })
}

fn write_attention(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    rope::write(config, settings);
    let base = match &config.position_embedding {
        PositionEmbedding::Rope(rope) => rope.base,
        _ => RopeForm::USUAL.theta,
    };
    let table = json!({
        "attn_pdrop": config.attention_dropout,
        "clip_qkv": config.clip_qkv,
        "kv_n_heads": config.num_query_groups,
        "rope_theta": base,
    });
    settings.insert(ATTENTION.into(), table);
}

/// The table of the experts. Their weights sum to one, or are the softmax over all experts.
fn read_experts(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let absent = Map::new();
    let table = fields.table(FEED_FORWARD, "ffn_config.")?.unwrap_or(Fields::from_table("ffn_config.", &absent));
    let name = match table.table("ffn_act_fn", "ffn_config.ffn_act_fn.")? {
        Some(function) => function.string("name")?.unwrap_or("silu"),
        None => "silu",
    };
    config.activation = activation_called(&table, "ffn_act_fn", name)?;
    config.ffn_hidden_size = table.size("ffn_hidden_size")?.unwrap_or(3584);
    let key = "moe_normalize_expert_weights";
    let order = if table.has(key) { table.number(key)? } else { Some(1.0) };
    let expected = "1 or null: weights divided by another norm are not implemented";
    table.require(order.is_none_or(|order| order == 1.0), key, &order.unwrap_or(1.0).to_string(), expected)?;
    let size = config.ffn_hidden_size;
    let moe = experts(config);
    moe.ffn_hidden_size = size;
    moe.num_experts = table.size("moe_num_experts")?.unwrap_or(4);
    moe.topk = table.size("moe_top_k")?.unwrap_or(1);
    moe.pre_softmax = order.is_none();
    Ok(())
}

fn write_experts(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let Some(moe) = &config.moe else { return };
    let table = json!({
        "hidden_size": config.hidden_size,
        "ffn_act_fn": { "name": activation_name(config.activation) },
        "ffn_hidden_size": moe.ffn_hidden_size,
        "moe_num_experts": moe.num_experts,
        "moe_top_k": moe.topk,
        "moe_normalize_expert_weights": if moe.pre_softmax { Value::Null } else { json!(1.0) },
    });
    settings.insert(FEED_FORWARD.into(), table);
}

/// A rule of a layer.
macro_rules! block {
    ($($name:literal),+ $(,)?) => { prefixed!("decoder.layers.{}.", "transformer.blocks.{}.", $($name),+) };
}

/// Names of DBRX's parameters. The matrices of all experts of a layer are one below the other.
const WEIGHTS: &[WeightRule] = &[
    rule("embedding.word_embeddings.weight", &["transformer.wte.weight"]).fused(Fusion::Vocabulary),
    block!("input_layernorm.weight", "norm_attn_norm.norm_1.weight"),
    block!("self_attention.linear_qkv.weight", "norm_attn_norm.attn.Wqkv.weight").fused(Fusion::PackedQkv),
    block!("self_attention.linear_proj.weight", "norm_attn_norm.attn.out_proj.weight"),
    block!("pre_mlp_layernorm.weight", "norm_attn_norm.norm_2.weight"),
    block!("mlp.router.weight", "ffn.router.layer.weight"),
    block!("mlp.experts.local_experts.{}.linear_fc1.weight", "ffn.experts.mlp.w1", "ffn.experts.mlp.v1")
        .fused(Fusion::GateUp)
        .joined(),
    block!("mlp.experts.local_experts.{}.linear_fc2.weight", "ffn.experts.mlp.w2").rows_are_inputs().joined(),
    rule("decoder.final_layernorm.weight", &["transformer.norm_f.weight"]),
    rule("output_layer.weight", &["lm_head.weight"]).fused(Fusion::Vocabulary),
];
