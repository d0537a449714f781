//! A short convolution between two gates, as in LFM2: `out_proj(C * conv(B * x))`, where `B`, `C`
//! and `x` are projections of the residual stream.
//!
//! Further shape letters: `k` taps of the convolution.

use bridge_core::model::{Initial, ParameterRole, Scope, SegmentCost, TensorPartition, Workload};
use bridge_kernels::{Recomputable, linear_causal_conv, split};
use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::attention::AttentionInput;
use super::init::InitialValues;
use super::linear::{Linear, LinearConfig, flops};
use super::regions::{enter_exchanges, leave_exchanges};
use super::residual::BlockOutput;
use crate::architecture::config::DecoderConfig;
use crate::architecture::hybrid::ShortConvConfig;

/// The block, or the channels of it that this rank has.
#[derive(Module, Debug)]
pub(crate) struct ShortConv {
    /// `B`, `C` and `x`.
    in_proj: Linear,
    conv: Convolution,
    out_proj: Linear,
}

/// The taps of each channel.
#[derive(Module, Debug)]
struct Convolution {
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
}

impl ShortConv {
    /// Cost of the block.
    ///
    /// Each term of `kept` is a tensor that an operation's backward captures: the projection's
    /// parts, their product, and the output of the convolution.
    pub fn cost(config: &DecoderConfig, short_conv: &ShortConvConfig, work: &Workload) -> SegmentCost {
        let (c, ranks) = (config.hidden_size, work.place.tensor.size);
        let (a, n, tokens) = (work.activation_bytes, work.tokens(), work.all_tokens());
        let of = |columns: usize| n * (columns / ranks) as u64 * a;
        let stream = n * c as u64 * a;
        let row = c as u64 * work.collective_bytes;
        let layers = [[c, 3 * c / ranks], [c / ranks, c]];
        let in_hand = layers.map(|layer| work.operands_in_hand(n, layer)).into_iter().max().unwrap_or(0);
        let taps = 6.0 * tokens * (c * short_conv.kernel) as f64;
        SegmentCost {
            flops: flops(tokens, c, 4 * c) + taps,
            kept: work.input_alone(n * c as u64) + of(3 * c) + of(2 * c) + work.input_alone(n * (c / ranks) as u64),
            backward: 2 * of(3 * c) + in_hand,
            deferred: 2 * stream + of(4 * c),
            exchanges: [enter_exchanges(row, work), leave_exchanges(row, work)].concat(),
            ..SegmentCost::default()
        }
    }

    /// The block at `scope`. Ranks have equal runs of channels.
    pub fn new(config: &DecoderConfig, short_conv: &ShortConvConfig, scope: &Scope) -> Self {
        let (c, bias, k) = (config.hidden_size, short_conv.bias, short_conv.kernel);
        let matrices = InitialValues::new(config);
        let in_proj = LinearConfig {
            inputs: c,
            outputs: 3 * c,
            bias,
            cut: TensorPartition::Sections([c, c, c, 0, 0, 0]),
            initial: matrices.weight,
        };
        let out_proj =
            LinearConfig { inputs: c, outputs: c, bias, cut: TensorPartition::Columns, initial: matrices.output };
        // PyTorch's initialization of a convolution with this number of inputs an output.
        let bound = 1.0 / (k as f64).sqrt();
        let taps = if config.perform_initialization { Initial::Uniform([-bound, bound]) } else { Initial::Zeros };
        let conv = scope.child("conv");
        let of_bias = || conv.parameter("bias", [c], TensorPartition::Rows, taps, ParameterRole::Bias);
        Self {
            in_proj: Linear::new(&in_proj, scope, "in_proj"),
            conv: Convolution {
                weight: conv.parameter("weight", [c, k], TensorPartition::Rows, taps, ParameterRole::Channels),
                bias: bias.then(of_bias),
            },
            out_proj: Linear::new(&out_proj, scope, "out_proj"),
        }
    }

    /// The block's output, `[b, t, c]` -> the same.
    pub fn forward<'a>(&'a self, x_btc: Recomputable<3>, input: AttentionInput<'a>) -> BlockOutput<'a> {
        let store = input.weight_gradients;
        let projected = self.in_proj.forward(input.regions.enter_recomputable(x_btc), store);
        let [_, _, columns] = projected.dims();
        let [b_btc, c_btc, x_btc] = split(projected, [columns / 3; 3]);
        let (taps, bias) = (self.conv.weight.val(), self.conv.bias.as_ref().map(|bias| bias.val()));
        let gated_btc = b_btc * x_btc;
        let y_btc = match input.recurrent {
            None => linear_causal_conv(gated_btc, taps, bias, input.document_ids),
            Some(state) => state.convolve_linearly(gated_btc, taps, bias),
        };
        BlockOutput::Product { x: (c_btc * y_btc).into(), linear: &self.out_proj, store, module: None }
    }
}
