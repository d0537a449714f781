//! Mamba-2's block (Dao and Gu, arXiv:2405.21060, section 7): a projection, a short causal
//! convolution, the scan of a state space model, a gated norm, and the projection back.
//!
//! | file | content |
//! | --- | --- |
//! | `cost` | FLOPs, bytes and messages |
//! | `state` | SSM state in generation |
//!
//! Further shape letters: `i` channels of the block, `k` taps of the convolution.

mod cost;
mod state;

use bridge_core::model::{Component, Initial, ParameterRole, Scope, TensorPartition};
use bridge_kernels::{Recomputable, ScanInputs, ScanOptions, causal_conv, gated_rms_norm, split, ssd_scan};
use burn::module::{Module, Param};
use burn::tensor::Tensor;

pub(crate) use self::state::MambaState;
use super::attention::AttentionInput;
use super::init::InitialValues;
use super::linear::{Linear, LinearConfig};
use super::residual::BlockOutput;
use crate::architecture::config::DecoderConfig;
use crate::architecture::hybrid::MambaConfig;

/// Range from which the decay rates of heads are drawn.
const DECAY_RATES: [f64; 2] = [1.0, 16.0];
/// Range from which the time steps of the biases are drawn, and their lower bound.
const TIME_STEPS: ([f64; 2], f64) = ([1e-3, 1e-1], 1e-4);

/// The block, or the groups of heads of it that this rank has.
#[derive(Module, Debug)]
pub(crate) struct Mamba {
    in_proj: Linear,
    conv1d: Convolution,
    a_log: Param<Tensor<1>>,
    d: Param<Tensor<1>>,
    dt_bias: Param<Tensor<1>>,
    norm: GatedNorm,
    out_proj: Linear,
    #[module(skip)]
    settings: Settings,
}

/// The taps of each channel.
#[derive(Module, Debug)]
struct Convolution {
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
}

/// The norm of the scan's output.
#[derive(Module, Debug)]
struct GatedNorm {
    weight: Param<Tensor<1>>,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    /// The groups of this rank.
    scan: ScanOptions,
    /// Heads of this rank.
    heads: usize,
    epsilon: f64,
}

impl Mamba {
    /// The block at `scope`. Ranks have whole groups of heads.
    pub fn new(config: &DecoderConfig, mamba: &MambaConfig, scope: &Scope) -> Self {
        let (c, i, h, g) = (config.hidden_size, mamba.inner_size(), mamba.num_heads, mamba.group_size());
        let matrices = InitialValues::new(config);
        let drawn = |initial| if config.perform_initialization { initial } else { Initial::Zeros };
        let in_proj = LinearConfig {
            inputs: c,
            outputs: 2 * i + 2 * g + h,
            bias: mamba.proj_bias,
            cut: TensorPartition::Sections([i, i, g, g, h]),
            initial: matrices.weight,
        };
        let out_proj = LinearConfig {
            inputs: i,
            outputs: c,
            bias: mamba.proj_bias,
            cut: TensorPartition::Columns,
            initial: matrices.output,
        };
        let convolution = scope.child("conv1d");
        let channels = TensorPartition::Sections([i, g, g, 0, 0]);
        // PyTorch's initialization of a convolution with this number of inputs an output.
        let bound = 1.0 / (mamba.conv_kernel as f64).sqrt();
        let taps = drawn(Initial::Uniform([-bound, bound]));
        let bias = || convolution.parameter("bias", [i + 2 * g], channels, taps, ParameterRole::Bias);
        let vector = |name, initial, role| scope.parameter(name, [h], TensorPartition::Rows, drawn(initial), role);
        let (range, least) = TIME_STEPS;
        let norm = scope.child("norm").component(Component::Norm);
        let ranks = scope.place().tensor.size;
        Self {
            in_proj: Linear::new(&in_proj, scope, "in_proj"),
            conv1d: Convolution {
                weight: convolution.parameter(
                    "weight",
                    [i + 2 * g, mamba.conv_kernel],
                    channels,
                    taps,
                    ParameterRole::Weight,
                ),
                bias: mamba.conv_bias.then(bias),
            },
            a_log: vector("A_log", Initial::LogOfUniform(DECAY_RATES), ParameterRole::Weight),
            d: vector("D", Initial::Ones, ParameterRole::Weight),
            dt_bias: vector("dt_bias", Initial::TimeSteps { range, least }, ParameterRole::Bias),
            norm: GatedNorm {
                weight: norm.parameter("weight", [i], TensorPartition::Rows, Initial::Ones, ParameterRole::Norm),
            },
            out_proj: Linear::new(&out_proj, scope, "out_proj"),
            settings: Settings {
                scan: ScanOptions {
                    head_size: mamba.head_size,
                    groups: mamba.num_groups / ranks,
                    state_size: mamba.state_size,
                    chunk_size: mamba.chunk_size,
                    time_steps: [
                        mamba.least_time_step as f32,
                        mamba.largest_time_step.map_or(f32::INFINITY, |step| step as f32),
                    ],
                },
                heads: mamba.num_heads / ranks,
                epsilon: config.norm.epsilon,
            },
        }
    }

    /// The block's output, `[b, t, c]` -> the same; with a state, that of tokens after those that
    /// it has seen.
    pub fn forward<'a>(
        &'a self,
        x_btc: Recomputable<3>,
        input: AttentionInput<'a>,
        state: Option<&mut MambaState>,
    ) -> BlockOutput<'a> {
        let store = input.weight_gradients;
        let Settings { scan, heads, epsilon } = self.settings;
        let (i, g) = (heads * scan.head_size, scan.groups * scan.state_size);
        let projected = self.in_proj.forward(input.regions.enter_recomputable(x_btc), store);
        let [z_bti, xbc_btf, dt_bth] = split(projected, [i, i + 2 * g, heads]);
        let (taps, bias) = (self.conv1d.weight.val(), self.conv1d.bias.as_ref().map(|bias| bias.val()));
        let scan_of = |xbc_btf| ScanInputs {
            xbc_btf,
            dt_bth,
            a_log_h: self.a_log.val(),
            dt_bias_h: self.dt_bias.val(),
            d_h: self.d.val(),
            document_ids: input.document_ids.clone(),
        };
        let y_bti = match state {
            None => {
                let xbc_btf = causal_conv(xbc_btf, taps, bias, input.document_ids.clone());
                ssd_scan(scan_of(xbc_btf), &scan)
            }
            Some(state) => {
                let xbc_btf = state.convolve(xbc_btf, taps, bias);
                state.scan(scan_of(xbc_btf), &scan)
            }
        };
        let x = gated_rms_norm(y_bti, z_bti, self.norm.weight.val(), scan.groups, epsilon);
        BlockOutput::Product { x: x.into(), linear: &self.out_proj, store, module: None }
    }
}
