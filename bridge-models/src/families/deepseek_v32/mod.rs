//! DeepSeek-V3.2: DeepSeek-V3 whose queries attend to the keys that an indexer chooses.

#[cfg(test)]
mod tests;

use super::deepseek_v3::config::ROWS;
use super::mixture::{self, FIRST_DENSE, FirstDense, MlpLayerTypes};
use super::prelude::*;
use super::{deepseek_v3, llama};
use crate::decoder::{IndexerConfig, KeySource};
use crate::huggingface::weight_map::WeightRule;
use crate::huggingface::windows::layers_of_two_types;

pub(super) static FAMILY: Family = Family {
    model_type: "deepseek_v32",
    architecture: "DeepseekV32ForCausalLM",
    settings: SETTINGS,
    weights: WEIGHTS,
    aliases: deepseek_v3::ALIASES,
    ..Family::USUAL
};

/// Names of all parameters.
pub(super) const WEIGHTS: &[&[WeightRule]] = &[
    INDEXER_WEIGHTS,
    deepseek_v3::weights::PREDICTED_LAYERS,
    deepseek_v3::weights::LATENT_ATTENTION,
    mixture::SHARED,
    mixture::APART,
    mixture::STACKED,
    llama::WEIGHTS,
];

/// Settings; absent ones have the values of `DeepseekV32Config`.
const SETTINGS: &[Setting] = &[
    positions(163_840),
    Setting::Rows(ROWS),
    QUERY_LATENTS,
    Setting::Group(&MlpLayerTypes(Some(FirstDense(FIRST_DENSE, 3)))),
    Setting::Rows(INDEXER),
    size_or("index_n_heads", |c| &mut indexer(c).heads, 64),
    Setting::Only("rope_interleave", || json!(true)),
    Setting::Unused(&["layer_types", "mlp_bias"]),
];

/// Requirement that queries come from latent vectors.
pub(super) const QUERY_LATENTS: Setting = Setting::Rule(|fields, c| {
    let has_latents = c.latent.as_ref().is_some_and(|latent| latent.q_lora_rank.is_some());
    fields.require(has_latents, "q_lora_rank", "null", "an integer of at least 1")
});

/// Keys of a query, and the size of the heads that choose them.
pub(super) const INDEXER: &[Setting] = &[
    size_or("index_topk", |c| &mut indexer(c).topk, 2048),
    size_or("index_head_dim", |c| &mut indexer(c).head_size, 128),
];

/// The indexer that every model of the family has.
pub(super) fn indexer(config: &mut DecoderConfig) -> &mut IndexerConfig {
    config.indexer.get_or_insert_with(IndexerConfig::neutral)
}

/// The layers that choose keys, whose choice the layers behind them share: those that files name,
/// or after the first ones every `.1`th; `.0` counts these first ones. Values are those of absent
/// keys.
pub(super) struct IndexerTypes(pub usize, pub usize);

const TYPES: &str = "indexer_types";
const PATTERN: &str = "index_topk_pattern";
const NAMES: [&str; 2] = ["shared", "full"];

impl KeyGroup for IndexerTypes {
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        let count = config.num_layers;
        let first = fields.size("index_skip_topk_offset")?.unwrap_or(self.0);
        let period = fields.size("index_topk_freq")?.unwrap_or(self.1);
        let usual = || (1..=count).map(|number| number.saturating_sub(first).is_multiple_of(period)).collect();
        let letters = fields.get(PATTERN).and_then(Value::as_str);
        let full: Vec<bool> = match (layers_of_two_types(fields, TYPES, NAMES, count)?, letters) {
            (Some(listed), _) => listed,
            (None, Some(letters)) => letters.chars().map(|letter| letter == 'F').collect(),
            (None, None) => layers_of_two_types(fields, PATTERN, NAMES, count)?.unwrap_or_else(usual),
        };
        let expected = format!("{count} layers, of which the first is \"full\"");
        let fits = full.len() == count && full.first() == Some(&true);
        fields.require(fits, TYPES, "another beginning or number", &expected)?;
        let source = |is_full: bool| if is_full { KeySource::Chosen } else { KeySource::Shared };
        config.key_sources = KeySource::from_list(full.into_iter().map(source).collect());
        Ok(())
    }

    fn write(&self, config: &DecoderConfig, settings: &mut Map<String, Value>) {
        let chooses = |layer| config.indexer_of(layer).is_some();
        settings.insert(TYPES.into(), windows::names_of_layers(NAMES, config.num_layers, chooses));
    }
}

/// Names of the parameters of indexers.
pub(super) const INDEXER_WEIGHTS: &[WeightRule] = &[
    layer!("self_attention.core_attention.indexer.linear_wq_b.weight", "self_attn.indexer.wq_b.weight"),
    layer!("self_attention.core_attention.indexer.linear_wk.weight", "self_attn.indexer.wk.weight"),
    layer!("self_attention.core_attention.indexer.k_norm.weight", "self_attn.indexer.k_norm.weight"),
    layer!("self_attention.core_attention.indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"),
    layer!("self_attention.core_attention.indexer.linear_weights_proj.weight", "self_attn.indexer.weights_proj.weight"),
];
