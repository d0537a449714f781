//! Alternating updates (Baykal et al., arXiv:2301.13310) as in Gemma 3n: several residual streams
//! side by side, `[b, t, n * c]`, of which the blocks of a layer read and write one.
//!
//! With `x_i` the streams, `P` and `k` weights of a token and `y` the output of the layer for
//! `p_active`:
//!
//! ```text
//! p_i = x_i + sum over j of P_ij x_j
//! x_i <- p_i + (1 + k_i) (y - p_active)
//! ```
//!
//! The weights are products of `tanh(router(norm(x) / c))`, of `x_active` and of `y`. Attention has
//! another branch beside it (LAuReL, arXiv:2411.07501).

use bridge_core::model::{GradientScope, Initial, ParameterRole, Scope, SegmentCost, TensorPartition, Workload};
use burn::module::{Module, Param};
use burn::tensor::{FloatDType, Tensor};

use super::linear::{Linear, flops};
use super::norm::{Norm, statistics};
use super::per_layer::replicated;
use super::recompute::recomputed;
use crate::architecture::config::{AltUpConfig, DecoderConfig};

/// The dimension of a token's elements.
const FEATURES: usize = 2;
/// Least mean square of a stream that is scaled to another's.
const LEAST_MEAN_SQUARE: f64 = 1e-5;

/// Prediction and correction of the streams by one layer, and the branch beside attention.
#[derive(Module, Debug)]
pub(crate) struct AltUp {
    router_norm: Norm,
    modality_router: Linear,
    prediction_coefs: Linear,
    correction_coefs: Linear,
    /// Factors on the active stream where the layer's own vectors gate it.
    correct_output_scale: Param<Tensor<1>>,
    laurel_left: Linear,
    laurel_right: Linear,
    post_laurel_norm: Norm,
    #[module(skip)]
    altup: AltUpConfig,
}

impl AltUp {
    /// The parameters of the layer at `scope`, if the model has such streams.
    pub fn new(config: &DecoderConfig, scope: &Scope) -> Option<Self> {
        let altup = config.altup?;
        let (n, c, r) = (altup.count, config.hidden_size, altup.laurel_rank);
        let whole = TensorPartition::Replicated(GradientScope::ResidualStream);
        let (own, laurel) = (scope.child("altup"), scope.child("laurel"));
        Some(Self {
            router_norm: Norm::new(config.norm, c, &own, "router_norm"),
            modality_router: replicated(c, n, config, &own, "modality_router"),
            prediction_coefs: replicated(n, n * n, config, &own, "prediction_coefs"),
            correction_coefs: replicated(n, n, config, &own, "correction_coefs"),
            correct_output_scale: own.parameter(
                "correct_output_scale",
                [c],
                whole,
                Initial::Zeros,
                ParameterRole::Norm,
            ),
            laurel_left: replicated(c, r, config, &laurel, "linear_left"),
            laurel_right: replicated(r, c, config, &laurel, "linear_right"),
            post_laurel_norm: Norm::new(config.norm, c, &laurel, "post_laurel_norm"),
            altup,
        })
    }

    /// Cost of both steps and of the branch beside attention.
    pub fn cost(config: &DecoderConfig, work: &Workload) -> SegmentCost {
        let Some(AltUpConfig { count: n, laurel_rank, .. }) = config.altup else {
            return SegmentCost::default();
        };
        let (c, tokens) = (config.hidden_size, work.tokens_between_blocks());
        let (stream, narrow) = (tokens * c as u64, tokens * laurel_rank as u64);
        let weights = 2.0 * flops(work.all_tokens(), c, n) + flops(work.all_tokens(), n, n * (n + 1) + c * (n + 2));
        let streams = SegmentCost {
            flops: weights + flops(work.all_tokens(), c, 2 * laurel_rank),
            recomputed_flops: weights / 3.0,
            // Predicted streams, the difference to the layer's output, inputs of the router before
            // and after its norm, and the branch before its norm.
            kept: (n as u64 + 2) * stream * work.stream_bytes
                + 3 * stream * work.activation_bytes
                + work.input_alone(narrow),
            // In float32: the streams, and their gradient.
            brought_back: 2 * stream * n as u64 * 4,
            ..SegmentCost::default()
        };
        streams.and(statistics(config.norm, tokens))
    }

    /// The streams as the layer expects them, `[b, t, n * c]` -> the same.
    pub fn predict(&self, x_btf: Tensor<3>) -> Tensor<3> {
        let weights = self.prediction_coefs.forward(self.modalities(self.active(&x_btf)), None);
        recomputed(self.altup.count, [x_btf, weights], |n, [x_btf, weights]| {
            let (dtype, n, [b, t, f]) = (FloatDType::from(x_btf.dtype()), *n, x_btf.dims());
            let weights_btnn = weights.cast(FloatDType::F32).reshape([b, t, n, n]);
            let x_btnc = x_btf.cast(FloatDType::F32).reshape([b, t, n, f / n]);
            (weights_btnn.matmul(x_btnc.clone()) + x_btnc).reshape([b, t, f]).cast(dtype)
        })
    }

    /// The predicted streams moved towards the layer's output: `[b, t, n * c]` and `[b, t, c]` ->
    /// `[b, t, n * c]`.
    pub fn correct(&self, predicted_btf: Tensor<3>, y_btc: Tensor<3>) -> Tensor<3> {
        let weights = self.correction_coefs.forward(self.modalities(y_btc.clone()), None);
        let moved_btc = y_btc - self.active(&predicted_btf);
        recomputed(self.altup.count, [predicted_btf, moved_btc, weights], |n, [x_btf, moved_btc, weights]| {
            let (dtype, n, [b, t, f]) = (FloatDType::from(x_btf.dtype()), *n, x_btf.dims());
            let weights_btn1 = weights.cast(FloatDType::F32).reshape([b, t, n, 1]) + 1.0;
            let moved_bt1c = moved_btc.cast(FloatDType::F32).reshape([b, t, 1, f / n]);
            let x_btnc = x_btf.cast(FloatDType::F32).reshape([b, t, n, f / n]);
            (x_btnc + weights_btn1 * moved_bt1c).reshape([b, t, f]).cast(dtype)
        })
    }

    /// The stream that the layer's blocks read and write.
    pub fn active(&self, x_btf: &Tensor<3>) -> Tensor<3> {
        let c = x_btf.dims()[FEATURES] / self.altup.count;
        x_btf.clone().narrow(FEATURES, self.altup.active * c, c)
    }

    /// The streams with a branch of the active one added to all but the first.
    pub fn add_branch(&self, x_btf: Tensor<3>, branch: impl FnOnce(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
        let dtype = FloatDType::from(x_btf.dtype());
        let active_btc = self.active(&x_btf) * self.correct_output_scale.val().cast(dtype).unsqueeze();
        let y_btc = branch(active_btc).cast(dtype);
        let (n, c) = (self.altup.count, y_btc.dims()[FEATURES]);
        let others = x_btf.clone().narrow(FEATURES, c, (n - 1) * c) + y_btc.repeat_dim(FEATURES, n - 1);
        Tensor::cat(vec![x_btf.narrow(FEATURES, 0, c), others], FEATURES)
    }

    /// The branch beside attention, `[b, t, c]` -> the same.
    pub fn laurel(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let y_btc = self.laurel_right.forward(self.laurel_left.forward(x_btc.clone(), None), None);
        x_btc + self.post_laurel_norm.forward(y_btc)
    }

    fn modalities(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let c = x_btc.dims()[FEATURES] as f64;
        let x_btc = self.router_norm.forward_into_layers(x_btc) / c;
        let dtype = FloatDType::from(x_btc.dtype());
        self.modality_router.forward(x_btc, None).cast(FloatDType::F32).tanh().cast(dtype)
    }
}

/// Projections between the embedding or the head and all streams but the first.
#[derive(Module, Debug)]
pub(crate) struct StreamProjections {
    projections: Vec<Linear>,
    /// Dtype of the layers.
    #[module(skip)]
    dtype: FloatDType,
}

impl StreamProjections {
    /// The projections called `name` and a number, if the model has such streams.
    pub fn new(config: &DecoderConfig, scope: &Scope, name: &str) -> Option<Self> {
        let (altup, c) = (config.altup?, config.hidden_size);
        let scope = scope.child(name);
        let layer = |index: usize| replicated(c, c, config, &scope, &index.to_string());
        Some(Self { projections: (0..altup.count - 1).map(layer).collect(), dtype: scope.dtype() })
    }

    /// Cost of the projections and of scaling them, beside the segment's input.
    pub fn cost(config: &DecoderConfig, work: &Workload) -> SegmentCost {
        let (others, c) = (config.altup.map_or(0, |altup| altup.count - 1), config.hidden_size);
        let streams = work.tokens_between_blocks() * (others * c) as u64;
        SegmentCost {
            flops: flops(work.all_tokens(), c, others * c),
            kept: streams * work.activation_bytes + 2 * streams * 4,
            backward: streams * work.activation_bytes,
            ..SegmentCost::default()
        }
    }

    /// `[b, t, c]` -> all streams, `[b, t, n * c]`.
    pub fn spread(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let others = self
            .projections
            .iter()
            .map(|layer| scaled_like(layer.forward(x_btc.clone().cast(self.dtype), None), &x_btc));
        Tensor::cat([x_btc.clone()].into_iter().chain(others).collect(), FEATURES)
    }

    /// The mean of all streams, `[b, t, n * c]` -> `[b, t, c]`.
    pub fn mean(&self, x_btf: Tensor<3>) -> Tensor<3> {
        let n = self.projections.len() + 1;
        let c = x_btf.dims()[FEATURES] / n;
        let first = x_btf.clone().narrow(FEATURES, 0, c);
        let others = self.projections.iter().enumerate().map(|(index, layer)| {
            let x_btc = x_btf.clone().narrow(FEATURES, (index + 1) * c, c).cast(self.dtype);
            scaled_like(layer.forward(x_btc, None), &first)
        });
        others.fold(first.clone(), |sum, stream| sum + stream) / n as f64
    }
}

/// `y_btc` with the root mean square of `like`, `[b, t, c]` -> the same.
fn scaled_like(y_btc: Tensor<3>, like: &Tensor<3>) -> Tensor<3> {
    let dtype = FloatDType::from(like.dtype());
    let [y_btc, like] = [y_btc, like.clone()].map(|x| x.cast(FloatDType::F32));
    let mean_square = |x: Tensor<3>| x.powi_scalar(2).mean_dim(FEATURES);
    let factors = mean_square(like) / mean_square(y_btc.clone()).clamp_min(LEAST_MEAN_SQUARE);
    (y_btc * factors.sqrt()).cast(dtype)
}
