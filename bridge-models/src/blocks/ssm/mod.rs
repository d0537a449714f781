//! Mamba-2's block (Dao and Gu, arXiv:2405.21060, section 7): a projection, a short causal
//! convolution, the scan of a state space model, a gated norm, and the projection back.
//!
//! | file | content |
//! | --- | --- |
//! | `cost` | FLOPs, bytes and messages |
//! | `selective` | the block of the first Mamba |
//!
//! Further shape letters: `i` channels of the block, `k` taps of the convolution.

mod cost;
pub(crate) mod selective;

use bridge_core::model::{Component, Initial, ParameterRole, Scope, TensorPartition};
use bridge_kernels::{
    Recomputable, ScanInputs, ScanOptions, causal_conv, gated_rms_norm, rms_norm, split, ssd_scan, ssd_scan_from,
};
use burn::module::{Module, Param};
use burn::tensor::activation::silu;
use burn::tensor::{FloatDType, Tensor};

use super::attention::AttentionInput;
use super::init::InitialValues;
use super::linear::{Linear, LinearConfig};
use super::residual::BlockOutput;
use crate::architecture::config::DecoderConfig;
use crate::architecture::hybrid::{HybridConfig, MAMBA_PARTS};

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
    norm: Option<GatedNorm>,
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
    norm_before_gate: bool,
    epsilon: f64,
    /// Factors on the parts of the projection.
    factors: [f64; MAMBA_PARTS],
}

impl Mamba {
    /// The block at `scope`. Ranks have whole groups of heads.
    pub fn new(config: &DecoderConfig, hybrid: &HybridConfig, scope: &Scope) -> Self {
        let mamba = &hybrid.mamba;
        let (c, i, h, g) = (config.hidden_size, mamba.inner_size(), mamba.num_heads, mamba.group_size());
        let matrices = InitialValues::new(config);
        let drawn = |initial| if config.perform_initialization { initial } else { Initial::Zeros };
        let in_proj = LinearConfig {
            inputs: c,
            outputs: 2 * i + 2 * g + h,
            bias: mamba.proj_bias,
            cut: TensorPartition::Sections([i, i, g, g, h, 0]),
            initial: matrices.weight,
        };
        let out_proj = LinearConfig {
            inputs: i,
            outputs: c,
            bias: mamba.has_out_bias(),
            cut: TensorPartition::Columns,
            initial: matrices.output,
        };
        let convolution = scope.child("conv1d");
        let channels = TensorPartition::Sections([i, g, g, 0, 0, 0]);
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
                    ParameterRole::Channels,
                ),
                bias: mamba.conv_bias.then(bias),
            },
            a_log: vector("A_log", Initial::LogOfUniform(DECAY_RATES), ParameterRole::Weight),
            d: vector("D", Initial::Ones, ParameterRole::Weight),
            dt_bias: vector("dt_bias", Initial::TimeSteps { range, least }, ParameterRole::Bias),
            norm: mamba.has_norm.then(|| GatedNorm {
                weight: norm.parameter("weight", [i], TensorPartition::Rows, Initial::Ones, ParameterRole::Norm),
            }),
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
                norm_before_gate: mamba.norm_before_gate,
                epsilon: mamba.norm_epsilon.unwrap_or(config.norm.epsilon),
                factors: hybrid.factors.mamba_parts,
            },
        }
    }

    /// The block's output, `[b, t, c]` -> the same.
    pub fn forward<'a>(&'a self, x_btc: Recomputable<3>, input: AttentionInput<'a>) -> BlockOutput<'a> {
        let store = input.weight_gradients;
        let Settings { scan, heads, factors, .. } = self.settings;
        let (i, g) = (heads * scan.head_size, scan.groups * scan.state_size);
        let projected = self.in_proj.forward(input.regions.enter_recomputable(x_btc), store);
        let projected = scaled_parts(projected, factors, [i, i, g, g, heads]);
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
        let y_bti = match input.recurrent {
            None => {
                let xbc_btf = causal_conv(xbc_btf, taps, bias, input.document_ids.clone());
                ssd_scan(scan_of(xbc_btf), &scan)
            }
            Some(state) => {
                let xbc_btf = state.convolve(xbc_btf, taps, bias);
                let (y_bti, after) = ssd_scan_from(scan_of(xbc_btf), state.heads.take(), &scan);
                state.heads = Some(after);
                y_bti
            }
        };
        let x = self.gated(y_bti, z_bti);
        BlockOutput::Product { x: x.into(), linear: &self.out_proj, store, module: None }
    }

    /// The scan's output, normalized and gated, or gated alone: `[b, t, i]` twice -> the same.
    fn gated(&self, y_bti: Tensor<3>, z_bti: Tensor<3>) -> Tensor<3> {
        let Settings { scan, norm_before_gate, epsilon, .. } = self.settings;
        let Some(norm) = &self.norm else { return y_bti * silu(z_bti) };
        let weight = norm.weight.val();
        if !norm_before_gate {
            return gated_rms_norm(y_bti, z_bti, weight, scan.groups, epsilon);
        }
        let ([b, t, i], dtype) = (y_bti.dims(), FloatDType::from(y_bti.dtype()));
        let size = i / scan.groups;
        let ones = Tensor::<1>::ones([size], &weight.device()).cast(FloatDType::F32);
        let groups = y_bti.cast(FloatDType::F32).reshape([b, t, scan.groups, size]);
        let normed_bti: Tensor<3> = rms_norm(groups, ones, epsilon).reshape([b, t, i]);
        let gate_bti = silu(z_bti.cast(FloatDType::F32));
        (normed_bti * weight.cast(FloatDType::F32).reshape([1, 1, i]) * gate_bti).cast(dtype)
    }
}

/// `x` with a factor on each of its parts, which have these numbers of columns.
fn scaled_parts(x: Tensor<3>, factors: [f64; MAMBA_PARTS], sizes: [usize; MAMBA_PARTS]) -> Tensor<3> {
    if factors == [1.0; MAMBA_PARTS] {
        return x;
    }
    let part = |(factor, size): (f64, usize)| Tensor::<1>::full([size], factor, (&x.device(), x.dtype()));
    let factors = Tensor::cat(factors.into_iter().zip(sizes).map(part).collect(), 0);
    x * factors.unsqueeze()
}
