//! Settings of Apertus; absent ones have the values of `ApertusConfig`.

use crate::families::llama::config::ROWS_BESIDE_ACTIVATION;
use crate::families::prelude::*;

const FORM: RopeForm = RopeForm { theta: 12_000_000.0, ..RopeForm::USUAL };

pub(super) const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    size_or("max_position_embeddings", |c| &mut c.max_position_embeddings, |_, _| Ok(65_536)),
    Setting::Rows(ROWS_BESIDE_ACTIVATION),
    Setting::Always(|c| (c.gated_linear_unit, c.qk_layernorm) = (false, true)),
    Setting::NamedActivation("hidden_act", |c| &mut c.activation, "xielu"),
    Setting::Rows(ATTENTION_BIAS),
    Setting::Number("rms_norm_eps", |c| &mut c.norm.epsilon, |_, _| Ok(1e-5)),
    Setting::Switch("tie_word_embeddings", |c| &mut c.share_embeddings_and_output_weights, false),
    Setting::Keys { read: read_rope, write: rope::write },
];

/// Without a table of rotary settings frequencies are scaled as in the released models.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    // transformers takes an empty old table for none, and an empty new one for frequencies that are
    // not scaled.
    let old = fields.filled_table("rope_scaling", "rope_scaling.")?;
    if old.is_some() || fields.get("rope_parameters").is_some() {
        return rope::read(fields, config, FORM);
    }
    let usual = json!({
        "rope_type": "llama3",
        "rope_theta": FORM.theta,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    });
    let usual = usual.as_object().expect("it is a table");
    let table = Fields::from_table("", usual);
    let rope = rope::read_table(fields, Some(&table), config.max_position_embeddings, FORM)?;
    rope::check_pairs(fields, config, &rope, FORM)?;
    config.position_embedding = PositionEmbedding::Rope(rope);
    Ok(())
}
