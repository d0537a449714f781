//! Top-k selection of experts by router scores, and the gradients of the scores.

use super::balance::AuxLossGradients;
use crate::architecture::config::MoeConfig;
use bridge_core::config::{RouterDType, RouterScoreFunction};

/// Settings of the selection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub topk: usize,
    /// The last experts, which are the identity.
    pub identity_experts: usize,
    pub score_function: RouterScoreFunction,
    pub raw_scores: bool,
    pub sum_epsilon: f64,
    pub groups: Option<Groups>,
    pub pre_softmax: bool,
    pub scaling_factor: f64,
    pub precision: Option<RouterDType>,
    /// With softmax scores experts are compared by probabilities, to which a bias may be added, or
    /// of which a group has a sum.
    pub compares_probabilities: bool,
    pub sparsemixer_jitter: f64,
}

impl Settings {
    /// The settings of a mixture. With Sinkhorn balancing scores are those over all experts, or of
    /// one expert on its own (arXiv:2202.01169).
    pub fn new(moe: &MoeConfig) -> Self {
        let (score_function, raw_scores, pre_softmax) = match (moe.sinkhorn, moe.topk) {
            (false, _) => (moe.score_function, moe.raw_scores, moe.pre_softmax),
            (true, 1) => (RouterScoreFunction::Sigmoid, true, false),
            (true, _) => (RouterScoreFunction::Softmax, false, true),
        };
        Self {
            topk: moe.topk,
            identity_experts: moe.num_identity_experts,
            score_function,
            raw_scores,
            sum_epsilon: moe.sum_epsilon,
            groups: Groups::new(moe).filter(|_| !moe.sinkhorn),
            pre_softmax,
            scaling_factor: moe.topk_scaling_factor.unwrap_or(1.0),
            precision: moe.router_precision,
            compares_probabilities: moe.expert_bias
                || moe.num_groups.is_some() && (pre_softmax || moe.group_score_topk.is_some()),
            sparsemixer_jitter: moe.sparsemixer_jitter,
        }
    }

    /// A number as the router keeps it.
    fn rounded(&self, value: f64) -> f64 {
        match self.precision {
            None | Some(RouterDType::Fp32) => f64::from(value as f32),
            Some(RouterDType::Fp64) => value,
        }
    }
}

/// Equal groups of experts, of which a token uses some.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    pub count: usize,
    /// Groups that a token uses.
    pub topk: usize,
    /// Number of a group's best experts whose scores add up to the group's score.
    pub compared: usize,
}

impl Groups {
    fn new(moe: &MoeConfig) -> Option<Self> {
        let (count, topk) = (moe.num_groups?, moe.group_topk?);
        Some(Self { count, topk, compared: moe.group_score_topk.unwrap_or(moe.topk / topk) })
    }

    /// The experts of the best groups, in order.
    pub fn experts(self, scores: &[f64]) -> Vec<usize> {
        let each = scores.len() / self.count;
        let sums: Vec<f64> = scores
            .chunks_exact(each)
            .map(|group| top_k(group, (0..each).collect(), self.compared).into_iter().map(|expert| group[expert]).sum())
            .collect();
        let mut groups = top_k(&sums, (0..self.count).collect(), self.topk);
        groups.sort_unstable();
        groups.into_iter().flat_map(|group| group * each..(group + 1) * each).collect()
    }
}

/// The `count` of the candidates with the largest scores, the best first; of equal scores the one
/// with the lower number.
pub(super) fn top_k(scores: &[f64], mut candidates: Vec<usize>, count: usize) -> Vec<usize> {
    candidates.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    candidates.truncate(count);
    candidates
}

/// Experts that the router selected, with the values that backward needs.
pub(super) struct Choice {
    num_experts: usize,
    topk: usize,
    /// Softmax over all experts, `[n, e]`.
    probabilities_ne: Vec<f64>,
    /// With scores of each expert on its own those, `[n, e]`.
    sigmoids_ne: Vec<f64>,
    /// With SparseMixer the softmax over the scores close to that of each chosen expert, `[n, k,
    /// e]`.
    close_nke: Vec<f64>,
    /// `log(sum exp score)` of each token.
    pub log_z_n: Vec<f64>,
    pub experts_nk: Vec<usize>,
    /// Experts with the largest scores, without bias, groups and balancing. Losses count these.
    by_score_nk: Vec<usize>,
    /// With the scaling factor.
    pub weights_nk: Vec<f64>,
    /// True for tokens that are padding, `[n]`; empty if no token is. Padding is not part of any
    /// loss and no load.
    padding_n: Vec<bool>,
}

impl Choice {
    /// Selects experts by scores `[n, e]`, or by `selection_scores_ne` if these are given.
    pub fn from_scores(
        scores_ne: &[f64],
        bias_e: &[f32],
        selection_scores_ne: Option<&[f64]>,
        settings: &Settings,
    ) -> Self {
        let num_experts = bias_e.len();
        let n = scores_ne.len() / num_experts;
        let topk = settings.topk;
        let mut choice = Self {
            num_experts,
            topk,
            probabilities_ne: Vec::with_capacity(scores_ne.len()),
            sigmoids_ne: Vec::new(),
            close_nke: Vec::new(),
            log_z_n: Vec::with_capacity(n),
            experts_nk: Vec::with_capacity(n * topk),
            by_score_nk: Vec::with_capacity(n * topk),
            weights_nk: Vec::with_capacity(n * topk),
            padding_n: Vec::new(),
        };
        for (token, scores) in scores_ne.chunks_exact(num_experts).enumerate() {
            let (probabilities, log_z) = softmax(scores.iter().copied());
            let sigmoids: Vec<f64> = match settings.score_function {
                RouterScoreFunction::Softmax | RouterScoreFunction::SparseMixer => Vec::new(),
                RouterScoreFunction::Sigmoid => scores.iter().map(|score| 1.0 / (1.0 + (-score).exp())).collect(),
                RouterScoreFunction::SqrtSoftplus => {
                    scores.iter().map(|score| (score.max(0.0) + (-score.abs()).exp().ln_1p()).sqrt()).collect()
                }
            };
            let compared: Vec<f64> = match (selection_scores_ne, settings.score_function) {
                (Some(preferred), _) => preferred[token * num_experts..][..num_experts].to_vec(),
                (None, RouterScoreFunction::Sigmoid | RouterScoreFunction::SqrtSoftplus) => {
                    sigmoids.iter().zip(bias_e).map(|(s, bias)| s + f64::from(*bias)).collect()
                }
                (None, RouterScoreFunction::Softmax) if settings.compares_probabilities => {
                    probabilities.iter().zip(bias_e).map(|(p, bias)| p + f64::from(*bias)).collect()
                }
                (None, RouterScoreFunction::Softmax | RouterScoreFunction::SparseMixer) => scores.to_vec(),
            };
            let candidates =
                settings.groups.map_or_else(|| (0..num_experts).collect(), |groups| groups.experts(&compared));
            let order = top_k(&compared, candidates, topk);
            let weights: Vec<f64> = match settings.score_function {
                RouterScoreFunction::Sigmoid | RouterScoreFunction::SqrtSoftplus => {
                    let sum: f64 = order.iter().map(|expert| sigmoids[*expert]).sum();
                    let divisor = if settings.raw_scores { 1.0 } else { sum + settings.sum_epsilon };
                    order.iter().map(|expert| sigmoids[*expert] / divisor).collect()
                }
                RouterScoreFunction::Softmax if settings.pre_softmax => {
                    order.iter().map(|expert| probabilities[*expert]).collect()
                }
                RouterScoreFunction::SparseMixer => {
                    let close = sparse_mixer(scores, &order, settings.sparsemixer_jitter);
                    let weights = order.iter().zip(&close).map(|(expert, close)| close[*expert]).collect();
                    choice.close_nke.extend(close.into_iter().flatten());
                    weights
                }
                RouterScoreFunction::Softmax => softmax(order.iter().map(|expert| scores[*expert])).0,
            };
            choice.weights_nk.extend(weights.iter().map(|weight| settings.rounded(weight * settings.scaling_factor)));
            choice.probabilities_ne.extend(probabilities.iter().map(|p| settings.rounded(*p)));
            let plain = if sigmoids.is_empty() { scores } else { &sigmoids };
            choice.by_score_nk.extend(top_k(plain, (0..num_experts).collect(), topk));
            choice.sigmoids_ne.extend(sigmoids.iter().map(|s| settings.rounded(*s)));
            choice.experts_nk.extend(order);
            choice.log_z_n.push(log_z);
        }
        choice
    }

    /// Marks tokens as padding, `[n]`.
    #[must_use]
    pub fn with_padding(self, padding_n: Vec<bool>) -> Self {
        Self { padding_n, ..self }
    }

    /// True if `token` is padding.
    pub fn is_padding(&self, token: usize) -> bool {
        self.padding_n.get(token).is_some_and(|is_padding| *is_padding)
    }

    /// Sum of the squares of the log-partitions.
    pub fn squared_log_z(&self) -> f64 {
        let counted = self.log_z_n.iter().enumerate().filter(|(token, _)| !self.is_padding(*token));
        counted.map(|(_, log_z)| log_z * log_z).sum()
    }

    /// Tokens, padding included.
    pub fn num_tokens(&self) -> usize {
        self.log_z_n.len()
    }

    /// Experts.
    pub fn num_experts(&self) -> usize {
        self.num_experts
    }

    /// Number of tokens routed to each expert.
    pub fn tokens_per_expert(&self) -> Vec<f64> {
        let mut counts = vec![0.0; self.num_experts];
        for (token, experts) in self.experts_nk.chunks_exact(self.topk).enumerate() {
            if !self.is_padding(token) {
                experts.iter().for_each(|expert| counts[*expert] += 1.0);
            }
        }
        counts
    }

    /// For consecutive tokens: the number for which each expert is among the best by score, then
    /// for each expert the sum of its probabilities.
    pub fn totals(&self, tokens: std::ops::Range<usize>) -> Vec<f64> {
        let (e, k) = (self.num_experts, self.topk);
        let mut totals = vec![0.0; 2 * e];
        for token in tokens.filter(|token| !self.is_padding(*token)) {
            self.by_score_nk[token * k..][..k].iter().for_each(|expert| totals[*expert] += 1.0);
            if self.sigmoids_ne.is_empty() {
                let probabilities = &self.probabilities_ne[token * e..][..e];
                totals[e..].iter_mut().zip(probabilities).for_each(|(sum, p)| *sum += p);
            } else {
                let sigmoids = &self.sigmoids_ne[token * e..][..e];
                let all: f64 = sigmoids.iter().sum::<f64>() + SMALLEST_SUM;
                totals[e..].iter_mut().zip(sigmoids).for_each(|(sum, s)| *sum += s / all);
            }
        }
        totals
    }

    /// Gradients of the scores, `[n, e]`, from those of the weights, `[n, k]`.
    pub fn score_gradients(
        &self,
        d_weights_nk: &[f32],
        aux_gradients: &AuxLossGradients,
        settings: &Settings,
    ) -> Vec<f64> {
        let (e, k) = (self.num_experts, self.topk);
        let mut gradients = Vec::with_capacity(self.probabilities_ne.len());
        for (token, p) in self.probabilities_ne.chunks_exact(e).enumerate() {
            if self.is_padding(token) {
                gradients.extend(std::iter::repeat_n(0.0, e));
                continue;
            }
            let chosen = token * k..(token + 1) * k;
            let experts = &self.experts_nk[chosen.clone()];
            let d_weights: Vec<f64> =
                d_weights_nk[chosen.clone()].iter().map(|d| f64::from(*d) * settings.scaling_factor).collect();
            if !self.sigmoids_ne.is_empty() {
                gradients.extend(self.sigmoid_gradients(token, &d_weights, aux_gradients, settings));
                continue;
            }
            // With respect to the probabilities over all experts.
            let mut d_probabilities = aux_gradients.of_token(token).to_vec();
            if settings.pre_softmax {
                experts.iter().zip(&d_weights).for_each(|(expert, d)| d_probabilities[*expert] += d);
            }
            let mean: f64 = p.iter().zip(&d_probabilities).map(|(p, d)| p * d).sum();
            let d_log_z = aux_gradients.log_z * self.log_z_n[token];
            let start = gradients.len();
            gradients.extend(p.iter().zip(&d_probabilities).map(|(p, d)| p * (d - mean) + p * d_log_z));
            let d_scores = &mut gradients[start..];
            if settings.score_function == RouterScoreFunction::SparseMixer {
                let close = self.close_nke[chosen.start * e..chosen.end * e].chunks_exact(e);
                for ((expert, d), close) in experts.iter().zip(&d_weights).zip(close) {
                    let weight = close[*expert];
                    d_scores.iter_mut().zip(close).for_each(|(d_score, p)| *d_score -= d * weight * p);
                    d_scores[*expert] += d * weight;
                }
            } else if !settings.pre_softmax {
                let weights: Vec<f64> = self.weights_nk[chosen].iter().map(|w| w / settings.scaling_factor).collect();
                let mean: f64 = weights.iter().zip(&d_weights).map(|(w, d)| w * d).sum();
                for ((expert, weight), d) in experts.iter().zip(&weights).zip(&d_weights) {
                    d_scores[*expert] += weight * (d - mean);
                }
            }
        }
        gradients
    }

    /// Gradients of a token's scores through their sigmoids, from those of the weights without the
    /// scaling factor.
    fn sigmoid_gradients(
        &self,
        token: usize,
        d_weights: &[f64],
        aux_gradients: &AuxLossGradients,
        settings: &Settings,
    ) -> Vec<f64> {
        let (e, k) = (self.num_experts, self.topk);
        let sigmoids = &self.sigmoids_ne[token * e..][..e];
        let all = sigmoids.iter().sum::<f64>() + SMALLEST_SUM;
        let per_expert = aux_gradients.of_token(token);
        let mean = sigmoids.iter().zip(per_expert).map(|(s, d)| s / all * d).sum::<f64>();
        let mut d_sigmoids: Vec<f64> = per_expert.iter().map(|d| (d - mean) / all).collect();
        let experts = &self.experts_nk[token * k..][..k];
        let chosen = experts.iter().map(|expert| sigmoids[*expert]).sum::<f64>() + settings.sum_epsilon;
        let mean = experts.iter().zip(d_weights).map(|(expert, d)| sigmoids[*expert] / chosen * d).sum::<f64>();
        for (expert, d) in experts.iter().zip(d_weights) {
            d_sigmoids[*expert] += if settings.raw_scores { *d } else { (d - mean) / chosen };
        }
        let d_log_z = aux_gradients.log_z * self.log_z_n[token];
        let probabilities = self.probabilities_ne[token * e..][..e].iter();
        let gradients = sigmoids.iter().zip(d_sigmoids).zip(probabilities);
        let slope = |s: f64| match settings.score_function {
            // The sigmoid of the score is one minus exp(-softplus), and s the root of the softplus.
            RouterScoreFunction::SqrtSoftplus => -(-s * s).exp_m1() / (2.0 * s.max(f64::MIN_POSITIVE)),
            _ => s * (1.0 - s),
        };
        gradients.map(|((s, d), p)| slope(*s) * d + p * d_log_z).collect()
    }
}

/// For each chosen expert, the best first, the softmax over the scores that are close to its own,
/// and not of experts chosen before: SparseMixer (Liu et al., arXiv:2409.12136, section 3) as it is
/// without sampling. A score `s` is close to the best `m` if `(m - s) / max(|s|, m)` is at most
/// twice the jitter.
fn sparse_mixer(scores: &[f64], order: &[usize], jitter: f64) -> Vec<Vec<f64>> {
    let close_to = |(place, expert): (usize, &usize)| {
        let best = scores[*expert];
        let of_score = |(other, score): (usize, &f64)| {
            let is_far = (best - score) / score.abs().max(best) > 2.0 * jitter;
            if is_far || order[..place].contains(&other) { f64::NEG_INFINITY } else { *score }
        };
        softmax(scores.iter().enumerate().map(of_score)).0
    };
    order.iter().enumerate().map(close_to).collect()
}

/// Added to the sum of all sigmoids, which may all be zero.
const SMALLEST_SUM: f64 = 1e-20;

/// Softmax, and the logarithm of its denominator.
fn softmax(scores: impl Iterator<Item = f64> + Clone) -> (Vec<f64>, f64) {
    let top = scores.clone().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = scores.map(|score| (score - top).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    (exponentials.into_iter().map(|value| value / sum).collect(), top + sum.ln())
}
