//! Settings of Ministral 3; absent ones have the values of `Ministral3Config`.

use crate::decoder::QueryScaleConfig;
use crate::families::prelude::*;
use crate::huggingface::rope::ORIGINAL_LENGTH;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    // Null means another value than absence.
    size_or(
        "head_dim",
        |c| &mut c.kv_channels,
        |fields, c| Ok(if fields.has("head_dim") { c.hidden_size / c.num_attention_heads } else { 128 }),
    ),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(262_144)),
    Setting::Rows(BLOCKS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
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
pub(crate) fn read_query_scale(table: Option<&Fields>, config: &mut DecoderConfig) -> Result<(), HfError> {
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
    let length = of_scaling.ok_or_else(|| table.error(ORIGINAL_LENGTH, "no value", expected))?;
    config.query_scale = Some(QueryScaleConfig { beta, length, ..QueryScaleConfig::neutral() });
    Ok(())
}

/// Writes the rotation and the factor in the table of transformers 5, the first to have the family.
pub(crate) fn write_positions(config: &DecoderConfig, settings: &mut Map<String, Value>) {
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
