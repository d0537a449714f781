//! Choosing a token by its logits.

use bridge_kernels::Philox;

/// Choice of the next token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// The most likely token; of several, the one with the lowest id.
    Greedy,
    /// A random draw.
    Random(Draw),
}

/// A random draw and its candidate tokens. The filters are applied in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Divides the logits: below 1 sharpens, above 1 flattens.
    pub temperature: f64,
    /// Keeps only the `k` most likely tokens.
    pub top_k: Option<usize>,
    /// Only the most likely tokens whose probabilities add up to `p`, at least one (nucleus
    /// sampling, arXiv:1904.09751).
    pub top_p: Option<f64>,
    /// Only tokens with at least this share of the probability of the most likely one
    /// (arXiv:2407.01082).
    pub min_p: Option<f64>,
    /// Only the tokens whose information is nearest to that which is expected, whose probabilities
    /// add up to this (arXiv:2202.00666).
    pub typical_p: Option<f64>,
    /// Only tokens of at least this probability, or the most likely one (arXiv:2210.15191).
    pub epsilon_cutoff: Option<f64>,
    /// Like `epsilon_cutoff`, with a bound that falls with the entropy (arXiv:2210.15191).
    pub eta_cutoff: Option<f64>,
    /// Seed of the draws: the same seed gives the same text.
    pub seed: u64,
}

impl Draw {
    /// A draw among all tokens.
    pub fn new(temperature: f64, seed: u64) -> Self {
        let (top_k, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff) = (None, None, None, None, None, None);
        Self { temperature, top_k, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff, seed }
    }

    /// The first setting that is out of its range, its range, and its value.
    pub(super) fn problem(&self) -> Option<(&'static str, &'static str, String)> {
        let Self { temperature, top_k, top_p, min_p, typical_p, epsilon_cutoff, eta_cutoff, seed: _ } = *self;
        if !(temperature > 0.0 && temperature.is_finite()) {
            return Some(("temperature", "a number above 0 (or greedy sampling)", temperature.to_string()));
        }
        if top_k == Some(0) {
            return Some(("top_k", "at least 1", "0".to_owned()));
        }
        let closed = [("min_p", min_p), ("epsilon_cutoff", epsilon_cutoff), ("eta_cutoff", eta_cutoff)];
        if let Some((key, Some(p))) = closed.into_iter().find(|(_, p)| p.is_some_and(|p| !(0.0..=1.0).contains(&p))) {
            return Some((key, "a number in [0, 1]", p.to_string()));
        }
        let open = [("top_p", top_p), ("typical_p", typical_p)];
        match open.into_iter().find(|(_, p)| p.is_some_and(|p| !(p > 0.0 && p <= 1.0))) {
            Some((key, Some(p))) => Some((key, "a number in (0, 1]", p.to_string())),
            Some((_, None)) | None => None,
        }
    }

    /// Cuts off tokens, the most likely one first, each with its weight. At least one is left.
    fn cut(&self, tokens: &mut Vec<(usize, f64)>) {
        if let Some(p) = self.top_p {
            let (total, mut sum) = (total(tokens), 0.0);
            let kept = tokens.iter().take_while(|(_, weight)| {
                let is_needed = sum < p * total;
                sum += *weight;
                is_needed
            });
            let kept = kept.count().max(1);
            tokens.truncate(kept);
        }
        if let Some(p) = self.min_p {
            let least = p * tokens[0].1;
            keep(tokens, |weight| weight >= least);
        }
        if let Some(p) = self.typical_p.filter(|p| *p < 1.0) {
            typical(tokens, p);
        }
        if let Some(least) = self.epsilon_cutoff {
            let least = least * total(tokens);
            keep(tokens, |weight| weight >= least);
        }
        if let Some(epsilon) = self.eta_cutoff {
            let least = epsilon.min(epsilon.sqrt() * (-entropy(tokens)).exp()) * total(tokens);
            keep(tokens, |weight| weight >= least);
        }
    }
}

fn total(tokens: &[(usize, f64)]) -> f64 {
    tokens.iter().map(|(_, weight)| weight).sum()
}

/// Keeps the first token, and all with enough weight.
fn keep(tokens: &mut Vec<(usize, f64)>, is_enough: impl Fn(f64) -> bool) {
    let mut is_first = true;
    tokens.retain(|(_, weight)| std::mem::take(&mut is_first) || is_enough(*weight));
}

/// In nats.
fn entropy(tokens: &[(usize, f64)]) -> f64 {
    let total = total(tokens);
    let shares = tokens.iter().map(|(_, weight)| weight / total).filter(|share| *share > 0.0);
    -shares.map(|share| share * share.ln()).sum::<f64>()
}

/// Keeps the tokens whose information is nearest to the entropy, until their probabilities add up
/// to `p`.
fn typical(tokens: &mut Vec<(usize, f64)>, p: f64) {
    let (total, expected) = (total(tokens), entropy(tokens));
    let distance = |weight: f64| (-(weight / total).ln() - expected).abs();
    let mut order: Vec<usize> = (0..tokens.len()).collect();
    order.sort_by(|a, b| distance(tokens[*a].1).total_cmp(&distance(tokens[*b].1)));
    let mut sum = 0.0;
    let kept = order.iter().take_while(|place| {
        let is_needed = sum < p * total;
        sum += tokens[**place].1;
        is_needed
    });
    let kept: std::collections::BTreeSet<usize> = kept.copied().collect();
    let mut place = 0..;
    tokens.retain(|_| place.next().is_some_and(|place| kept.contains(&place)));
}

/// The token that `sampling` chooses as number `draw`; `None` if the logits have no finite maximum.
pub(super) fn choose(logits_v: &[f32], sampling: Sampling, draw: usize) -> Option<i64> {
    let mut order: Vec<usize> = (0..logits_v.len()).filter(|id| !logits_v[*id].is_nan()).collect();
    // A stable sort, so that equal logits stay in the order of their ids.
    order.sort_by(|a, b| logits_v[*b].total_cmp(&logits_v[*a]));
    let best = *order.first().filter(|id| logits_v[**id].is_finite())?;
    let Sampling::Random(how) = sampling else { return i64::try_from(best).ok() };
    order.truncate(how.top_k.unwrap_or(usize::MAX));
    let maximum = f64::from(logits_v[best]);
    let weight = |id: usize| ((f64::from(logits_v[id]) - maximum) / how.temperature).exp();
    let mut tokens: Vec<(usize, f64)> = order.into_iter().map(|id| (id, weight(id))).collect();
    how.cut(&mut tokens);
    let word = Philox::new(how.seed).derive(draw as u64).block(0)[0];
    let mut rest = f64::from(word) / 4_294_967_296.0 * total(&tokens);
    let drawn = tokens.iter().position(|(_, weight)| {
        rest -= weight;
        rest < 0.0
    });
    i64::try_from(tokens[drawn.unwrap_or(tokens.len() - 1)].0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, f32::NEG_INFINITY, 2.0, 3.0];

    fn random(top_k: Option<usize>, top_p: Option<f64>, seed: u64) -> Sampling {
        Sampling::Random(Draw { top_k, top_p, ..Draw::new(1.0, seed) })
    }

    fn draws(sampling: impl Fn(u64) -> Sampling) -> Vec<i64> {
        (0..2000).map(|seed| choose(&LOGITS, sampling(seed), 0).unwrap()).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(choose(&LOGITS, Sampling::Greedy, 0), Some(1));
        assert_eq!(choose(&[f32::NAN, 1.0], Sampling::Greedy, 0), Some(1));
        assert_eq!(choose(&[f32::NAN, f32::NEG_INFINITY], Sampling::Greedy, 0), None);
    }

    #[test]
    fn random_draws_follow_the_softmax() {
        let drawn = draws(|seed| random(None, None, seed));
        let total: f64 = LOGITS.iter().map(|l| f64::from(*l).exp()).sum();
        for (id, logit) in LOGITS.iter().enumerate() {
            let share = drawn.iter().filter(|token| **token == id as i64).count() as f64 / drawn.len() as f64;
            let expected = f64::from(*logit).exp() / total;
            assert!((share - expected).abs() < 0.04, "token {id}: {share} of the draws, expected {expected}");
        }
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        assert!(draws(|seed| random(Some(2), None, seed)).iter().all(|token| [1, 4].contains(token)));
        assert!(draws(|seed| random(Some(1), None, seed)).iter().all(|token| *token == 1));
        assert!(draws(|seed| random(None, Some(0.79), seed)).iter().all(|token| [1, 4].contains(token)));
        assert!(draws(|seed| random(None, Some(1e-9), seed)).iter().all(|token| *token == 1));
        assert!(draws(|seed| random(None, Some(0.99), seed)).contains(&0));
    }

    #[test]
    fn cutoffs_keep_what_they_say() {
        let kept = |change: fn(&mut Draw), shares: &[f64]| {
            let mut draw = Draw::new(1.0, 0);
            change(&mut draw);
            let mut tokens: Vec<(usize, f64)> = shares.iter().copied().enumerate().collect();
            draw.cut(&mut tokens);
            tokens.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
        };
        // Shares of 1/2, 1/4, 1/8, 1/8: the entropy is 1.75 ln 2, so the second is nearest, then
        // the first.
        let shares = [4.0, 2.0, 1.0, 1.0];
        assert_eq!(kept(|draw| draw.min_p = Some(0.5), &shares), [0, 1]);
        assert_eq!(kept(|draw| draw.typical_p = Some(0.2), &shares), [1]);
        assert_eq!(kept(|draw| draw.typical_p = Some(0.7), &shares), [0, 1]);
        assert_eq!(kept(|draw| draw.epsilon_cutoff = Some(0.2), &shares), [0, 1]);
        assert_eq!(kept(|draw| draw.epsilon_cutoff = Some(0.9), &shares), [0]);
        // The square root of 0.49 times the inverse of 2^1.75 is 0.208.
        assert_eq!(kept(|draw| draw.eta_cutoff = Some(0.49), &shares), [0, 1]);
        assert_eq!(kept(|draw| draw.eta_cutoff = Some(0.01), &shares), [0, 1, 2, 3]);
        let near = |seed| Sampling::Random(Draw { min_p: Some(0.5), ..Draw::new(1.0, seed) });
        assert!(draws(near).iter().all(|token| [1, 4].contains(token)));
    }

    #[test]
    fn a_seed_repeats_and_temperature_sharpens() {
        assert!(draws(|seed| Sampling::Random(Draw::new(0.05, seed))).iter().all(|token| [1, 4].contains(token)));
        assert_eq!(draws(|seed| random(None, None, seed)), draws(|seed| random(None, None, seed)));
        let steps: Vec<_> = (0..50).map(|draw| choose(&LOGITS, random(None, None, 7), draw)).collect();
        assert!(steps.windows(2).any(|pair| pair[0] != pair[1]), "draws of one seed differ from step to step");
    }
}
