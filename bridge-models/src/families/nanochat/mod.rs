//! nanochat: norms without parameters, also of the embedding and of rotated queries and keys,
//! rotation by negative angles, a squared ReLU without a gate, and a soft cap on logits.

#[cfg(test)]
mod tests;

use super::llama;
use super::prelude::*;

pub(super) static FAMILY: Family = Family {
    model_type: "nanochat",
    architecture: "NanoChatForCausalLM",
    settings: SETTINGS,
    weights: &[OWN, llama::WEIGHTS],
    ..Family::USUAL
};

/// Settings; absent ones have the values of `NanoChatConfig`.
const SETTINGS: &[Setting] = &[
    Setting::Rows(SIZES),
    HEAD_SIZE,
    positions(2048),
    Setting::Rows(BLOCKS),
    Setting::Always(|c| {
        (c.gated_linear_unit, c.norm.affine, c.embedding_norm) = (false, false, true);
        (c.qk_layernorm, c.qk_layernorm_after_rope) = (true, true);
    }),
    Setting::NamedActivation("hidden_act", |c| &mut c.activation, "relu2"),
    Setting::Rows(ATTENTION_BIAS),
    rms_norm_epsilon(1e-6),
    Setting::NumberOrNone("final_logit_softcapping", |c| &mut c.logit_softcap, Some(15.0)),
    tied_embeddings(false),
    Setting::Group(&RopeForm { reversed: true, ..RopeForm::USUAL }),
];

/// Names of the feed-forward block.
const OWN: &[WeightRule] =
    &[layer!("mlp.linear_fc1.weight", "mlp.fc1.weight"), layer!("mlp.linear_fc2.weight", "mlp.fc2.weight")];
