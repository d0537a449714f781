//! The router: scores of experts, the choice of the best, and the losses that keep the choice balanced.
//!
//! Let `p` be the softmax of a token's scores over all `e` experts. A token goes to the `k` experts with the largest scores, weighted by
//! the softmax over those alone, or by `p` itself (`moe_router_pre_softmax`).
//!
//! With sigmoid scores (DeepSeek-V3, arXiv:2412.19437, equations 12 to 16) each expert has a score of its own; weights are their shares of the sum
//! of the chosen ones, and `p` below is a score's share of the sum of all. A bias may be added to the scores for the choice alone. With groups of
//! experts a token uses those of the best few groups, by the sum of the best scores in each.
//!
//! - Load balancing (Fedus et al., arXiv:2101.03961, equations 4 to 6, for `k` choices): `e / (k n^2) sum_i tokens_i sum_n p_ni`.
//! - z-loss (Zoph et al., arXiv:2202.08906, equation 5): the mean over tokens of `log(sum_i exp score_i)^2`.
//!
//! Both are means over the tokens of a micro-batch, whatever ranks have them. They are no part of the loss that the model returns:
//! their gradients join those of the scores in backward, and their values go to the collector of the forward context.

use bridge_core::model::{Component, Cut, Initial, Meets, ParameterRole, Scope};
use bridge_dist::comm::ReduceOp;
use bridge_kernels::linear;
use bridge_kernels::vjp::attach;
use burn::module::{Module, Param};
use burn::tensor::{DType, FloatDType, Tensor, TensorData};

use super::MoeInput;
use crate::blocks::init::InitialValues;
use crate::models::decoder::choices::ScoreFunction;
use crate::models::decoder::config::{DecoderConfig, MoeConfig};

/// A score for each expert.
#[derive(Module, Debug)]
pub(super) struct Router {
    weight: Param<Tensor<2>>,
    /// Added to the scores, `[e]`.
    bias: Option<Param<Tensor<1>>>,
    /// Added to the scores for the choice, `[e]`.
    expert_bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    settings: Settings,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    topk: usize,
    score_function: ScoreFunction,
    raw_scores: bool,
    groups: Option<Groups>,
    pre_softmax: bool,
    scaling_factor: f64,
    in_float32: bool,
    aux_loss_coeff: f64,
    z_loss_coeff: f64,
}

/// Equal groups of experts, of which a token uses some.
#[derive(Clone, Copy, Debug)]
struct Groups {
    count: usize,
    /// Groups that a token uses.
    topk: usize,
    /// Experts whose scores add up to a group's.
    compared: usize,
}

impl Groups {
    fn new(moe: &MoeConfig) -> Option<Self> {
        let (count, topk) = (moe.num_groups?, moe.group_topk?);
        Some(Self { count, topk, compared: moe.group_score_topk.unwrap_or(moe.topk / topk) })
    }

    /// The experts of the best groups, in order.
    fn experts(self, scores: &[f64]) -> Vec<usize> {
        let each = scores.len() / self.count;
        let sums: Vec<f64> = scores
            .chunks_exact(each)
            .map(|group| best(group, (0..each).collect(), self.compared).into_iter().map(|expert| group[expert]).sum())
            .collect();
        let mut groups = best(&sums, (0..self.count).collect(), self.topk);
        groups.sort_unstable();
        groups.into_iter().flat_map(|group| group * each..(group + 1) * each).collect()
    }
}

/// The `count` of the candidates with the largest scores, the best first; of equal scores the one with the lower number.
fn best(scores: &[f64], mut candidates: Vec<usize>, count: usize) -> Vec<usize> {
    candidates.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    candidates.truncate(count);
    candidates
}

/// Where each token goes.
pub(super) struct Routing {
    /// Weight of each chosen expert, `[n, k]` float32.
    pub weights_nk: Tensor<2>,
    /// The chosen experts, `[n, k]`, global numbers, the best first.
    pub experts_nk: Vec<usize>,
    /// Number of experts.
    pub num_experts: usize,
}

impl Router {
    /// The router at `scope`.
    pub fn new(config: &DecoderConfig, moe: &MoeConfig, scope: &Scope) -> Self {
        let (shape, cut) = ([moe.num_experts, config.hidden_size], Cut::Replicated(Meets::ResidualStream));
        let initial = InitialValues::new(config).weight;
        let scope = scope.component(Component::Router);
        let frozen = scope.frozen();
        let expert_bias =
            || frozen.parameter("expert_bias", [moe.num_experts], cut, Initial::Zeros, ParameterRole::Bias);
        let trained = if moe.freeze_router { &frozen } else { &scope };
        Self {
            weight: trained.parameter("weight", shape, cut, initial, ParameterRole::Weight),
            bias: moe
                .router_bias
                .then(|| trained.parameter("bias", [moe.num_experts], cut, Initial::Zeros, ParameterRole::Bias)),
            expert_bias: moe.expert_bias.then(expert_bias),
            settings: Settings {
                topk: moe.topk,
                score_function: moe.score_function,
                raw_scores: moe.raw_scores,
                groups: Groups::new(moe),
                pre_softmax: moe.pre_softmax,
                scaling_factor: moe.topk_scaling_factor.unwrap_or(1.0),
                in_float32: moe.router_in_float32,
                aux_loss_coeff: moe.aux_loss_coeff,
                z_loss_coeff: moe.z_loss_coeff,
            },
        }
    }

    /// Scores, `[b, t, c]` -> `[b, t, e]` float32.
    pub fn logits(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let (weight_ec, bias_e) = (self.weight.val(), self.bias.as_ref().map(|bias_e| bias_e.val()));
        if self.settings.in_float32 {
            return linear(to_float32(x_btc), to_float32(weight_ec), bias_e.map(to_float32));
        }
        to_float32(linear(x_btc, weight_ec, bias_e))
    }

    /// Chooses experts by their scores, `[n, e]` float32.
    pub fn route(&self, logits_ne: Tensor<2>, input: &MoeInput) -> Routing {
        let [n, e] = logits_ne.dims();
        let scores: Vec<f32> =
            logits_ne.clone().without_autodiff().into_data().try_into_vec().expect("scores are float32");
        let bias_e: Vec<f32> = match &self.expert_bias {
            Some(bias_e) => bias_e.val().into_data().iter::<f32>().collect(),
            None => vec![0.0; e],
        };
        let choice = Choice::of(&scores, &bias_e, &self.settings);
        let injected = self.auxiliary_losses(&choice, input);
        let device = logits_ne.device().without_autodiff();
        let (k, experts_nk) = (self.settings.topk, choice.experts_nk.clone());
        let weights_nk = Tensor::from_data(TensorData::new(choice.weights_nk.clone(), [n, k]), &device);
        let settings = self.settings;
        let weights_nk = attach(weights_nk, vec![logits_ne.into_dispatch()], move |d_weights: Tensor<2>| {
            let d_weights: Vec<f32> = d_weights.into_data().try_into_vec().expect("weights are float32");
            let d_scores = choice.score_gradients(&d_weights, &injected, &settings);
            vec![Tensor::<2>::from_data(TensorData::new(d_scores, [n, e]), &device).into_dispatch()]
        });
        Routing { weights_nk, experts_nk, num_experts: e }
    }

    /// Values of the auxiliary losses, to the collector, and what their gradients need.
    fn auxiliary_losses(&self, choice: &Choice, input: &MoeInput) -> Injected {
        let Settings { topk, aux_loss_coeff, z_loss_coeff, .. } = self.settings;
        let e = choice.num_experts;
        let is_balanced = aux_loss_coeff != 0.0;
        if !is_balanced && z_loss_coeff == 0.0 && input.auxiliary.metrics.is_none() {
            return Injected { per_expert: vec![0.0; e], log_z: 0.0 };
        }
        // Tokens of each expert, sums of probabilities, sum of squared log-partitions.
        let mut totals = choice.totals();
        let (context, tensor) = (input.regions.context(), input.regions.tensor());
        // Tensor-parallel ranks have the same tokens here, or each its own; gradients of the scores of the same tokens are summed over
        // the ranks, which all inject the same.
        let (sharing, share) = match input.regions.cuts_experts_alike() {
            true => (vec![context], 1.0 / tensor.size() as f64),
            false => (vec![context, tensor], 1.0),
        };
        let mut n = choice.log_z_n.len() as f64;
        for group in sharing {
            n *= group.size() as f64;
            if let Err(error) = group.all_reduce((&mut totals).into(), ReduceOp::Sum) {
                std::panic::panic_any(error);
            }
        }
        let (tokens, probabilities) = (&totals[..e], &totals[e..2 * e]);
        let scale = e as f64 / (topk as f64 * n * n);
        if let Some(metrics) = input.auxiliary.metrics {
            let balance = scale * tokens.iter().zip(probabilities).map(|(t, p)| t * p).sum::<f64>();
            metrics.record("load_balancing_loss", input.layer, vec![balance]);
            metrics.record("z_loss", input.layer, vec![totals[2 * e] / n]);
            metrics.record("tokens_per_expert", input.layer, tokens.to_vec());
        }
        let share = share * input.auxiliary.gradient_scale;
        Injected {
            per_expert: tokens.iter().map(|tokens| share * aux_loss_coeff * scale * tokens).collect(),
            log_z: share * z_loss_coeff * 2.0 / n,
        }
    }
}

/// Gradients of auxiliary losses: with respect to the probability of each expert, and to a token's log-partition a unit of it.
struct Injected {
    per_expert: Vec<f64>,
    log_z: f64,
}

/// What the router chose, and what backward needs of how.
struct Choice {
    num_experts: usize,
    topk: usize,
    /// Softmax over all experts, `[n, e]`.
    probabilities_ne: Vec<f32>,
    /// With sigmoid scores those, `[n, e]`.
    sigmoids_ne: Vec<f32>,
    /// `log(sum exp score)` of each token.
    log_z_n: Vec<f64>,
    experts_nk: Vec<usize>,
    /// With the scaling factor.
    weights_nk: Vec<f32>,
}

impl Choice {
    fn of(scores_ne: &[f32], bias_e: &[f32], settings: &Settings) -> Self {
        let num_experts = bias_e.len();
        let n = scores_ne.len() / num_experts;
        let topk = settings.topk;
        let mut choice = Self {
            num_experts,
            topk,
            probabilities_ne: Vec::with_capacity(scores_ne.len()),
            sigmoids_ne: Vec::new(),
            log_z_n: Vec::with_capacity(n),
            experts_nk: Vec::with_capacity(n * topk),
            weights_nk: Vec::with_capacity(n * topk),
        };
        for scores in scores_ne.chunks_exact(num_experts) {
            let (probabilities, log_z) = softmax(scores.iter().copied());
            let sigmoids: Vec<f64> = match settings.score_function {
                ScoreFunction::Softmax => Vec::new(),
                ScoreFunction::Sigmoid => scores.iter().map(|score| 1.0 / (1.0 + (-f64::from(*score)).exp())).collect(),
            };
            let compared: Vec<f64> = match settings.score_function {
                ScoreFunction::Sigmoid => sigmoids.iter().zip(bias_e).map(|(s, bias)| s + f64::from(*bias)).collect(),
                ScoreFunction::Softmax if settings.pre_softmax && settings.groups.is_some() => probabilities.clone(),
                ScoreFunction::Softmax => scores.iter().copied().map(f64::from).collect(),
            };
            let candidates =
                settings.groups.map_or_else(|| (0..num_experts).collect(), |groups| groups.experts(&compared));
            let order = best(&compared, candidates, topk);
            let weights: Vec<f64> = match settings.score_function {
                ScoreFunction::Sigmoid => {
                    let sum: f64 = order.iter().map(|expert| sigmoids[*expert]).sum();
                    let divisor = if settings.raw_scores { 1.0 } else { sum + SMALLEST_SUM };
                    order.iter().map(|expert| sigmoids[*expert] / divisor).collect()
                }
                ScoreFunction::Softmax if settings.pre_softmax => {
                    order.iter().map(|expert| probabilities[*expert]).collect()
                }
                ScoreFunction::Softmax => softmax(order.iter().map(|expert| scores[*expert])).0,
            };
            choice.sigmoids_ne.extend(sigmoids.iter().map(|s| *s as f32));
            choice.weights_nk.extend(weights.iter().map(|weight| (weight * settings.scaling_factor) as f32));
            choice.probabilities_ne.extend(probabilities.iter().map(|p| *p as f32));
            choice.experts_nk.extend(order);
            choice.log_z_n.push(log_z);
        }
        choice
    }

    /// Tokens of each expert, sums of probabilities by expert, and the sum of squared log-partitions.
    fn totals(&self) -> Vec<f64> {
        let e = self.num_experts;
        let mut totals = vec![0.0; 2 * e + 1];
        self.experts_nk.iter().for_each(|expert| totals[*expert] += 1.0);
        if self.sigmoids_ne.is_empty() {
            for probabilities in self.probabilities_ne.chunks_exact(e) {
                totals[e..2 * e].iter_mut().zip(probabilities).for_each(|(sum, p)| *sum += f64::from(*p));
            }
        }
        for sigmoids in self.sigmoids_ne.chunks_exact(e) {
            let all: f64 = sigmoids.iter().copied().map(f64::from).sum::<f64>() + SMALLEST_SUM;
            totals[e..2 * e].iter_mut().zip(sigmoids).for_each(|(sum, s)| *sum += f64::from(*s) / all);
        }
        totals[2 * e] = self.log_z_n.iter().map(|log_z| log_z * log_z).sum();
        totals
    }

    /// Gradients of the scores, `[n, e]`, from those of the weights, `[n, k]`.
    fn score_gradients(&self, d_weights_nk: &[f32], injected: &Injected, settings: &Settings) -> Vec<f32> {
        let (e, k) = (self.num_experts, self.topk);
        let mut gradients = Vec::with_capacity(self.probabilities_ne.len());
        for (token, probabilities) in self.probabilities_ne.chunks_exact(e).enumerate() {
            let chosen = token * k..(token + 1) * k;
            let experts = &self.experts_nk[chosen.clone()];
            let d_weights: Vec<f64> =
                d_weights_nk[chosen.clone()].iter().map(|d| f64::from(*d) * settings.scaling_factor).collect();
            if settings.score_function == ScoreFunction::Sigmoid {
                gradients.extend(self.sigmoid_gradients(token, &d_weights, injected, settings));
                continue;
            }
            // With respect to the probabilities over all experts.
            let mut d_probabilities = injected.per_expert.clone();
            if settings.pre_softmax {
                experts.iter().zip(&d_weights).for_each(|(expert, d)| d_probabilities[*expert] += d);
            }
            let p: Vec<f64> = probabilities.iter().map(|p| f64::from(*p)).collect();
            let mean: f64 = p.iter().zip(&d_probabilities).map(|(p, d)| p * d).sum();
            let d_log_z = injected.log_z * self.log_z_n[token];
            let mut d_scores: Vec<f64> =
                p.iter().zip(&d_probabilities).map(|(p, d)| p * (d - mean) + p * d_log_z).collect();
            if !settings.pre_softmax {
                let weights: Vec<f64> =
                    self.weights_nk[chosen].iter().map(|w| f64::from(*w) / settings.scaling_factor).collect();
                let mean: f64 = weights.iter().zip(&d_weights).map(|(w, d)| w * d).sum();
                for ((expert, weight), d) in experts.iter().zip(&weights).zip(&d_weights) {
                    d_scores[*expert] += weight * (d - mean);
                }
            }
            gradients.extend(d_scores.into_iter().map(|d| d as f32));
        }
        gradients
    }

    /// Gradients of a token's scores through their sigmoids, from those of the weights without the scaling factor.
    fn sigmoid_gradients(&self, token: usize, d_weights: &[f64], injected: &Injected, settings: &Settings) -> Vec<f32> {
        let (e, k) = (self.num_experts, self.topk);
        let sigmoids: Vec<f64> = self.sigmoids_ne[token * e..][..e].iter().copied().map(f64::from).collect();
        let all = sigmoids.iter().sum::<f64>() + SMALLEST_SUM;
        let mean = sigmoids.iter().zip(&injected.per_expert).map(|(s, d)| s / all * d).sum::<f64>();
        let mut d_sigmoids: Vec<f64> = injected.per_expert.iter().map(|d| (d - mean) / all).collect();
        let experts = &self.experts_nk[token * k..][..k];
        let chosen = experts.iter().map(|expert| sigmoids[*expert]).sum::<f64>() + SMALLEST_SUM;
        let mean = experts.iter().zip(d_weights).map(|(expert, d)| sigmoids[*expert] / chosen * d).sum::<f64>();
        for (expert, d) in experts.iter().zip(d_weights) {
            d_sigmoids[*expert] += if settings.raw_scores { *d } else { (d - mean) / chosen };
        }
        let d_log_z = injected.log_z * self.log_z_n[token];
        let probabilities = self.probabilities_ne[token * e..][..e].iter();
        let gradients = sigmoids.iter().zip(d_sigmoids).zip(probabilities);
        gradients.map(|((s, d), p)| (s * (1.0 - s) * d + f64::from(*p) * d_log_z) as f32).collect()
    }
}

/// Added to sums of sigmoids, which may all be zero.
const SMALLEST_SUM: f64 = 1e-20;

/// Softmax, and the logarithm of its denominator.
fn softmax(scores: impl Iterator<Item = f32> + Clone) -> (Vec<f64>, f64) {
    let top = f64::from(scores.clone().fold(f32::NEG_INFINITY, f32::max));
    let exponentials: Vec<f64> = scores.map(|score| (f64::from(score) - top).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    (exponentials.into_iter().map(|value| value / sum).collect(), top + sum.ln())
}

fn to_float32<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if x.dtype() == DType::F32 { x } else { x.cast(FloatDType::F32) }
}

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
