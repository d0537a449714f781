//! Settings of DeepSeek-V3; absent ones have the values of `DeepseekV3Config`.

use crate::decoder::LatentConfig;
use crate::families::mixture::{FIRST_DENSE, FirstDense, SharedExperts, SigmoidRouter};
use crate::families::prelude::*;

pub(crate) const SETTINGS: &[Setting] = &[positions(4096), Setting::Rows(ROWS)];

/// Settings but the number of positions.
pub(crate) const ROWS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::Group(&LatentSizes { query: Some(1536), key_value: 512, rotated: 64, plain: 128, value: Some(128) }),
    size_or("moe_intermediate_size", |c| &mut experts(c).ffn_hidden_size, 2048),
    size_or("n_routed_experts", |c| &mut experts(c).num_experts, 256),
    size_or("num_experts_per_tok", |c| &mut experts(c).topk, 8),
    Setting::Only("scoring_func", || json!("sigmoid")),
    Setting::Only("topk_method", || json!("noaux_tc")),
    Setting::Only("moe_layer_freq", || json!(1)),
    Setting::Group(&SigmoidRouter { groups: 8, chosen: 4, factor: 2.5, ..SigmoidRouter::UNGROUPED }),
    Setting::Group(&SharedExperts(SHARED, Some(1))),
    Setting::Group(&FirstDense(FIRST_DENSE, 3)),
    PREDICTED_LAYERS,
    Setting::Rows(BLOCKS),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-6),
    tied_embeddings(false),
    Setting::Keys { read: read_rope, write: write_rope },
    Setting::Unused(&["head_dim", "qk_head_dim"]),
];

/// Sizes of latent attention where no key says them; each head has keys of its own.
pub(crate) struct LatentSizes {
    /// Elements of the latent vector of queries. Null, in a file, projects queries without one.
    pub query: Option<usize>,
    /// Elements of the latent vector of keys and values.
    pub key_value: usize,
    /// Elements of a head that are rotated.
    pub rotated: usize,
    /// Other elements of a head of queries and keys.
    pub plain: usize,
    /// Elements of a head of values; `None` is the hidden size over the number of heads.
    pub value: Option<usize>,
}

impl KeyGroup for LatentSizes {
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        let (heads, found) = (config.num_attention_heads, config.num_query_groups);
        let expected = format!("num_attention_heads ({heads}): each head has keys of its own");
        fields.require(found == heads, "num_key_value_heads", &found.to_string(), &expected)?;
        let rank = fields.size(QUERY_RANK)?;
        let usual = self.value.unwrap_or(config.hidden_size / config.num_attention_heads);
        let latent = latent(config);
        latent.q_lora_rank = if fields.has(QUERY_RANK) { rank } else { self.query };
        latent.kv_lora_rank = fields.size("kv_lora_rank")?.unwrap_or(self.key_value);
        latent.qk_pos_emb_head_dim = fields.size("qk_rope_head_dim")?.unwrap_or(self.rotated);
        latent.qk_head_dim = fields.size("qk_nope_head_dim")?.unwrap_or(self.plain);
        latent.v_head_dim = fields.size("v_head_dim")?.unwrap_or(usual);
        (config.kv_channels, config.qk_layernorm) = (latent.qk_head_dim + latent.qk_pos_emb_head_dim, true);
        Ok(())
    }

    fn write(&self, config: &DecoderConfig, settings: &mut Map<String, Value>) {
        let Some(latent) = &config.latent else { return };
        settings.insert(QUERY_RANK.into(), json!(latent.q_lora_rank));
        settings.insert("kv_lora_rank".into(), json!(latent.kv_lora_rank));
        settings.insert("qk_rope_head_dim".into(), json!(latent.qk_pos_emb_head_dim));
        settings.insert("qk_nope_head_dim".into(), json!(latent.qk_head_dim));
        settings.insert("v_head_dim".into(), json!(latent.v_head_dim));
    }
}

const QUERY_RANK: &str = "q_lora_rank";

/// The latent attention that every model of the family has.
pub(crate) fn latent(config: &mut DecoderConfig) -> &mut LatentConfig {
    config.latent.get_or_insert_with(LatentConfig::neutral)
}

/// Number of layers of multi-token prediction.
pub(crate) const PREDICTED_LAYERS: Setting = Setting::Count("num_nextn_predict_layers", |c| &mut c.mtp_num_layers, 0);

/// Key of the number of experts that all tokens go through.
pub(crate) const SHARED: &str = "n_shared_experts";

/// Rotation in pairs of even and odd elements, or of the two halves.
pub(crate) fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let interleaved = fields.bool("rope_interleave")?.unwrap_or(true);
    read_latent_rope(fields, config, interleaved, RopeForm::USUAL)
}

/// The rotated part of a head.
pub(crate) fn read_latent_rope(
    fields: &Fields,
    config: &mut DecoderConfig,
    interleaved: bool,
    form: RopeForm,
) -> Result<(), HfError> {
    let rope = rope::of_all_layers(fields, config.max_position_embeddings, form)?;
    set_latent_rope(fields, config, rope::table(fields)?.as_ref(), RopeConfig { interleaved, ..rope })
}

/// Rotates a part of each head by the settings of `table`. With YaRN scores grow as cosines and
/// sines would for `mscale_all_dim`, which these then do not.
pub(crate) fn set_latent_rope(
    fields: &Fields,
    config: &mut DecoderConfig,
    table: Option<&Fields>,
    rope: RopeConfig,
) -> Result<(), HfError> {
    if let Some(RopeScaling::Yarn(yarn)) = &rope.scaling
        && let Some(mscale) = yarn.mscale_all_dim
    {
        config.softmax_scale *= yarn.growth(mscale).powi(2);
    }
    // transformers lets scores grow with any scaling; the decoder has a place for the key in YaRN's
    // alone.
    if !matches!(rope.scaling, None | Some(RopeScaling::Yarn(_)))
        && let Some(table) = table
    {
        let found = table.number("mscale_all_dim")?.unwrap_or(0.0);
        let expected = "0, or yarn as the rope_type: nothing else lets scores grow here";
        table.require(found == 0.0, "mscale_all_dim", &found.to_string(), expected)?;
    }
    let rotated = config.rotary_head();
    let expected = "an even number, because it is rotated in pairs";
    fields.require(rotated.is_multiple_of(2), "qk_rope_head_dim", &rotated.to_string(), expected)?;
    config.position_embedding = PositionEmbedding::Rope(rope);
    Ok(())
}

pub(crate) fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    if let PositionEmbedding::Rope(rope) = &config.position_embedding {
        settings.insert("rope_interleave".into(), json!(rope.interleaved));
    }
    rope::write(config, settings);
}
