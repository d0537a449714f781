//! Settings of Gemma 3; absent ones have the values of `Gemma3TextConfig`.

use serde_json::{Map, Value, json};

use crate::decoder::{DecoderConfig, PositionEmbedding, RopeConfig, RopeScaling};
use crate::families::gemma2::config::{LAYERS, read_logits_cap, write_logits_cap};
use crate::families::llama::config::SIZES;
use crate::huggingface::error::HfError;
use crate::huggingface::fields::Fields;
use crate::huggingface::rope::{self, OriginalLength, RopeForm};
use crate::huggingface::settings::{Setting, size_or};
use crate::huggingface::windows::{self, LAYER_TYPES};

const FORM: RopeForm = RopeForm { theta: 1_000_000.0, original_length: OriginalLength::InTable, ..RopeForm::USUAL };

/// Default base of the frequencies in windowed layers.
const LOCAL_BASE: f64 = 10_000.0;

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::Rows(LAYERS),
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    Setting::Always(|c| c.qk_layernorm = true),
    Setting::Keys {
        read: |fields, c| {
            // `_sliding_window_pattern`, which is in files too, transformers does not read.
            let pattern = fields.size("sliding_window_pattern")?;
            windows::read_pattern(fields, c, 4096, pattern.unwrap_or(6))
        },
        write: windows::write_pattern,
    },
    Setting::Keys { read: read_rope, write: write_rope },
    Setting::Keys { read: |fields, c| read_logits_cap(fields, c, None), write: write_logits_cap },
    Setting::Unused(&["_sliding_window_pattern"]),
];

/// A table for each type of layer in `rope_parameters`, or `rope_theta`, `rope_scaling` and
/// `rope_local_base_freq`.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    let tables = fields.filled_table("rope_parameters", "rope_parameters.")?;
    let of_type = |index: usize, prefix| tables.map_or(Ok(None), |tables| tables.table(LAYER_TYPES[index], prefix));
    let full = of_type(0, "rope_parameters.full_attention.")?;
    let windowed = of_type(1, "rope_parameters.sliding_attention.")?;
    let is_known = tables.is_none() || full.is_some() || windowed.is_some();
    let expected = format!("a table {} and a table {}", LAYER_TYPES[0], LAYER_TYPES[1]);
    fields.require(is_known, "rope_parameters", "another table", &expected)?;
    // transformers puts the old table over the new one, which has a `rope_type` of its own: a
    // `type` there says nothing.
    let mut merged = Map::from_iter([("rope_type".to_owned(), json!("default"))]);
    merged.extend(full.iter().flat_map(Fields::entries));
    let scaling = fields.filled_table("rope_scaling", "rope_scaling.")?;
    merged.extend(scaling.iter().flat_map(Fields::entries));
    let place = if scaling.is_some() { "rope_scaling." } else { "rope_parameters.full_attention." };
    let merged = Fields::from_table(place, &merged);
    let mut rope = rope::read_table(fields, Some(&merged), config.max_position_embeddings, FORM)?;
    if let Some(RopeScaling::Yarn(yarn)) = &mut rope.scaling {
        // transformers looks for it beside the tables of the types of layers, where no file has it.
        tables.map_or(Ok(()), |tables| tables.only("truncate", &json!(true)))?;
        yarn.truncate = true;
    }
    rope::check_pairs(fields, config, &rope, FORM)?;
    let beside = fields.number("rope_local_base_freq")?.unwrap_or(LOCAL_BASE);
    let local = match &windowed {
        Some(table) => {
            table.only("rope_type", &json!("default"))?;
            table.number("rope_theta")?.unwrap_or(beside)
        }
        None => beside,
    };
    let windowed_base = config.window_size.map(|_| local);
    config.position_embedding = PositionEmbedding::Rope(RopeConfig { windowed_base, ..rope });
    Ok(())
}

/// Writes both forms: transformers 5 reads the table, transformers 4 the separate keys.
fn write_rope(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    rope::write(config, settings);
    let PositionEmbedding::Rope(rope) = &config.position_embedding else {
        return;
    };
    let local = rope.windowed_base.unwrap_or(LOCAL_BASE);
    let windowed = json!({ "rope_type": "default", "rope_theta": local });
    settings
        .insert("rope_parameters".into(), json!({ LAYER_TYPES[0]: rope::parameters(rope), LAYER_TYPES[1]: windowed }));
    settings.insert("rope_local_base_freq".into(), json!(local));
}
