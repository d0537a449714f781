//! CWM: a Llama with a window in three of four layers.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "cwm",
    architecture: "CwmForCausalLM",
    settings: SETTINGS,
    weights: &[llama::WEIGHTS],
    usual_bos: Some(128_000),
    ..Family::USUAL
};

const FORM: RopeForm = RopeForm { theta: 1_000_000.0, ..RopeForm::USUAL };

/// Settings; absent ones have the values of `CwmConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    Setting::KeyValueHeads(8),
    Setting::Group(&HeadSizeOr(128)),
    positions(131_072),
    Setting::Rows(BLOCKS),
    MLP_BIAS,
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
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
