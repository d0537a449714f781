//! Expert capacity: assignments above it are dropped, and such a token keeps the outputs of its
//! other experts (Lepikhin et al., arXiv:2006.16668, section 2.2).

use super::balance::WholeBatch;
use super::choice::Choice;
use super::input::MoeInput;
use crate::architecture::config::MoeConfig;
use bridge_core::config::TokenDropPolicy;

/// Capacity of an expert, and the rule for dropping tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    /// Tokens an expert takes, as a multiple of the mean over experts.
    factor: f64,
    policy: TokenDropPolicy,
}

impl Capacity {
    /// `None` where no choice is dropped.
    pub fn new(moe: &MoeConfig) -> Option<Self> {
        moe.capacity_factor.map(|factor| Self { factor, policy: moe.drop_policy })
    }

    /// Choices of the tokens of `batch` sequences here that are dropped, `[n, k]`. The capacity is
    /// counted over the whole micro-batch, on all ranks that share it.
    pub fn dropped(self, choice: &Choice, batch: usize, input: &MoeInput) -> Vec<bool> {
        let n = choice.num_tokens();
        let k = choice.experts_nk.len() / n;
        let mut rows = Vec::with_capacity(2 * n * k);
        let chosen = choice.weights_nk.chunks_exact(k).zip(choice.experts_nk.chunks_exact(k));
        for (token, (weights, experts)) in chosen.enumerate() {
            // Padding has chosen no expert.
            let expert = |expert: &usize| if choice.is_padding(token) { choice.num_experts() } else { *expert };
            rows.extend(weights);
            rows.extend(experts.iter().map(|number| expert(number) as f64));
        }
        let whole = WholeBatch::gather(&rows, n, batch, input);
        let (mut weights, mut experts) = (Vec::new(), Vec::new());
        for row in whole.rows.chunks_exact(2 * k) {
            weights.extend(&row[..k]);
            experts.extend(row[k..].iter().map(|expert| *expert as usize));
        }
        let dropped = self.above_capacity(&weights, &experts, choice.num_experts());
        whole.own.iter().flat_map(|number| dropped[number * k..][..k].iter().copied()).collect()
    }

    /// True for each choice, token by token, that exceeds the capacity of its expert. Choices of no
    /// expert (`num_experts`) do not count.
    fn above_capacity(self, weights: &[f64], experts: &[usize], num_experts: usize) -> Vec<bool> {
        let choices = experts.iter().enumerate().filter(|(_, expert)| **expert < num_experts);
        let capacity = (choices.clone().count() as f64 / num_experts as f64 * self.factor).ceil() as usize;
        let mut by_expert = vec![Vec::new(); num_experts];
        choices.for_each(|(place, expert)| by_expert[*expert].push(place));
        let mut dropped = vec![false; experts.len()];
        for mut places in by_expert {
            match self.policy {
                // Among tokens with equal weights the earlier one stays.
                TokenDropPolicy::Probs => places.sort_by(|a, b| weights[*b].total_cmp(&weights[*a])),
                TokenDropPolicy::Position => {}
            }
            places.iter().skip(capacity).for_each(|place| dropped[*place] = true);
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expert_keeps_the_largest_weights_or_the_first_tokens() {
        // Four tokens of two choices; expert 0 is chosen by all, 1 by the first and the last.
        let experts = [0, 1, 0, 2, 0, 2, 1, 0];
        let weights = [0.5, 0.5, 0.6, 0.4, 0.9, 0.1, 0.5, 0.5];
        let dropped = |policy, factor| -> Vec<usize> {
            let dropped = Capacity { factor, policy }.above_capacity(&weights, &experts, 4);
            dropped.iter().enumerate().filter(|(_, dropped)| **dropped).map(|(place, _)| place).collect()
        };
        // The mean load of four experts is two tokens.
        assert_eq!(dropped(TokenDropPolicy::Probs, 1.0), [0, 7]);
        assert_eq!(dropped(TokenDropPolicy::Position, 1.0), [4, 7]);
        assert_eq!(dropped(TokenDropPolicy::Probs, 1.1), [7], "three of four: capacities are rounded up");
        assert!(dropped(TokenDropPolicy::Probs, 2.0).is_empty());
        // Padding after these tokens has chosen no expert, and leaves capacities as they are.
        let (experts, weights) = ([&experts[..], &[4; 8]].concat(), [&weights[..], &[0.5; 8]].concat());
        let dropped = Capacity { factor: 1.0, policy: TokenDropPolicy::Probs }.above_capacity(&weights, &experts, 4);
        assert_eq!(dropped.iter().filter(|dropped| **dropped).count(), 2);
    }
}
