//! Linear attention by the gated delta rule: Gated DeltaNet (Yang et al., arXiv:2412.06464) and
//! Kimi Delta Attention (arXiv:2510.26692). Queries, keys and values go through a short causal
//! convolution; a state for each value head takes the place of keys and values of earlier tokens;
//! its output is normalized and gated.
//!
//! Further shape letters: `g` key heads, `h` value heads, `k` channels of a key, `p` channels of a
//! value, `e` decays of a head, `f` channels of the convolution.

use bridge_core::config::AttentionVariant;
use bridge_core::model::{
    Component, GradientScope, Initial, ParameterRole, Scope, SegmentCost, TensorPartition, WeightGradientStore,
    Workload,
};
use bridge_kernels::{
    DeltaInputs, DeltaOptions, Recomputable, causal_conv, gated_delta_rule, gated_delta_rule_from, rms_norm, split,
};
use bridge_regions::{Cut, all_gather, all_gather_int};
use burn::module::{Module, Param};
use burn::tensor::activation::{sigmoid, silu};
use burn::tensor::{FloatDType, Int, Tensor};

use super::attention::{AttentionInput, context_exchanges};
use super::init::InitialValues;
use super::linear::{Linear, LinearConfig, flops};
use super::recurrent_state::RecurrentState;
use super::regions::{Regions, enter_exchanges, leave_exchanges};
use super::residual::BlockOutput;
use crate::architecture::config::DecoderConfig;
use crate::architecture::config::LinearAttentionConfig;

/// The dimension of the sequence in `[b, t, ..]`.
const SEQUENCE: usize = 1;
/// Range from which the decay rates of heads are drawn.
const DECAY_RATES: [f64; 2] = [1e-2, 16.0];

/// The block, or the key heads of it that this rank has, with their value heads.
#[derive(Module, Debug)]
pub(crate) struct GatedDeltaNet {
    /// Queries, keys, values, gates, betas and decays, or as many of them as have no matrices of
    /// their own.
    in_proj: Linear,
    gate: Option<LowRank>,
    decay: Option<LowRank>,
    conv1d: Convolution,
    a_log: Param<Tensor<1>>,
    dt_bias: Param<Tensor<1>>,
    out_norm: OutputNorm,
    out_proj: Linear,
    #[module(skip)]
    settings: Settings,
}

/// Two matrices with a narrow vector between them, of which each rank has the whole first.
#[derive(Module, Debug)]
struct LowRank {
    down_proj: Linear,
    up_proj: Linear,
}

/// The taps of each channel.
#[derive(Module, Debug)]
struct Convolution {
    weight: Param<Tensor<2>>,
}

/// The norm of each head's output, with the same weights for all.
#[derive(Module, Debug)]
struct OutputNorm {
    weight: Param<Tensor<1>>,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    variant: AttentionVariant,
    /// Key heads of this rank.
    key_heads: usize,
    /// Value heads of this rank.
    value_heads: usize,
    /// Channels of a key.
    key_size: usize,
    /// Channels of a value.
    value_size: usize,
    /// Decays of a head.
    decays: usize,
    doubles_beta: bool,
    decay_bound: Option<f64>,
    epsilon: f64,
}

impl LowRank {
    fn new([inputs, rank, outputs]: [usize; 3], initial: Initial, scope: &Scope) -> Self {
        let cut = TensorPartition::Replicated(GradientScope::ResidualStream);
        let down = LinearConfig { inputs, outputs: rank, bias: false, cut, initial };
        let up = LinearConfig { inputs: rank, outputs, bias: false, cut: TensorPartition::Rows, initial };
        Self { down_proj: Linear::new(&down, scope, "down_proj"), up_proj: Linear::new(&up, scope, "up_proj") }
    }

    /// `[b, this rank's tokens, c]` of the residual stream -> `[b, t, this rank's outputs]`.
    fn forward(&self, x_btc: Tensor<3>, regions: &Regions, store: Option<&WeightGradientStore>) -> Tensor<3> {
        self.up_proj.forward(regions.enter(self.down_proj.forward(x_btc, store)), store)
    }
}

impl GatedDeltaNet {
    /// Cost of the block.
    ///
    /// Each term of `kept` is a tensor that an operation's backward captures: the projection's
    /// parts, the output of the convolution, the states between chunks, and the outputs of the
    /// rule, of its norm and of the gate.
    pub fn cost(config: &DecoderConfig, linear: &LinearAttentionConfig, work: &Workload) -> SegmentCost {
        const FLOAT32: u64 = 4;
        let (ranks, c) = (work.place.tensor.size, config.hidden_size);
        // Each rank computes whole sequences.
        let context = work.context_size as u64;
        let (a, n, tokens) = (work.activation_bytes, work.tokens(), work.all_tokens());
        let (keys, values, decays) = (linear.key_size(), linear.value_size(), linear.decay_size());
        let projected: usize = linear.projected().iter().sum();
        let of = |columns: usize, bytes: u64| n * (columns / ranks) as u64 * bytes;
        let pairs = linear.gate_rank.map_or(0, |rank| rank * (2 * c + values + decays));
        // A chunk's products of queries and keys with each other, with values, and with the state.
        let chunk = DeltaOptions::new(linear.key_head_size).chunk_size.min(work.seq_length);
        let heads = linear.num_value_heads as f64;
        let (k, p) = (linear.key_head_size as f64, linear.value_head_size as f64);
        let rule = 6.0 * tokens * heads * (chunk as f64 * (2.0 * k + p) + 3.0 * k * p);
        let chunks = (work.seq_length.div_ceil(chunk) * work.micro_batch_size) as u64;
        let states = chunks * (linear.num_value_heads / ranks * linear.key_head_size * linear.value_head_size) as u64;
        let stream = n * c as u64 * a;
        let row = c as u64 * work.collective_bytes;
        let narrow = linear.gate_rank.into_iter().flat_map(|rank| [rank; 2]);
        let entered = narrow.flat_map(|rank| enter_exchanges(rank as u64 * work.collective_bytes, work));
        let layers = [[c, projected / ranks], [values / ranks, c]];
        let shared = 2 * keys + values + linear.num_value_heads + decays;
        let gathered = context_exchanges([of(shared, work.collective_bytes)], work);
        let in_hand = layers.map(|layer| work.operands_in_hand(n, layer)).into_iter().max().unwrap_or(0);
        SegmentCost {
            flops: flops(tokens, c, projected) + 6.0 * tokens * pairs as f64 + rule + flops(tokens, values, c),
            kept: work.input_alone(n * c as u64)
                + context * (of(2 * keys + values, 2 * a) + of(values, a))
                + of(2 * values, a)
                + context * (of(decays, 4 * FLOAT32) + of(linear.num_value_heads, 2 * a))
                + work.input_alone(n * (values / ranks) as u64)
                + states * FLOAT32,
            backward: 2 * of(projected + values, a) + in_hand,
            deferred: 2 * stream + of(projected + values, a),
            exchanges: [enter_exchanges(row, work), entered.collect(), gathered, leave_exchanges(row, work)].concat(),
            ..SegmentCost::default()
        }
    }

    /// The block at `scope`. Ranks have whole key heads.
    pub fn new(config: &DecoderConfig, linear: &LinearAttentionConfig, scope: &Scope) -> Self {
        let (c, ranks) = (config.hidden_size, scope.place().tensor.size);
        let (keys, values, decays) = (linear.key_size(), linear.value_size(), linear.decay_size());
        let matrices = InitialValues::new(config);
        let drawn = |initial| if config.perform_initialization { initial } else { Initial::Zeros };
        let rows = linear.projected();
        let in_proj = LinearConfig {
            inputs: c,
            outputs: rows.iter().sum(),
            bias: false,
            cut: TensorPartition::Sections(rows),
            initial: matrices.weight,
        };
        let out_proj = LinearConfig {
            inputs: values,
            outputs: c,
            bias: false,
            cut: TensorPartition::Columns,
            initial: matrices.output,
        };
        let low_rank = |outputs, name| {
            linear.gate_rank.map(|rank| LowRank::new([c, rank, outputs], matrices.weight, &scope.child(name)))
        };
        // PyTorch's initialization of a convolution with this number of inputs an output.
        let bound = 1.0 / (linear.conv_kernel as f64).sqrt();
        let taps = drawn(Initial::Uniform([-bound, bound]));
        let channels = TensorPartition::Sections([keys, keys, values, 0, 0, 0]);
        let vector = |name, size, initial, role| scope.parameter(name, [size], TensorPartition::Rows, initial, role);
        let norm = scope.child("out_norm").component(Component::Norm);
        let replicated = TensorPartition::Replicated(GradientScope::OwnPart);
        Self {
            in_proj: Linear::new(&in_proj, scope, "in_proj"),
            gate: low_rank(values, "gate"),
            decay: low_rank(decays, "decay"),
            conv1d: Convolution {
                weight: scope.child("conv1d").parameter(
                    "weight",
                    [2 * keys + values, linear.conv_kernel],
                    channels,
                    taps,
                    ParameterRole::Channels,
                ),
            },
            a_log: vector(
                "A_log",
                linear.num_value_heads,
                drawn(Initial::LogOfUniform(DECAY_RATES)),
                ParameterRole::Weight,
            ),
            dt_bias: vector("dt_bias", decays, drawn(Initial::Ones), ParameterRole::Bias),
            out_norm: OutputNorm {
                weight: norm.parameter(
                    "weight",
                    [linear.value_head_size],
                    replicated,
                    Initial::Ones,
                    ParameterRole::Norm,
                ),
            },
            out_proj: Linear::new(&out_proj, scope, "out_proj"),
            settings: Settings {
                variant: linear.variant,
                key_heads: linear.num_key_heads / ranks,
                value_heads: linear.num_value_heads / ranks,
                key_size: linear.key_head_size,
                value_size: linear.value_head_size,
                decays: decays / linear.num_value_heads,
                doubles_beta: linear.doubles_beta,
                decay_bound: linear.decay_bound,
                epsilon: linear.norm_epsilon.unwrap_or(config.norm.epsilon),
            },
        }
    }

    /// The block's output, `[b, t, c]` -> the same.
    pub fn forward<'a>(&'a self, x_btc: Recomputable<3>, input: AttentionInput<'a>) -> BlockOutput<'a> {
        let (regions, store, s) = (input.regions, input.weight_gradients, self.settings);
        let (h, p) = (s.value_heads, s.value_size);
        let (keys, values) = (s.key_heads * s.key_size, h * p);
        let x = regions.enter_recomputable(x_btc.clone());
        let [b, t, _] = x.tensor.dims();
        let projected_btf = self.in_proj.forward(x, store);
        let [qkv_btf, gate_btf, beta_bth, decay_btf] = match (&self.gate, &self.decay) {
            (Some(gate), Some(decay)) => {
                let [qkv_btf, beta_bth] = split(projected_btf, [2 * keys + values, h]);
                let of = |layers: &LowRank| layers.forward(x_btc.tensor.clone(), regions, store);
                [qkv_btf, of(gate), beta_bth, of(decay)]
            }
            _ => split(projected_btf, [2 * keys + values, values, h, h * s.decays]),
        };
        let parts = [qkv_btf, beta_bth, decay_btf];
        let y_bthp = match regions.context().size() {
            1 => self.attend(parts, input.document_ids, input.recurrent),
            _ => self.attend_over_ranks(parts, input.document_ids, regions),
        };
        let gate_bthp = heads(gate_btf, p);
        let gate_bthp = match s.variant {
            AttentionVariant::GatedDeltaNet | AttentionVariant::Dsa => silu(gate_bthp),
            AttentionVariant::KimiDeltaAttention => sigmoid(gate_bthp),
        };
        let y_bthp = rms_norm(y_bthp, self.out_norm.weight.val(), s.epsilon) * gate_bthp;
        let x = y_bthp.reshape([b, t, values]).into();
        BlockOutput::Product { x, linear: &self.out_proj, store, module: None }
    }

    /// [`Self::attend`] of this rank's part of sequences that ranks share. Each rank computes the
    /// whole sequences, because a state goes through them.
    fn attend_over_ranks(
        &self,
        parts_btf: [Tensor<3>; 3],
        document_ids: Option<Tensor<2, Int>>,
        regions: &Regions,
    ) -> Tensor<4> {
        let group = regions.context();
        let sizes = parts_btf.each_ref().map(|part| part.dims()[2]);
        let all_bsf = all_gather(Tensor::cat(parts_btf.to_vec(), 2), SEQUENCE, Cut::Zigzag, group);
        let documents_bs = document_ids.map(|ids_bt| all_gather_int(ids_bt, SEQUENCE, Cut::Zigzag, group));
        let y_bshp = self.attend(split(all_bsf, sizes), documents_bs, None);
        let own = Cut::Zigzag.parts(y_bshp.dims()[SEQUENCE], group.rank(), group.size()).into_iter();
        let own = own.map(|chunk| y_bshp.clone().narrow(SEQUENCE, chunk.start, chunk.len()));
        Tensor::cat(own.collect(), SEQUENCE)
    }

    /// Convolution and delta rule of queries with keys and values, betas and decays before their
    /// activations: `[b, t, ..]` -> `[b, t, h, p]`.
    fn attend(
        &self,
        [qkv_btf, beta_bth, decay_btf]: [Tensor<3>; 3],
        document_ids: Option<Tensor<2, Int>>,
        mut state: Option<&mut RecurrentState>,
    ) -> Tensor<4> {
        let s = self.settings;
        let (keys, values) = (s.key_heads * s.key_size, s.value_heads * s.value_size);
        let taps = self.conv1d.weight.val();
        let qkv_btf = match &mut state {
            None => causal_conv(qkv_btf, taps, None, document_ids.clone()),
            Some(state) => state.convolve(qkv_btf, taps, None),
        };
        let [q_btf, k_btf, v_btf] = split(qkv_btf, [keys, keys, values]);
        let inputs = DeltaInputs {
            q_btgk: heads(q_btf, s.key_size),
            k_btgk: heads(k_btf, s.key_size),
            v_bthp: heads(v_btf, s.value_size),
            decay_bthe: self.log_decays(heads(decay_btf, s.decays)),
            beta_bth: sigmoid(beta_bth) * if s.doubles_beta { 2.0 } else { 1.0 },
            document_ids,
        };
        let options = DeltaOptions::new(s.key_size);
        match state {
            None => gated_delta_rule(inputs, &options),
            Some(state) => {
                let (y_bthp, after) = gated_delta_rule_from(inputs, state.heads.take(), &options);
                state.heads = Some(after);
                y_bthp
            }
        }
    }

    /// Logarithms of the decays, in float32: `[b, t, h, e]` -> the same.
    fn log_decays(&self, x_bthe: Tensor<4>) -> Tensor<4> {
        let Settings { value_heads: h, decays: e, decay_bound, .. } = self.settings;
        let wide = |x: Tensor<1>| x.cast(FloatDType::F32);
        let rates_11h1: Tensor<4> = wide(self.a_log.val()).exp().reshape([1, 1, h, 1]);
        let steps_bthe = x_bthe.cast(FloatDType::F32) + wide(self.dt_bias.val()).reshape([1, 1, h, e]);
        match decay_bound {
            Some(bound) => sigmoid(steps_bthe * rates_11h1) * bound,
            None => -(softplus(steps_bthe) * rates_11h1),
        }
    }
}

/// `[b, t, heads * size]` -> `[b, t, heads, size]`.
fn heads(x_btf: Tensor<3>, size: usize) -> Tensor<4> {
    let [b, t, f] = x_btf.dims();
    x_btf.reshape([b, t, f / size, size])
}

/// `ln(1 + exp(x))`, without overflow.
fn softplus(x: Tensor<4>) -> Tensor<4> {
    x.clone().clamp_min(0.0) + (-x.abs()).exp().log1p()
}
