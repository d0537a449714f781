//! Ministral 3: a Mistral with YaRN, whose queries grow with the position.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;
use crate::decoder::QueryScaleConfig;
use crate::huggingface::rope::ORIGINAL_LENGTH;

pub(super) static FAMILY: Family = Family {
    model_type: "ministral3",
    architecture: "Ministral3ForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `Ministral3Config`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    Setting::Group(&HeadSizeOr(128)),
    positions(262_144),
    Setting::Rows(BLOCKS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
    Setting::Keys { read: read_positions, write: write_positions },
    Setting::Keys { read: |fields, c| windows::read_of_all(fields, c, None), write: windows::write_of_all },
];

const BETA: &str = "llama_4_scaling_beta";

/// The rotation, and the factor on queries, whose settings are in the same table.
fn read_positions(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let usual = json!({
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        BETA: 0.1,
    });
    let table = rope::read_or(fields, config, RopeForm::USUAL, &usual)?;
    read_query_scale(table.as_ref(), config)
}

/// The factor on queries, whose steps are as long as the context of the unscaled model. `table` has
/// the rotary settings, which are read before.
pub(super) fn read_query_scale(table: Option<&Fields>, config: &mut DecoderConfig) -> Result<(), HfError> {
    let Some(table) = table else { return Ok(()) };
    let Some(beta) = table.number(BETA)?.filter(|beta| *beta != 0.0) else { return Ok(()) };
    let of_scaling = match &config.position_embedding {
        PositionEmbedding::Rope(RopeConfig { scaling: Some(RopeScaling::Yarn(yarn)), .. }) => {
            Some(yarn.original_max_position_embeddings)
        }
        PositionEmbedding::Rope(RopeConfig {
            scaling:
                Some(
                    RopeScaling::Llama3 { original_max_position_embeddings: length, .. }
                    | RopeScaling::LongRope { original_max_position_embeddings: length, .. },
                ),
            ..
        }) => Some(*length),
        _ => table.size(ORIGINAL_LENGTH)?,
    };
    let expected = "an integer of at least 1: queries grow by steps of this length";
    let length = of_scaling.ok_or_else(|| table.missing(ORIGINAL_LENGTH, expected))?;
    config.query_scale = Some(QueryScaleConfig { beta, length, ..QueryScaleConfig::neutral() });
    Ok(())
}

/// Writes the rotation and the factor in the table of transformers 5, the first to have the family.
pub(super) fn write_positions(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    rope::write(config, settings);
    settings.remove("rope_scaling");
    let table = settings.get_mut("rope_parameters").and_then(Value::as_object_mut);
    if let Some(table) = table {
        // transformers multiplies by the growth in every model: without one it is zero.
        let none = (0.0, config.max_position_embeddings);
        let (beta, length) = config.query_scale.map_or(none, |scale| (scale.beta, scale.length));
        table.insert(BETA.into(), json!(beta));
        table.entry(ORIGINAL_LENGTH).or_insert(json!(length));
    }
}
