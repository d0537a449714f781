//! The block of the first Mamba (Gu and Dao, arXiv:2312.00752), with norms of time steps, inputs
//! and outputs of the states, as in Jamba (arXiv:2403.19887): a projection, a short causal
//! convolution, a scan whose parameters are projections of its own input, a gate, and the
//! projection back.
//!
//! Further shape letters: `i` channels of the block, `k` taps of the convolution, `n` numbers of
//! the state for each channel, `r` size of the vector that makes time steps.

use bridge_core::model::{Component, Initial, ParameterRole, Scope, SegmentCost, TensorPartition, Workload};
use bridge_kernels::{Recomputable, SelectiveInputs, causal_conv, selective_scan, selective_scan_from, split};
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::activation::silu;

use super::{Convolution, TIME_STEPS};
use crate::architecture::config::DecoderConfig;
use crate::architecture::hybrid::MambaConfig;
use crate::blocks::attention::AttentionInput;
use crate::blocks::init::InitialValues;
use crate::blocks::linear::{Linear, LinearConfig, flops};
use crate::blocks::norm::Norm;
use crate::blocks::regions::{enter_exchanges, leave_exchanges};
use crate::blocks::residual::BlockOutput;

/// The block, or the channels of it that this rank has.
#[derive(Module, Debug)]
pub(crate) struct SelectiveMamba {
    /// Values and their gate.
    in_proj: Linear,
    conv1d: Convolution,
    /// Time steps, inputs and outputs of the states: a sum over the ranks.
    x_proj: Linear,
    dt_layernorm: Norm,
    b_layernorm: Norm,
    c_layernorm: Norm,
    dt_proj: Linear,
    a_log: Param<Tensor<2>>,
    d: Param<Tensor<1>>,
    dt_bias: Param<Tensor<1>>,
    out_proj: Linear,
    /// Size of the vector that makes time steps, and of a channel's state.
    #[module(skip)]
    sizes: [usize; 2],
}

impl SelectiveMamba {
    /// Cost of the block. The scan counts seven operations for each number of the state and token,
    /// as that of Mamba-2 does.
    ///
    /// Each term of `kept` is a tensor that an operation's backward captures: the projection's
    /// parts, the outputs of the convolution and of the scan, the time steps, the gate's value,
    /// what is projected from the values, and the states between chunks.
    pub fn cost(config: &DecoderConfig, mamba: &MambaConfig, work: &Workload) -> SegmentCost {
        const FLOAT32: u64 = 4;
        /// Tokens between states that are kept.
        const CHUNK: usize = 32;
        let ranks = work.place.tensor.size;
        let (c, i, n) = (config.hidden_size, mamba.inner_size(), mamba.state_size);
        let r = mamba.time_step_rank(c);
        let narrow = r + 2 * n;
        let (a, rows, tokens) = (work.activation_bytes, work.tokens(), work.all_tokens());
        let of = |columns: usize| rows * (columns / ranks) as u64 * a;
        let chunks = (work.seq_length.div_ceil(CHUNK) * work.micro_batch_size) as u64;
        let states = chunks * (i * n / ranks) as u64 * FLOAT32;
        let row = c as u64 * work.collective_bytes;
        let inner = narrow as u64 * work.collective_bytes;
        let layers = [[c, 2 * i / ranks], [i / ranks, narrow], [r, i / ranks], [i / ranks, c]];
        let in_hand = layers.map(|layer| work.operands_in_hand(rows, layer)).into_iter().max().unwrap_or(0);
        let products = [(c, 2 * i), (i, narrow), (r, i), (i, c)];
        let products: f64 = products.into_iter().map(|(inputs, outputs)| flops(tokens, inputs, outputs)).sum();
        let exchanges = [
            enter_exchanges(row, work),
            leave_exchanges(inner, work),
            enter_exchanges(inner, work),
            leave_exchanges(row, work),
        ];
        SegmentCost {
            flops: products + 3.0 * 7.0 * tokens * (i * n) as f64,
            kept: work.input_alone(rows * c as u64)
                + of(2 * i)
                + of(4 * i)
                + 3 * rows * narrow as u64 * a
                + work.input_alone(rows * (i / ranks) as u64)
                + states,
            backward: 2 * of(4 * i) + in_hand,
            deferred: 2 * rows * c as u64 * a + of(4 * i),
            exchanges: exchanges.concat(),
            ..SegmentCost::default()
        }
    }

    /// The block at `scope`. Ranks have equal runs of channels.
    pub fn new(config: &DecoderConfig, mamba: &MambaConfig, scope: &Scope) -> Self {
        let (c, i, n) = (config.hidden_size, mamba.inner_size(), mamba.state_size);
        let (r, k) = (mamba.time_step_rank(c), mamba.conv_kernel);
        let matrices = InitialValues::new(config);
        let drawn = |initial| if config.perform_initialization { initial } else { Initial::Zeros };
        let linear = |name, [inputs, outputs]: [usize; 2], bias, cut, initial| {
            Linear::new(&LinearConfig { inputs, outputs, bias, cut, initial }, scope, name)
        };
        let (rows, columns) = (TensorPartition::Rows, TensorPartition::Columns);
        let halves = TensorPartition::Sections([i, i, 0, 0, 0, 0]);
        let convolution = scope.child("conv1d");
        // PyTorch's initialization of a convolution with this number of inputs an output.
        let bound = 1.0 / (k as f64).sqrt();
        let taps = drawn(Initial::Uniform([-bound, bound]));
        let bias = || convolution.parameter("bias", [i], rows, taps, ParameterRole::Bias);
        let (range, least) = TIME_STEPS;
        let steps = drawn(Initial::TimeSteps { range, least });
        let rates = drawn(Initial::LogOfUniform([1.0, n as f64]));
        let norm = |size, name| Norm::new(config.norm, size, &scope.component(Component::Norm), name);
        Self {
            in_proj: linear("in_proj", [c, 2 * i], mamba.proj_bias, halves, matrices.weight),
            conv1d: Convolution {
                weight: convolution.parameter("weight", [i, k], rows, taps, ParameterRole::Channels),
                bias: mamba.conv_bias.then(bias),
            },
            x_proj: linear("x_proj", [i, r + 2 * n], false, columns, matrices.weight),
            dt_layernorm: norm(r, "dt_layernorm"),
            b_layernorm: norm(n, "b_layernorm"),
            c_layernorm: norm(n, "c_layernorm"),
            dt_proj: linear("dt_proj", [r, i], false, rows, matrices.weight),
            a_log: scope.parameter("A_log", [i, n], rows, rates, ParameterRole::Channels),
            d: scope.parameter("D", [i], rows, drawn(Initial::Ones), ParameterRole::Weight),
            dt_bias: scope.parameter("dt_bias", [i], rows, steps, ParameterRole::Bias),
            out_proj: linear("out_proj", [i, c], mamba.has_out_bias(), columns, matrices.output),
            sizes: [r, n],
        }
    }

    /// The block's output, `[b, t, c]` -> the same.
    pub fn forward<'a>(&'a self, x_btc: Recomputable<3>, input: AttentionInput<'a>) -> BlockOutput<'a> {
        let (regions, store, [r, n]) = (input.regions, input.weight_gradients, self.sizes);
        let projected = self.in_proj.forward(regions.enter_recomputable(x_btc), store);
        let [_, _, columns] = projected.dims();
        let [x_bti, z_bti] = split(projected, [columns / 2; 2]);
        let (taps, bias) = (self.conv1d.weight.val(), self.conv1d.bias.as_ref().map(|bias| bias.val()));
        let mut recurrent = input.recurrent;
        let x_bti = match &mut recurrent {
            None => causal_conv(x_bti, taps, bias, input.document_ids.clone()),
            Some(state) => state.convolve(x_bti, taps, bias),
        };
        // The ranks' terms are summed, and the norms see the tokens that the residual stream has.
        let parts = self.x_proj.forward_and_leave(x_bti.clone().into(), regions, store);
        let [dt_btr, b_btn, c_btn] = split(parts, [r, n, n]);
        let normed =
            [self.dt_layernorm.forward(dt_btr), self.b_layernorm.forward(b_btn), self.c_layernorm.forward(c_btn)];
        let parts = regions.enter(Tensor::cat(normed.to_vec(), 2));
        let [dt_btr, b_btn, c_btn] = split(parts, [r, n, n]);
        let inputs = SelectiveInputs {
            x_bti,
            dt_bti: self.dt_proj.forward(dt_btr, store),
            a_log_in: self.a_log.val(),
            b_btn,
            c_btn,
            dt_bias_i: self.dt_bias.val(),
            d_i: self.d.val(),
            document_ids: input.document_ids,
        };
        let y_bti = match recurrent {
            None => selective_scan(inputs),
            Some(state) => {
                let before = state.heads.take().map(|state| state.squeeze_dim::<3>(2));
                let (y_bti, after) = selective_scan_from(inputs, before);
                state.heads = Some(after.unsqueeze_dim(2));
                y_bti
            }
        };
        BlockOutput::Product { x: (y_bti * silu(z_bti)).into(), linear: &self.out_proj, store, module: None }
    }
}
