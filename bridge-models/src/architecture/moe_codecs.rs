//! Settings of a mixture of experts in the `[model]` section.

use bridge_core::config::{LoadBalancing, OneOrMany, TransformerConfig};
use bridge_core::model::ModelBuildError;

use super::limits::invalid;

/// Width of one expert.
pub fn expert_size(section: &TransformerConfig) -> usize {
    let size = section.moe_ffn_hidden_size.or(section.ffn_hidden_size);
    size.unwrap_or_else(|| section.hidden_size.saturating_mul(4))
}

/// Biases that came with a model stay as they are unless a recipe asks for updates.
pub fn write_expert_bias(has_bias: bool, section: &mut TransformerConfig) {
    section.moe_router_enable_expert_bias = has_bias;
    if has_bias {
        section.moe_router_bias_update_rate = 0.0;
    }
}

/// True if experts are chosen by scores that Sinkhorn's algorithm has balanced.
pub fn is_sinkhorn(section: &TransformerConfig) -> bool {
    section.moe_router_load_balancing_type == OneOrMany::One(LoadBalancing::Sinkhorn)
}

/// Sets the kinds of balancing: the weights of the losses by micro-batch, by sequence and over the
/// global batch, or Sinkhorn's algorithm.
pub fn write_balancing(weights: [f64; 3], sinkhorn: bool, section: &mut TransformerConfig) {
    let kinds = [LoadBalancing::AuxLoss, LoadBalancing::SeqAuxLoss, LoadBalancing::GlobalAuxLoss];
    let losses: Vec<(LoadBalancing, f64)> =
        kinds.into_iter().zip(weights).filter(|(_, weight)| *weight != 0.0).collect();
    let (kinds, coefficients) = match losses[..] {
        [] if sinkhorn => (OneOrMany::One(LoadBalancing::Sinkhorn), OneOrMany::One(0.0)),
        [] => (OneOrMany::One(LoadBalancing::AuxLoss), OneOrMany::One(0.0)),
        [(kind, weight)] => (OneOrMany::One(kind), OneOrMany::One(weight)),
        ref several => {
            let (kinds, weights) = several.iter().copied().unzip();
            (OneOrMany::Many(kinds), OneOrMany::Many(weights))
        }
    };
    (section.moe_router_load_balancing_type, section.moe_aux_loss_coeff) = (kinds, coefficients);
}

/// The weight of a balancing loss: zero if the section does not ask for it.
pub fn balancing_weight(section: &TransformerConfig, kind: LoadBalancing) -> Result<f64, ModelBuildError> {
    let (kinds, weights) = (&section.moe_router_load_balancing_type, &section.moe_aux_loss_coeff);
    let (kinds, weights) = match (kinds, weights) {
        (OneOrMany::One(own), OneOrMany::One(weight)) => (vec![*own], vec![*weight]),
        (OneOrMany::Many(kinds), OneOrMany::Many(weights)) if kinds.len() == weights.len() => {
            (kinds.clone(), weights.clone())
        }
        _ => {
            let message =
                "expected a number for each kind of moe_router_load_balancing_type: one, or lists of equal length";
            return Err(invalid("model.moe_aux_loss_coeff", message.into()));
        }
    };
    let own = kinds.iter().position(|own| *own == kind);
    Ok(own.map_or(0.0, |place| weights[place]))
}
