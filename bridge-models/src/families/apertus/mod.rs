//! Apertus: a Llama with a norm of each head, and a feed-forward block without a gate whose
//! activation has trained slopes (xIELU).

#[cfg(test)]
mod tests;

use super::prelude::*;
use super::rows::ROWS_BESIDE_ACTIVATION;
use super::{llama, qwen3};

pub(super) static FAMILY: Family = Family {
    model_type: "apertus",
    architecture: "ApertusForCausalLM",
    settings: SETTINGS,
    weights: &[OWN, qwen3::QK_NORMS, llama::WEIGHTS],
    ..Family::USUAL
};

const FORM: RopeForm = RopeForm { theta: 12_000_000.0, ..RopeForm::USUAL };

/// Settings; absent ones have the values of `ApertusConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    positions(65_536),
    Setting::Rows(ROWS_BESIDE_ACTIVATION),
    Setting::Always(|c| (c.gated_linear_unit, c.qk_layernorm) = (false, true)),
    Setting::NamedActivation("hidden_act", |c| &mut c.activation, "xielu"),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-5),
    tied_embeddings(false),
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

/// Names of the parameters that Llama does not have, or names otherwise.
const OWN: &[WeightRule] = &[
    layer!("input_layernorm.weight", "attention_layernorm.weight"),
    layer!("pre_mlp_layernorm.weight", "feedforward_layernorm.weight"),
    layer!("mlp.linear_fc1.weight", "mlp.up_proj.weight"),
    layer!("mlp.activation_func.alpha_p", "mlp.act_fn.alpha_p"),
    layer!("mlp.activation_func.alpha_n", "mlp.act_fn.alpha_n"),
    layer!("mlp.activation_func.beta", "mlp.act_fn.beta").fused(Fusion::Scalar),
    layer!("mlp.activation_func.eps", "mlp.act_fn.eps").fused(Fusion::Scalar),
];
