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
    let usual = json!({
        "rope_type": "llama3",
        "rope_theta": FORM.theta,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    });
    rope::read_or(fields, config, FORM, &usual).map(drop)
}
