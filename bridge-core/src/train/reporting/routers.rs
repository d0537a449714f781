//! Figures of the routers of a mixture of experts in a step: losses, and the tokens of each expert.

use std::collections::BTreeMap;

use bridge_dist::comm::CommError;
use bridge_dist::mesh::ProcessGroups;

use crate::config::RunConfig;
use crate::model::{LayerMetric, ROUTER_LOSSES};
use crate::train::engine::forward_step::{Losses, Ratio};
use crate::train::ranks::agreement;

/// Number of tokens that each expert was given.
const TOKENS: &str = "tokens_per_expert";

/// The router of one layer in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterReport {
    /// Global number of the layer, from 0.
    pub layer: usize,
    /// Means over the micro-batches by name, before their coefficients.
    pub losses: Vec<(&'static str, f64)>,
    /// Tokens that each expert was given, counted once for each of a token's choices, over all
    /// ranks and micro-batches.
    pub tokens_per_expert: Vec<u64>,
}

/// All routers of the model in one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::train) struct Routers {
    /// Means over layers and micro-batches.
    pub losses: Losses,
    /// Reports of the layers, in their order.
    pub layers: Vec<RouterReport>,
}

/// Sums over this rank's micro-batches so far.
pub(in crate::train) struct RouterSums {
    /// `None` for a model without experts.
    sums: Option<Sums>,
    /// Context-parallel ranks count the tokens of each other: one of them speaks for all.
    counts_tokens: bool,
}

impl RouterSums {
    pub(in crate::train) fn new(config: &RunConfig, groups: &ProcessGroups) -> Self {
        let experts = config.model.routed_experts();
        let sums = experts.map(|num_experts| Sums::new(config.model.layers_with_experts(), num_experts));
        Self { sums, counts_tokens: groups.context().rank() == 0 }
    }

    /// Adds a layer's report on a micro-batch.
    pub(in crate::train) fn add(&mut self, (name, layer): LayerMetric, values: &[f64]) {
        if let Some(sums) = self.sums.as_mut().filter(|_| name != TOKENS || self.counts_tokens) {
            sums.add(name, layer, values);
        }
    }

    /// Sums the reports of the micro-batches of all ranks. The result is empty for a model without
    /// experts. All ranks call this together, including ranks without such layers.
    pub(in crate::train) fn all_reduce(self, groups: &ProcessGroups) -> Result<Routers, CommError> {
        let Some(mut sums) = self.sums else { return Ok(Routers::default()) };
        for figures in [sums.means.as_mut_slice(), &mut sums.by_layer] {
            agreement::sum(groups.data_context(), figures)?;
            agreement::sum(groups.pipeline(), figures)?;
        }
        Ok(sums.report())
    }
}

/// Sums of a rank, as vectors that ranks add up.
struct Sums {
    /// Places of layers in `by_layer`.
    places: BTreeMap<usize, usize>,
    num_experts: usize,
    /// Sum and number of summands of each loss.
    means: [f64; 2 * ROUTER_LOSSES.len()],
    /// Sum and number of summands of each loss by layer, then the tokens of its experts.
    by_layer: Vec<f64>,
}

impl Sums {
    fn new(layers: Vec<usize>, num_experts: usize) -> Self {
        let width = 2 * ROUTER_LOSSES.len() + num_experts;
        let by_layer = vec![0.0; layers.len() * width];
        let places = layers.into_iter().enumerate().map(|(place, layer)| (layer, place * width)).collect();
        Self { places, num_experts, means: [0.0; 2 * ROUTER_LOSSES.len()], by_layer }
    }

    fn add(&mut self, name: &str, layer: usize, values: &[f64]) {
        let Some(&place) = self.places.get(&layer) else { return };
        if let Some(i) = ROUTER_LOSSES.iter().position(|known| *known == name) {
            let sum = values.iter().sum::<f64>();
            for figures in [&mut self.means[2 * i..], &mut self.by_layer[place + 2 * i..]] {
                figures[0] += sum;
                figures[1] += 1.0;
            }
        } else if name == TOKENS {
            let tokens = &mut self.by_layer[place + 2 * ROUTER_LOSSES.len()..][..self.num_experts];
            tokens.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }

    fn report(&self) -> Routers {
        let ratio = |figures: &[f64], i: usize| Ratio { numerator: figures[2 * i], denominator: figures[2 * i + 1] };
        let reported = |(i, _): &(usize, &&'static str)| self.means[2 * i + 1] > 0.0;
        let names = || ROUTER_LOSSES.iter().enumerate().filter(reported);
        let layers = self.places.iter().map(|(&layer, &place)| {
            let (losses, tokens) = self.by_layer[place..].split_at(2 * ROUTER_LOSSES.len());
            RouterReport {
                layer,
                losses: names().map(|(i, name)| (*name, ratio(losses, i).value())).collect(),
                tokens_per_expert: tokens[..self.num_experts].iter().map(|tokens| *tokens as u64).collect(),
            }
        });
        Routers {
            losses: names().map(|(i, name)| ((*name).to_owned(), ratio(&self.means, i))).collect(),
            layers: layers.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_layers_and_micro_batches() {
        let mut sums = Sums::new(vec![1, 3], 2);
        for (layer, balance, tokens) in [(1, 1.0, [3.0, 1.0]), (3, 2.0, [2.0, 2.0]), (1, 1.5, [0.0, 4.0])] {
            sums.add("load_balancing_loss", layer, &[balance]);
            sums.add("z_loss", layer, &[0.25]);
            sums.add("tokens_per_expert", layer, &tokens);
        }
        sums.add("a name that nobody knows", 1, &[9.0]);
        let Routers { losses, layers } = sums.report();
        assert_eq!(losses["load_balancing_loss"].value(), 1.5);
        assert_eq!((layers[0].layer, layers[0].tokens_per_expert.as_slice()), (1, [3, 5].as_slice()));
        assert_eq!(layers[0].losses, [("load_balancing_loss", 1.25), ("z_loss", 0.25)]);
        assert_eq!((layers[1].layer, layers[1].tokens_per_expert.as_slice()), (3, [2, 2].as_slice()));
    }
}
