//! The router: scores of experts, the choice of the best, and the losses that keep the choice
//! balanced.
//!
//! Let `p` be the softmax of a token's scores over all `e` experts. A token goes to the `k` experts
//! with the largest scores, weighted by the softmax over those alone, or by `p` itself
//! (`moe_router_pre_softmax`).
//!
//! With sigmoid scores (DeepSeek-V3, arXiv:2412.19437, equations 12 to 16) each expert has a score
//! of its own; weights are their shares of the sum of the chosen ones, and `p` below is a score's
//! share of the sum of all. A bias may be added to the scores for the choice alone. With groups of
//! experts a token uses those of the best few groups, by the sum of the best scores in each. With
//! softmax scores a bias is added to `p` for the choice.
//!
//! With SparseMixer (arXiv:2409.12136) each chosen expert is weighted by a softmax of its own, over
//! the scores that are close to its score. Phi-3.5-MoE was trained by sampling experts from these,
//! with a gradient estimator for that; here experts are chosen and differentiated as in evaluation.
//!
//! - Load balancing (Fedus et al., arXiv:2101.03961, equations 4 to 6, for `k` choices): `e / (k
//!   n^2) sum_i tokens_i sum_n p_ni` over the `n` tokens of a micro-batch; or of each sequence by
//!   itself (DeepSeek-V3, equations 17 to 20), a mean over sequences; or with the tokens of the
//!   global batch so far in place of `tokens_i` (Qiu et al., arXiv:2501.11873, section 3).
//!   `tokens_i` counts the `k` largest scores of each token, without the bias, groups or balancing
//!   that decide where it goes, as upstream does.
//! - z-loss (Zoph et al., arXiv:2202.08906, equation 5): the mean over tokens of `log(sum_i exp
//!   score_i)^2`.
//!
//! Padding is not routed and not counted: `n` is the number of other tokens. All losses are means
//! over a micro-batch, on any number of ranks. The loss that the model returns does not include
//! them: backward adds their gradients to the gradients of the scores, and their values go to the
//! collector of the forward context.

use bridge_core::config::RouterDType;
use bridge_core::model::{Component, GradientScope, Initial, ParameterRole, Scope, TensorPartition};
use bridge_kernels::vjp::attach;
use bridge_kernels::{linear, rms_norm};
use burn::module::{Module, Param};
use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData};

use super::balance::{Coefficients, WholeBatch, sinkhorn};
use super::capacity::Capacity;
use super::choice::{Choice, Settings};
use super::input::MoeInput;
use crate::architecture::config::{DecoderConfig, MoeConfig};
use crate::blocks::init::InitialValues;

/// A score for each expert.
#[derive(Module, Debug)]
pub(super) struct Router {
    weight: Param<Tensor<2>>,
    /// Added to the scores, `[e]`.
    bias: Option<Param<Tensor<1>>>,
    /// Added to the scores for the choice, `[e]`.
    expert_bias: Option<Param<Tensor<1>>>,
    /// The experts of each token of the vocabulary, `[v, k]`, which are not trained.
    token_experts: Option<Param<Tensor<2>>>,
    /// Factors of the norm of the input, `[c]`, and on the weights of experts, `[e]`.
    scales: Option<[Param<Tensor<1>>; 2]>,
    #[module(skip)]
    norm_epsilon: f64,
    #[module(skip)]
    settings: Settings,
    #[module(skip)]
    coefficients: Coefficients,
    #[module(skip)]
    training: TrainingSettings,
}

/// Destination of each token.
pub(super) struct Routing {
    /// Weight of each chosen expert, `[n, k]` float32.
    pub weights_nk: Tensor<2>,
    /// The chosen experts, `[n, k]`, global numbers, the best first; the number of experts for a
    /// choice that was dropped, and one more for the choice of an identity expert.
    pub experts_nk: Vec<usize>,
    /// Number of experts, without those that are the identity.
    pub num_experts: usize,
}

impl Router {
    /// The router at `scope`.
    pub fn new(config: &DecoderConfig, moe: &MoeConfig, scope: &Scope) -> Self {
        let (shape, cut) =
            ([moe.num_choices(), config.hidden_size], TensorPartition::Replicated(GradientScope::ResidualStream));
        let initial = InitialValues::new(config).weight;
        let scope = scope.component(Component::Router);
        let frozen = scope.frozen();
        let expert_bias =
            || frozen.parameter("expert_bias", [moe.num_choices()], cut, Initial::Zeros, ParameterRole::ExpertBias);
        let trained = if moe.freeze_router { &frozen } else { &scope };
        // As upstream, and as the family that has such biases.
        let bias = || trained.parameter("bias", [moe.num_choices()], cut, initial, ParameterRole::Bias);
        // Each tensor-parallel rank has a part of the experts' outputs, whose weights these are.
        let own = TensorPartition::Replicated(GradientScope::OwnPart);
        let scale = |name, size, cut| trained.parameter(name, [size], cut, Initial::Ones, ParameterRole::Norm);
        Self {
            weight: trained.parameter("weight", shape, cut, initial, ParameterRole::Weight),
            bias: moe.router_bias.then(bias),
            expert_bias: moe.expert_bias.then(expert_bias),
            token_experts: (moe.hash_layers > 0).then(|| {
                let shape = [config.vocab_size, moe.topk];
                let drawn = Initial::Uniform([0.0, moe.num_experts as f64]);
                frozen.parameter("token_experts", shape, cut, drawn, ParameterRole::Embedding)
            }),
            scales: moe
                .scaled_router
                .then(|| [scale("input_scale", config.hidden_size, cut), scale("expert_scale", moe.num_experts, own)]),
            norm_epsilon: config.norm.epsilon,
            settings: Settings::new(moe),
            coefficients: Coefficients::new(moe),
            training: TrainingSettings::new(moe),
        }
    }

    /// Scores, `[b, t, c]` of the residual stream -> `[b, t, e]`, float32 or float64.
    pub fn logits(&self, x_btc: Tensor<3>, input: &MoeInput) -> Tensor<3> {
        let (weight_ec, bias_e) = (self.weight.val(), self.bias.as_ref().map(|bias_e| bias_e.val()));
        let x_btc = match &self.scales {
            Some([scale_c, _]) => {
                let factor = (x_btc.dims()[2] as f64).powf(-0.5);
                rms_norm(x_btc, scale_c.val() * factor, self.norm_epsilon)
            }
            None => x_btc,
        };
        let x_btc = self.training.with_noise(x_btc, input);
        let in_dtype = |x_btc, dtype| {
            linear(
                to_dtype(x_btc, dtype),
                to_dtype(weight_ec.clone(), dtype),
                bias_e.clone().map(|b| to_dtype(b, dtype)),
            )
        };
        let logits_bte = match self.settings.precision {
            None => to_dtype(linear(x_btc, weight_ec, bias_e), DType::F32),
            Some(RouterDType::Fp32) => in_dtype(x_btc, DType::F32),
            Some(RouterDType::Fp64) => in_dtype(x_btc, DType::F64),
        };
        self.training.forced(logits_bte, input)
    }

    /// Chooses experts by their scores, `[b, t, e]`.
    pub fn route(&self, logits_bte: Tensor<3>, input: &MoeInput) -> Routing {
        let [b, t, e] = logits_bte.dims();
        let (n, dtype) = (b * t, logits_bte.dtype());
        let scores: Vec<f64> = logits_bte.clone().without_autodiff().into_data().iter::<f64>().collect();
        let bias_e: Vec<f32> = match &self.expert_bias {
            Some(bias_e) => bias_e.val().into_data().iter::<f32>().collect(),
            None => vec![0.0; e],
        };
        let padding_n = input.padding_of_router(b, t);
        let by_token = self.token_experts.as_ref().map(|table_vk| {
            let table: Vec<f32> = table_vk.val().into_data().iter::<f32>().collect();
            by_token(&table, self.settings.topk, &input.tokens_of_router(b, t), e)
        });
        let selection_scores = by_token.or_else(|| self.training.selection_scores(&scores, &padding_n, n, b, input));
        let choice =
            Choice::from_scores(&scores, &bias_e, selection_scores.as_deref(), &self.settings).with_padding(padding_n);
        let injected = self.coefficients.losses(&choice, b, input);
        let device = logits_bte.device().without_autodiff();
        let (k, mut experts_nk) = (self.settings.topk, choice.experts_nk.clone());
        let mut weights: Vec<f32> = choice.weights_nk.iter().map(|weight| *weight as f32).collect();
        let mut dropped_nk: Vec<bool> = (0..n * k).map(|place| choice.is_padding(place / k)).collect();
        if let Some(capacity) = self.training.capacity.filter(|_| input.key.is_some()) {
            let above = capacity.dropped(&choice, b, input);
            dropped_nk.iter_mut().zip(above).for_each(|(dropped, above)| *dropped |= above);
        }
        let num_experts = e - self.settings.identity_experts;
        experts_nk
            .iter_mut()
            .for_each(|expert| *expert = if *expert < num_experts { *expert } else { num_experts + 1 });
        // The weight of a dropped choice has no gradient, because its factor is a row of zeros.
        for place in dropped_nk.into_iter().enumerate().filter_map(|(place, dropped)| dropped.then_some(place)) {
            (experts_nk[place], weights[place]) = (num_experts, 0.0);
        }
        let weights_nk = Tensor::from_data(TensorData::new(weights, [n, k]), &device);
        let settings = self.settings;
        let weights_nk = attach(weights_nk, vec![logits_bte.into_dispatch()], move |d_weights: Tensor<2>| {
            let d_weights: Vec<f32> = d_weights.into_data().try_into_vec().expect("weights are float32");
            let d_scores = choice.score_gradients(&d_weights, &injected, &settings);
            let d_scores = TensorData::new(d_scores, [b, t, e]).convert_dtype(dtype);
            vec![Tensor::<3>::from_data(d_scores, (&device, dtype)).into_dispatch()]
        });
        let weights_nk = match &self.scales {
            Some([_, scale_e]) => {
                // Choices that were dropped have a weight of zero.
                let places = experts_nk.iter().map(|expert| (*expert).min(num_experts - 1) as i64).collect::<Vec<_>>();
                let places = Tensor::<1, Int>::from_data(TensorData::new(places, [n * k]), &weights_nk.device());
                weights_nk * scale_e.val().cast(FloatDType::F32).select(0, places).reshape([n, k])
            }
            None => weights_nk,
        };
        Routing { weights_nk, experts_nk, num_experts }
    }
}

/// Scores, `[n, e]`, of which the largest are those of the `k` experts that `table` has for each
/// token.
fn by_token(table: &[f32], k: usize, tokens_n: &[i64], e: usize) -> Vec<f64> {
    let mut scores = vec![0.0; tokens_n.len() * e];
    for (row, token) in scores.chunks_exact_mut(e).zip(tokens_n) {
        let experts = table.chunks_exact(k).nth(*token as usize).into_iter().flatten();
        experts.for_each(|expert| row[(*expert as usize).min(e - 1)] = 1.0);
    }
    scores
}

/// Settings of routing that apply in training only.
#[derive(Clone, Copy, Debug)]
struct TrainingSettings {
    /// Each element of the input is multiplied by a number drawn from between one minus this and
    /// one plus this.
    jitter: f64,
    /// True if scores are random and do not depend on the input.
    forced: bool,
    sinkhorn: bool,
    capacity: Option<Capacity>,
}

impl TrainingSettings {
    fn new(moe: &MoeConfig) -> Self {
        Self {
            jitter: moe.input_jitter,
            forced: moe.force_balancing,
            sinkhorn: moe.sinkhorn,
            capacity: Capacity::new(moe),
        }
    }

    fn with_noise(self, x_btc: Tensor<3>, input: &MoeInput) -> Tensor<3> {
        let Some(key) = input.key.filter(|_| self.jitter > 0.0 && !self.forced) else { return x_btc };
        let stream = key.0.derive(noise::JITTER);
        let factor = |draw: f64| (1.0 + self.jitter * (2.0 * draw - 1.0)) as f32;
        let draw = |run| stream.uniform_range(run).into_iter().map(factor).collect();
        let factors_btc = input.regions.drawn(x_btc.dims(), &x_btc.device(), x_btc.dtype(), draw);
        x_btc * factors_btc
    }

    /// Drawn scores, with gradients as if they were the computed ones.
    fn forced(self, logits_bte: Tensor<3>, input: &MoeInput) -> Tensor<3> {
        let Some(key) = input.key.filter(|_| self.forced) else { return logits_bte };
        let stream = key.0.derive(noise::FORCED);
        let (device, dtype) = (logits_bte.device(), logits_bte.dtype());
        let drawn_bte = input.regions.drawn(logits_bte.dims(), &device, dtype, |run| stream.normal_range(run, 1.0));
        attach(drawn_bte, vec![logits_bte.into_dispatch()], |gradient: Tensor<3>| vec![gradient.into_dispatch()])
    }

    /// By what experts are chosen, `[n, e]`, where it is not the scores of `batch` sequences
    /// themselves.
    fn selection_scores(
        self,
        scores_ne: &[f64],
        padding_n: &[bool],
        n: usize,
        batch: usize,
        input: &MoeInput,
    ) -> Option<Vec<f64>> {
        if !self.sinkhorn || input.key.is_none() {
            return None;
        }
        let e = scores_ne.len() / n;
        if padding_n.is_empty() {
            let whole = WholeBatch::gather(scores_ne, n, batch, input);
            return Some(whole.own_rows(&sinkhorn(&whole.rows, e), e));
        }
        // Scores, then 1 for padding, whose scores are kept unchanged and excluded from the
        // balancing.
        let marked = scores_ne.chunks_exact(e).zip(padding_n);
        let marked: Vec<f64> =
            marked.flat_map(|(row, pads)| row.iter().copied().chain([f64::from(u8::from(*pads))])).collect();
        let whole = WholeBatch::gather(&marked, n, batch, input);
        let is_counted = |row: &&[f64]| row[e] == 0.0;
        let counted = whole.rows.chunks_exact(e + 1).filter(is_counted).flat_map(|row| row[..e].iter().copied());
        let balanced = sinkhorn(&counted.collect::<Vec<_>>(), e);
        let mut balanced = balanced.chunks_exact(e);
        let all = whole.rows.chunks_exact(e + 1).flat_map(|row| {
            let row = if is_counted(&row) { balanced.next().unwrap_or(&row[..e]) } else { &row[..e] };
            row.iter().copied()
        });
        Some(whole.own_rows(&all.collect::<Vec<_>>(), e))
    }
}

/// Streams of random numbers of a router.
mod noise {
    pub const JITTER: u64 = 0;
    pub const FORCED: u64 = 1;
}

fn to_dtype<const D: usize>(x: Tensor<D>, dtype: DType) -> Tensor<D> {
    if x.dtype() == dtype { x } else { x.cast(FloatDType::from(dtype)) }
}

#[cfg(test)]
#[path = "router_tests.rs"]
mod tests;
