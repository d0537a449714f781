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

/// Without a table frequencies are scaled as in Llama 3, and a base beside it says nothing.
fn read_rope(fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
    fields.ask("rope_theta");
    let usual = json!({
        "rope_type": "llama3",
        "rope_theta": FORM.theta,
        "factor": 16.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    rope::read_or(fields, config, FORM, &usual).map(drop)
}
