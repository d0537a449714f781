//! Functions that families in work still call: each is a method of a group of keys by now. This file
//! goes away with the last call.
#![allow(dead_code)]

use super::deepseek_v3::config::latent;
use super::mixture::{ExpertFactor, FIRST_DENSE, FirstDense, MlpLayerTypes, SharedExperts, SigmoidRouter};
use super::prelude::*;

type Read = Result<(), HfError>;
type Table = Map<String, Value>;

pub(super) fn read_factor(fields: &Fields, config: &mut DecoderConfig, key: &'static str, absent: f64) -> Read {
    ExpertFactor(key, absent).read(fields, config)
}

pub(super) fn write_factor(config: &DecoderConfig, settings: &mut Table, key: &'static str) {
    ExpertFactor(key, 1.0).write(config, settings);
}

pub(super) fn read_shared(fields: &Fields, config: &mut DecoderConfig, key: &'static str, no: Option<usize>) -> Read {
    SharedExperts(key, no).read(fields, config)
}

pub(super) fn write_shared(config: &DecoderConfig, settings: &mut Table, key: &'static str) {
    SharedExperts(key, None).write(config, settings);
}

pub(super) fn read_first_dense(fields: &Fields, config: &mut DecoderConfig, absent: u64) -> Read {
    FirstDense(FIRST_DENSE, absent).read(fields, config)
}

pub(super) fn write_first_dense(config: &DecoderConfig, settings: &mut Table) {
    FirstDense(FIRST_DENSE, 0).write(config, settings);
}

pub(super) fn read_mlp_layer_types(
    fields: &Fields,
    config: &mut DecoderConfig,
    absent: impl Fn(&Fields, &mut DecoderConfig) -> Read,
) -> Read {
    match fields.get("mlp_layer_types") {
        Some(_) => MlpLayerTypes(None).read(fields, config),
        None => absent(fields, config),
    }
}

pub(super) fn first_is_dense(fields: &Fields, config: &mut DecoderConfig) -> Read {
    MlpLayerTypes(None).read(fields, config)
}

pub(super) fn write_mlp_layer_types(config: &DecoderConfig, settings: &mut Table) {
    MlpLayerTypes(None).write(config, settings);
}

impl SigmoidRouter {
    pub fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Read {
        KeyGroup::read(self, fields, config)
    }

    pub fn write(config: &DecoderConfig, settings: &mut Table) {
        KeyGroup::write(&Self::UNGROUPED, config, settings);
    }
}

pub(super) const OWN_KEYS: Setting = Setting::Rule(|fields, c| {
    let (heads, found) = (c.num_attention_heads, c.num_query_groups);
    let expected = format!("num_attention_heads ({heads}): each head has keys of its own");
    fields.require(found == heads, "num_key_value_heads", &found.to_string(), &expected)
});

pub(super) const HEADS: Setting = Setting::Always(|c| {
    c.kv_channels = latent(c).qk_head_dim + latent(c).qk_pos_emb_head_dim;
    c.qk_layernorm = true;
});

pub(super) fn read_query_rank(fields: &Fields, config: &mut DecoderConfig, absent: usize) -> Read {
    let rank = fields.size("q_lora_rank")?;
    latent(config).q_lora_rank = if fields.has("q_lora_rank") { rank } else { Some(absent) };
    Ok(())
}

pub(super) fn write_query_rank(config: &DecoderConfig, settings: &mut Table) {
    settings.insert("q_lora_rank".into(), json!(config.latent.as_ref().and_then(|latent| latent.q_lora_rank)));
}

pub(super) fn read_logits_cap(fields: &Fields, config: &mut DecoderConfig, absent: Option<f64>) -> Read {
    Setting::NumberOrNone("final_logit_softcapping", |c| &mut c.logit_softcap, absent).read(fields, config)
}

pub(super) fn write_logits_cap(config: &DecoderConfig, settings: &mut Table) {
    settings.insert("final_logit_softcapping".into(), json!(config.logit_softcap));
}

pub(super) fn read_pairs(fields: &Fields, config: &mut DecoderConfig, form: RopeForm) -> Read {
    RopeForm { interleaved: true, ..form }.read(fields, config)
}
