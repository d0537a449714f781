//! Settings of CWM; absent ones have the values of `CwmConfig`.

use crate::families::prelude::*;
use crate::families::seed_oss::config::HEAD_SIZE_128;

const FORM: RopeForm = RopeForm { theta: 1_000_000.0, ..RopeForm::USUAL };

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    HEAD_SIZE_128,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(131_072)),
    Setting::Rows(BLOCKS),
    Setting::Switch("mlp_bias", |c| &mut c.mlp_bias, false),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: rope::write },
    // Every fourth layer is full, the first layer too.
    Setting::Keys {
        read: |fields, c| {
            let usual = (0..c.num_layers).map(|layer| !layer.is_multiple_of(4)).collect();
            windows::read_layers(fields, c, 8192, usual)
        },
        write: windows::write_pattern,
    },
];

/// Without a table frequencies are scaled as in Llama 3.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    rope::read(fields, config, FORM)?;
    // transformers takes an empty old table for none, and an empty new one for frequencies that are
    // not scaled.
    let old = fields.filled_table("rope_scaling", "rope_scaling.")?;
    let has_table = old.is_some() || fields.get("rope_parameters").is_some();
    if let PositionEmbedding::Rope(rope) = &mut config.position_embedding
        && !has_table
    {
        let usual = Map::from_iter(usual_scaling());
        let table = Fields::from_table("rope_parameters.", &usual);
        *rope = rope::read_table(fields, Some(&table), config.max_position_embeddings, FORM)?;
    }
    Ok(())
}

fn usual_scaling() -> [(String, Value); 6] {
    [
        ("rope_type".into(), json!("llama3")),
        ("rope_theta".into(), json!(FORM.theta)),
        ("factor".into(), json!(16.0)),
        ("low_freq_factor".into(), json!(1.0)),
        ("high_freq_factor".into(), json!(4.0)),
        ("original_max_position_embeddings".into(), json!(8192)),
    ]
}
