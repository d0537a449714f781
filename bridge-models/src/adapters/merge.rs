//! Merging of branches into the weights of their layers.

use bridge_core::config::PeftKind;
use bridge_core::model::LinearLayer;
use burn::tensor::Tensor;

use super::lora::{Branch, Dropout, LowRankRule, Parameters};
use super::parts::Parts;

/// The weight `[o, i]` of a whole layer with its branches, whose parameters are in the order of
/// [`LowRankAdapter`](super::LowRankAdapter).
pub(crate) fn merged(
    weight_oi: Tensor<2>,
    layer: &LinearLayer,
    branches: &[Branch],
    method: PeftKind,
    parameters: Parameters<'_>,
) -> Tensor<2> {
    let rule = LowRankRule {
        branches: branches.to_vec(),
        parts: Parts::from_layer(layer),
        method,
        dropout: Dropout::default(),
        ranks: None,
    };
    let all = || 0..branches.len();
    let changes_io = all().map(|index| rule.product(index, parameters.0).transpose()).collect();
    let change_oi = rule.join(changes_io, layer.outputs, 0.0).transpose();
    let sum_oi = weight_oi.clone() + change_oi;
    match method {
        PeftKind::Lora => sum_oi,
        PeftKind::Dora => {
            let factors = rule
                .factors(&weight_oi.clone().into(), parameters)
                .into_iter()
                .map(|factors| factors.unsqueeze_dim::<2>(0));
            sum_oi * rule.join(factors.collect(), layer.outputs, 1.0).transpose()
        }
    }
}
