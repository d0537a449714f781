//! Settings of DeepSeek-V3; absent ones have the values of `DeepseekV3Config`.

use crate::decoder::LatentConfig;
use crate::families::mixture::{SigmoidRouter, read_first_dense, read_shared, write_first_dense, write_shared};
use crate::families::prelude::*;

pub(crate) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    OWN_KEYS,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(4096)),
    Setting::Keys { read: |fields, c| read_query_rank(fields, c, 1536), write: write_query_rank },
    size_or("kv_lora_rank", |c| &mut latent(c).kv_lora_rank, |_, _| Ok(512)),
    size_or("qk_rope_head_dim", |c| &mut latent(c).qk_pos_emb_head_dim, |_, _| Ok(64)),
    size_or("qk_nope_head_dim", |c| &mut latent(c).qk_head_dim, |_, _| Ok(128)),
    size_or("v_head_dim", |c| &mut latent(c).v_head_dim, |_, _| Ok(128)),
    HEADS,
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, |_, _| Ok(2048)),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, |_, _| Ok(256)),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, |_, _| Ok(8)),
    Setting::Only("scoring_func", || json!("sigmoid")),
    Setting::Only("topk_method", || json!("noaux_tc")),
    Setting::Only("moe_layer_freq", || json!(1)),
    Setting::Keys { read: |fields, c| ROUTER.read(fields, c), write: SigmoidRouter::write },
    Setting::Keys {
        read: |fields, c| read_shared(fields, c, SHARED, Some(1)),
        write: |c, settings| write_shared(c, settings, SHARED),
    },
    Setting::Keys { read: |fields, c| read_first_dense(fields, c, 3), write: write_first_dense },
    PREDICTED_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-6)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: write_rope },
    Setting::Unused(&["head_dim", "qk_head_dim"]),
];

/// Requirement that each head has keys of its own.
pub(crate) const OWN_KEYS: Setting = Setting::Rule(|fields, c| {
    let (heads, found) = (c.num_attention_heads, c.num_query_groups);
    let expected = format!("num_attention_heads ({heads}): each head has keys of its own");
    fields.require(found == heads, "num_key_value_heads", &found.to_string(), &expected)
});

/// Size of a head of latent attention, of which a part is rotated.
pub(crate) const HEADS: Setting = Setting::Always(|c| {
    c.kv_channels = latent(c).qk_head_dim + latent(c).qk_pos_emb_head_dim;
    c.qk_layernorm = true;
});

/// The latent attention that every model of the family has.
pub(crate) fn latent(config: &mut DecoderConfig) -> &mut LatentConfig {
    config.latent.get_or_insert_with(LatentConfig::neutral)
}

/// `null` projects queries without a latent vector, absence with one of `absent` elements.
pub(crate) fn read_query_rank(fields: &Fields, config: &mut DecoderConfig, absent: usize) -> Result<(), HfError> {
    let rank = fields.size("q_lora_rank")?;
    latent(config).q_lora_rank = if fields.has("q_lora_rank") { rank } else { Some(absent) };
    Ok(())
}

pub(crate) fn write_query_rank(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert("q_lora_rank".into(), json!(config.latent.as_ref().and_then(|latent| latent.q_lora_rank)));
}

const ROUTER: SigmoidRouter = SigmoidRouter { groups: 8, chosen: 4, factor: 2.5, normalizes: true };

/// Number of layers of multi-token prediction.
pub(crate) const PREDICTED_LAYERS: Setting = Setting::Keys { read: read_predictions, write: write_predictions };

fn read_predictions(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let layers = fields.get(PREDICTIONS).map_or(Some(0), Value::as_u64).and_then(|layers| usize::try_from(layers).ok());
    let error = || fields.error(PREDICTIONS, "something else", "an integer of at least 0");
    config.mtp_num_layers = layers.ok_or_else(error)?;
    Ok(())
}

fn write_predictions(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    settings.insert(PREDICTIONS.into(), json!(config.mtp_num_layers));
}

const PREDICTIONS: &str = "num_nextn_predict_layers";
/// Key of the number of experts that all tokens go through.
pub(crate) const SHARED: &str = "n_shared_experts";

/// Rotation in pairs of even and odd elements, or of the two halves.
pub(crate) fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let interleaved = fields.bool("rope_interleave")?.unwrap_or(true);
    read_latent_rope(fields, config, interleaved, RopeForm::USUAL)
}

/// The rotated part of a head. With YaRN scores grow as cosines and sines would for
/// `mscale_all_dim`, which these then do not.
pub(crate) fn read_latent_rope(
    fields: &Fields,
    config: &mut DecoderConfig,
    interleaved: bool,
    form: RopeForm,
) -> Result<(), HfError> {
    let rope = rope::of_all_layers(fields, config.max_position_embeddings, form)?;
    if let Some(RopeScaling::Yarn(yarn)) = &rope.scaling
        && let Some(mscale) = yarn.mscale_all_dim
    {
        config.softmax_scale *= yarn.growth(mscale).powi(2);
    }
    // transformers lets scores grow with any scaling; the decoder has a place for the key in YaRN's
    // alone.
    if !matches!(rope.scaling, None | Some(RopeScaling::Yarn(_))) {
        let table = fields.filled_table("rope_scaling", "rope_scaling.")?;
        let table =
            table.map_or_else(|| fields.table("rope_parameters", "rope_parameters."), |table| Ok(Some(table)))?;
        if let Some(table) = table {
            let found = table.number("mscale_all_dim")?.unwrap_or(0.0);
            let expected = "0, or yarn as the rope_type: nothing else lets scores grow here";
            table.require(found == 0.0, "mscale_all_dim", &found.to_string(), expected)?;
        }
    }
    let rotated = config.rotary_head();
    let expected = "an even number, because it is rotated in pairs";
    fields.require(rotated.is_multiple_of(2), "qk_rope_head_dim", &rotated.to_string(), expected)?;
    config.position_embedding = PositionEmbedding::Rope(RopeConfig { interleaved, ..rope });
    Ok(())
}

pub(crate) fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    if let PositionEmbedding::Rope(rope) = &config.position_embedding {
        settings.insert("rope_interleave".into(), json!(rope.interleaved));
    }
    rope::write(config, settings);
}
