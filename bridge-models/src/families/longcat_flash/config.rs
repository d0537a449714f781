//! Settings of LongCat-Flash; absent ones have the values of `LongcatFlashConfig`.

use crate::families::deepseek_v3::config::{LatentSizes, latent, read_latent_rope};
use crate::families::mixture::{ExpertFactor, FACTOR};
use crate::families::prelude::*;
use crate::huggingface::settings::groups_divide_heads;

pub(super) const SETTINGS: &[Setting] = &[
    size("vocab_size", |c| &mut c.vocab_size),
    size("hidden_size", |c| &mut c.hidden_size),
    size("ffn_hidden_size", |c| &mut c.ffn_hidden_size),
    size("num_attention_heads", |c| &mut c.num_attention_heads),
    size_or("num_key_value_heads", |c| &mut c.num_query_groups, |_, c| Ok(c.num_attention_heads)),
    Setting::Rule(groups_divide_heads),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    Setting::Group(&LatentSizes { query: Some(1536), key_value: 512, rotated: 64, plain: 128, value: Some(128) }),
    Setting::Keys { read: read_head, write: write_head },
    size_or("expert_ffn_hidden_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(2048)),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, |_, _| Ok(512)),
    size_or("moe_topk", |c| &mut experts(c).topk, |_, _| Ok(12)),
    // transformers makes the bias and does not add it.
    Setting::Only("router_bias", || json!(false)),
    Setting::Group(&ExpertFactor(FACTOR, 6.0)),
    Setting::Keys { read: read_layers, write: write_layers },
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: |fields, c| read_latent_rope(fields, c, true, ROPE), write: rope::write },
    Setting::Keys { read: read_ranks, write: |_, _| {} },
    Setting::Only("zero_expert_type", || json!("identity")),
    Setting::Only("attention_method", || json!("MLA")),
    Setting::Only("mla_scale_q_lora", || json!(true)),
    Setting::Only("mla_scale_kv_lora", || json!(true)),
    Setting::Unused(&["qk_head_dim"]),
];

const ROPE: RopeForm = RopeForm { theta: 10_000_000.0, ..RopeForm::USUAL };

/// Tables of rotations have the size of `head_dim`, and are those of the rotated elements.
fn read_head(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let (size, rotated) = (fields.size("head_dim")?.unwrap_or(64), config.rotary_head());
    fields.require(size == rotated, "head_dim", &size.to_string(), &format!("{rotated}, as qk_rope_head_dim"))
}

fn write_head(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert("head_dim".into(), json!(config.rotary_head()));
}

const LAYERS: &str = "num_layers";
const IDENTITIES: &str = "zero_expert_num";

/// A file's layer is two of ours, the first of which has experts beside its dense block.
fn read_layers(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let layers = fields.size(LAYERS)?.ok_or_else(|| fields.error(LAYERS, "no value", "an integer of at least 1"))?;
    config.num_layers = layers.saturating_mul(2);
    if let Some(both) = fields.size("num_hidden_layers")? {
        let expected = format!("{}, twice {LAYERS}", config.num_layers);
        fields.require(both == config.num_layers, "num_hidden_layers", &both.to_string(), &expected)?;
    }
    let identities =
        if fields.has(IDENTITIES) { fields.get(IDENTITIES).map_or(Some(0), Value::as_u64) } else { Some(256) };
    let identities = identities.and_then(|count| usize::try_from(count).ok());
    let identities =
        identities.ok_or_else(|| fields.error(IDENTITIES, "something else", "an integer of at least 0"))?;
    let with_experts = LayerPattern::from_list((0..config.num_layers).map(|layer| layer % 2 == 0).collect());
    let moe = experts(config);
    (moe.layers, moe.shortcut, moe.num_identity_experts) = (with_experts, true, identities);
    (moe.expert_bias, moe.pre_softmax, moe.router_precision) = (true, true, Some(RouterDType::Fp32));
    Ok(())
}

fn write_layers(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert(LAYERS.into(), json!(config.num_layers / 2));
    settings.extend(config.moe.as_ref().map(|moe| (IDENTITIES.into(), json!(moe.num_identity_experts))));
}

/// Latent vectors are multiplied by the root of the model's width over theirs. The factor on
/// queries is one on scores.
fn read_ranks(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let rank = fields.size("q_lora_rank")?.unwrap_or(1536);
    let width = config.hidden_size as f64;
    let factor = |rank: usize| (width / rank as f64).sqrt();
    let (of_queries, of_keys) = (factor(rank), factor(latent(config).kv_lora_rank));
    config.softmax_scale *= of_queries;
    (latent(config).q_lora_rank, latent(config).kv_multiplier) = (Some(rank), Some(of_keys));
    Ok(())
}
