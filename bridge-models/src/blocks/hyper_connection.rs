//! Several residual streams side by side, `[b, t, n * c]`: hyper-connections (Zhu et al.,
//! arXiv:2409.19606) with the constraint of DeepSeek's mHC (Xie et al., arXiv:2512.24880). A block
//! reads a weighted sum of the streams, and its output is added to each of them with a weight. The
//! weights are sigmoids of a product with the normed streams. A further matrix for each token may
//! mix the streams; Sinkhorn's algorithm makes its rows and columns sum to one.
//!
//! Further shape letters: `n` streams, `k` weights of a token.

use bridge_core::model::{GradientScope, Initial, ParameterRole, Scope, SegmentCost, TensorPartition, Workload};
use burn::module::{Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{FloatDType, Tensor};

use super::init::InitialValues;
use super::linear::flops;
use super::recompute::recomputed;
use crate::architecture::config::{DecoderConfig, StreamsConfig};

/// Use of the streams by one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamUse {
    /// The block reads them, and its output is added to each of them.
    ReadAndWrite,
    /// The block is the last.
    Read,
}

/// The weights of one block.
#[derive(Module, Debug)]
pub(crate) struct HyperConnection {
    /// `[k, n * c]`.
    weight: Param<Tensor<2>>,
    /// `[k]`.
    bias: Param<Tensor<1>>,
    /// Factors on the products of weights that read, of those that write, and of those that mix.
    scale: Param<Tensor<1>>,
    #[module(skip)]
    streams: StreamsConfig,
    norm_epsilon: f64,
}

/// Number of weights of each sort: that read, that write, and that mix.
fn sizes(streams: StreamsConfig, stream_use: StreamUse) -> Vec<usize> {
    let n = streams.count;
    match stream_use {
        StreamUse::Read => vec![n],
        StreamUse::ReadAndWrite if streams.sinkhorn_iterations == 0 => vec![n, n],
        StreamUse::ReadAndWrite => vec![n, n, n * n],
    }
}

/// Cost of the weights and of their use besides the block: the streams are the segment's input.
pub(crate) fn cost(config: &DecoderConfig, stream_use: StreamUse, work: &Workload) -> SegmentCost {
    let Some(streams) = config.streams else {
        return SegmentCost::default();
    };
    let (weights, tokens) = (sizes(streams, stream_use).iter().sum::<usize>(), work.tokens_between_blocks());
    let stream = tokens * config.hidden_size as u64;
    // The sum that the block reads, and the block's output.
    let output = if stream_use == StreamUse::Read { 0 } else { stream * work.activation_bytes };
    let products = [streams.count * config.hidden_size, config.hidden_size]
        .map(|inputs| flops(work.all_tokens(), inputs, weights));
    SegmentCost {
        flops: products.iter().sum(),
        recomputed_flops: products.iter().sum::<f64>() / 3.0,
        kept: stream * work.stream_bytes + output + tokens * weights as u64 * 4,
        // In float32: the streams, and their gradient.
        brought_back: 2 * stream * streams.count as u64 * 4,
        ..SegmentCost::default()
    }
}

impl HyperConnection {
    /// The weights at `scope`, if the model has several streams.
    pub fn new(config: &DecoderConfig, stream_use: StreamUse, scope: &Scope) -> Option<Self> {
        let streams = config.streams?;
        let parts = sizes(streams, stream_use);
        let weights = parts.iter().sum();
        let whole = TensorPartition::Replicated(GradientScope::ResidualStream);
        let of_streams = streams.count * config.hidden_size;
        let (initial, scale) = (InitialValues::new(config).weight, streams.initial_scale);
        Some(Self {
            weight: scope.parameter("weight", [weights, of_streams], whole, initial, ParameterRole::Weight),
            bias: scope.parameter("bias", [weights], whole, Initial::Zeros, ParameterRole::Bias),
            scale: scope.parameter("scale", [parts.len()], whole, Initial::Uniform([scale; 2]), ParameterRole::Norm),
            streams,
            norm_epsilon: config.norm.epsilon,
        })
    }

    /// The input of the block, `[b, t, n * c]` -> `[b, t, c]`, and the weights for
    /// [`Self::write`].
    pub fn read(&self, x_btf: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let weights_btk = recomputed(self.clone(), [x_btf.clone()], |connection, [x_btf]| connection.weights(x_btf));
        let n = self.streams.count;
        let read_btc = recomputed(n, [x_btf, weights_btk.clone()], |n, [x_btf, weights_btk]| {
            let dtype = FloatDType::from(x_btf.dtype());
            let [b, t, f] = x_btf.dims();
            let weights_bt1n = weights_btk.narrow(2, 0, *n).reshape([b, t, 1, *n]);
            weights_bt1n.matmul(apart(x_btf, *n)).reshape([b, t, f / n]).cast(dtype)
        });
        (read_btc, weights_btk)
    }

    /// The streams after the block, `[b, t, n * c]` -> the same. `weights_btk` is [`Self::read`]'s;
    /// `y_btc` is the block's output.
    pub fn write(&self, x_btf: Tensor<3>, weights_btk: Tensor<3>, y_btc: Tensor<3>) -> Tensor<3> {
        recomputed(self.streams.count, [x_btf, weights_btk, y_btc], |n, [x_btf, weights_btk, y_btc]| {
            let (dtype, [b, t, f], [_, _, k]) = (FloatDType::from(x_btf.dtype()), x_btf.dims(), weights_btk.dims());
            let weights_btn1 = weights_btk.clone().narrow(2, *n, *n).reshape([b, t, *n, 1]);
            let added_btnc = weights_btn1 * apart(y_btc, 1);
            let mut x_btnc = apart(x_btf, *n);
            if k > 2 * n {
                let mix_btnn = weights_btk.narrow(2, 2 * n, n * n).reshape([b, t, *n, *n]);
                x_btnc = mix_btnn.swap_dims(2, 3).matmul(x_btnc);
            }
            (x_btnc + added_btnc).reshape([b, t, f]).cast(dtype)
        })
    }

    /// The weights of each token, `[b, t, n * c]` -> `[b, t, k]` in float32.
    fn weights(&self, x_btf: Tensor<3>) -> Tensor<3> {
        let StreamsConfig { count: n, sinkhorn_iterations, epsilon, output_magnitude, .. } = self.streams;
        let [float32, x_btf] =
            [self.weight.val().transpose().unsqueeze(), x_btf].map(|x: Tensor<3>| x.cast(FloatDType::F32));
        let norm_bt1 = (x_btf.clone().powi_scalar(2).mean_dim(2) + self.norm_epsilon).sqrt().recip();
        let products_btk = x_btf.matmul(float32) * norm_bt1;
        let logits = |part: usize, size: usize| {
            let scale = self.scale.val().narrow(0, part, 1).cast(FloatDType::F32).unsqueeze::<3>();
            let bias = self.bias.val().narrow(0, part * n, size).cast(FloatDType::F32).unsqueeze::<3>();
            products_btk.clone().narrow(2, part * n, size) * scale + bias
        };
        let mut weights = vec![sigmoid(logits(0, n)) + epsilon];
        let [parts] = self.scale.dims();
        if parts > 1 {
            let written = sigmoid(logits(1, n)) * output_magnitude;
            weights.push(if parts > 2 { written } else { written + epsilon });
        }
        if parts > 2 {
            let [b, t, _] = products_btk.dims();
            let logits = logits(2, n * n).reshape([b, t, n, n]);
            weights.push(doubly_stochastic(logits, sinkhorn_iterations, epsilon).reshape([b, t, n * n]));
        }
        Tensor::cat(weights, 2)
    }
}

/// `[b, t, n * c]` -> `[b, t, n, c]` in float32.
fn apart(x_btf: Tensor<3>, n: usize) -> Tensor<4> {
    let [b, t, f] = x_btf.dims();
    x_btf.cast(FloatDType::F32).reshape([b, t, n, f / n])
}

/// Softmax of each row, `[b, t, n, n]` -> the same. Columns and rows are then scaled in turn to sum
/// to one, columns first and last.
fn doubly_stochastic(logits: Tensor<4>, iterations: usize, epsilon: f64) -> Tensor<4> {
    // Softmax is written out, because backends fuse Burn's softmax if there is no graph, and would
    // then round differently.
    let exponentials = (logits.clone() - logits.detach().max_dim(3)).exp();
    let rows = exponentials.clone() / exponentials.sum_dim(3) + epsilon;
    let scaled = |x: Tensor<4>, dim: usize| x.clone() / (x.sum_dim(dim) + epsilon);
    (1..iterations).fold(scaled(rows, 2), |x, _| scaled(scaled(x, 3), 2))
}
