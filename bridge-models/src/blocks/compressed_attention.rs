//! Compressed attention (DeepSeek-V4, section 2.3): one head of keys, which are the values too, and
//! attention to a window of them and to entries, each of which compresses several earlier tokens.
//!
//! An entry is `sum softmax(gate + position bias) * kv` over the tokens of a run, in each channel
//! by itself, then a norm. In layers with an indexer an entry also has the run before, with
//! channels of its own for that use, and a query attends to the entries that score best. Runs are
//! counted from the beginning of a document; a query sees the entries of complete runs. Heads are
//! rotated at their ends. A value is rotated as its key is, so the output is rotated back.
//! Projections into vectors that all heads use are replicated over tensor-parallel ranks.
//!
//! Further shape letters: `e` entries, `m` tokens of a run, `i` elements of an index head.

use bridge_core::model::{
    Exchange, GradientScope, PassKind, Scope, SegmentCost, TensorPartition, TrafficKind, Workload,
};
use bridge_core::model::{Initial, ParameterRole};
use bridge_dist::comm::Operation;
use bridge_dist::mesh::GroupKind;
use bridge_kernels::offload::{Module as OffloadModule, in_module};
use bridge_kernels::rotary::Positions;
use bridge_kernels::{
    AttentionOptions, KeyChoice, Recomputable, RotaryTable, apply_rotary, attention, linear, rms_norm,
};
use bridge_regions::{Cut, all_gather, all_gather_int};
use burn::module::{Module, Param};
use burn::tensor::{FloatDType, Int, Tensor, TensorData};

use super::attention::{AttentionInput, context_exchanges, dropout, scores_bytes, sinks, statistics_bytes};
use super::context_parallel::{Heads, attend};
use super::indexer::{IndexHeads, VisibleKeys, mark_best_blocks};
use super::init::InitialValues;
use super::key_values::KeyValues;
use super::linear::{Linear, LinearConfig, flops};
use super::norm::Norm;
use super::regions::{Regions, enter_exchanges, leave_exchanges};
use super::residual::BlockOutput;
use crate::architecture::config::{CompressedConfig, DecoderConfig, IndexerConfig, NormConfig};

/// The dimension of the sequence in `[b, t, ..]`, and those of elements.
const SEQUENCE: usize = 1;
const FEATURES: usize = 2;
const HEAD: usize = 3;

/// Projections, entries, attention, and the output's projections by groups of heads.
#[derive(Module, Debug)]
pub(crate) struct CompressedAttention {
    linear_q_down_proj: Linear,
    q_layernorm: Norm,
    linear_q_up_proj: Linear,
    linear_kv: Linear,
    kv_layernorm: Norm,
    softmax_offset: Option<Param<Tensor<1>>>,
    compressor: Option<Compressor>,
    indexer: Option<EntryIndexer>,
    /// The first projection of this rank's groups of heads, `[groups * outputs, inputs]`.
    linear_group_proj: Param<Tensor<2>>,
    linear_proj: Linear,
    #[module(skip)]
    settings: Settings,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    /// Heads of this rank, and their groups.
    heads: usize,
    groups: usize,
    size: usize,
    latent: usize,
    scale: f64,
    window: Option<usize>,
    dropout: f64,
    epsilon: f64,
}

/// Makes entries of runs of tokens.
#[derive(Module, Debug)]
struct Compressor {
    linear_kv: Param<Tensor<2>>,
    linear_gate: Param<Tensor<2>>,
    /// `[m, channels]`.
    position_bias: Param<Tensor<2>>,
    norm: Norm,
    #[module(skip)]
    rate: usize,
    /// Elements of an entry.
    size: usize,
    overlaps: bool,
}

/// Choice of entries, which is not trained.
#[derive(Module, Debug)]
struct EntryIndexer {
    linear_wq_b: Param<Tensor<2>>,
    linear_weights_proj: Param<Tensor<2>>,
    compressor: Compressor,
    #[module(skip)]
    config: IndexerConfig,
}

/// Runs of tokens of a sequence: first tokens, by sequence of a batch.
struct Runs {
    starts: Vec<Vec<usize>>,
    /// Documents of the `s` tokens of each sequence.
    documents: Option<Vec<i64>>,
    s: usize,
}

impl Runs {
    /// Complete runs of `rate` tokens of `b` sequences of `s`.
    fn new([b, s]: [usize; 2], rate: usize, documents: Option<Vec<i64>>) -> Self {
        let runs = Self { starts: Vec::new(), documents, s };
        let of_sequence = |batch: usize| {
            let mut starts = Vec::new();
            let mut first = 0;
            while first < s {
                let end = (first..s).find(|token| !runs.are_together(batch, first, *token)).unwrap_or(s);
                starts.extend((first..).step_by(rate).take_while(|start| start + rate <= end));
                first = end;
            }
            starts
        };
        Self { starts: (0..b).map(of_sequence).collect(), ..runs }
    }

    fn are_together(&self, batch: usize, a: usize, b: usize) -> bool {
        self.documents.as_ref().is_none_or(|ids| ids[batch * self.s + a] == ids[batch * self.s + b])
    }

    /// Entries of each sequence, those included that only fill the shape.
    fn count(&self) -> usize {
        self.starts.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// First tokens of all entries, `[b * e]`; 0 for entries that fill the shape.
    fn all_starts(&self) -> Vec<usize> {
        let of_sequence = |starts: &Vec<usize>| {
            let fill = self.count() - starts.len();
            starts.iter().copied().chain(std::iter::repeat_n(0, fill)).collect::<Vec<_>>()
        };
        self.starts.iter().flat_map(of_sequence).collect()
    }

    /// The entries of complete runs of a query's document.
    fn visible(&self, batch: usize, position: usize, rate: usize) -> impl Iterator<Item = usize> {
        let of_entry = move |(entry, start): (usize, &usize)| {
            let is_complete = start + rate <= position + 1;
            (is_complete && self.are_together(batch, *start, position)).then_some(entry)
        };
        self.starts[batch].iter().enumerate().filter_map(of_entry)
    }
}

/// Generation state: keys of the window, entries, and what entries of later runs are made of.
#[derive(Debug)]
pub(crate) struct CompressedState {
    window: KeyValues,
    entries: EntryState,
    index: EntryState,
}

/// Entries so far, and the projections of tokens from the run on that later entries need.
#[derive(Debug, Default)]
struct EntryState {
    entries: Option<Tensor<3>>,
    pending: Option<Tensor<3>>,
    /// Position of the first pending token.
    first: usize,
}

impl Compressor {
    fn new(
        [inputs, size]: [usize; 2],
        rate: usize,
        overlaps: bool,
        norm: NormConfig,
        initial: Initial,
        scope: &Scope,
    ) -> Self {
        let channels = if overlaps { 2 * size } else { size };
        let matrix = |name| {
            let cut = TensorPartition::Replicated(GradientScope::ResidualStream);
            scope.child(name).parameter("weight", [channels, inputs], cut, initial, ParameterRole::Weight)
        };
        // Each rank uses entries for heads of its own.
        let own = TensorPartition::Replicated(GradientScope::OwnPart);
        Self {
            linear_kv: matrix("linear_kv"),
            linear_gate: matrix("linear_gate"),
            position_bias: scope.parameter(
                "position_bias",
                [rate, channels],
                own,
                Initial::Zeros,
                ParameterRole::Weight,
            ),
            norm: Norm::of_heads(norm, size, scope, "norm"),
            rate,
            size,
            overlaps,
        }
    }

    /// Elements of a token that entries are made of.
    fn width([size, overlaps]: [usize; 2]) -> usize {
        2 * size * (1 + overlaps)
    }

    /// The projections of tokens that entries are made of, `[b, t, c]` -> `[b, t, f]`.
    fn projected(&self, x_btc: Tensor<3>) -> Tensor<3> {
        let product = |weight: &Param<Tensor<2>>| linear(x_btc.clone(), weight.val(), None);
        Tensor::cat(vec![product(&self.linear_kv), product(&self.linear_gate)], FEATURES)
    }

    /// Entries of runs of tokens, `[b, s, f]` -> `[b, e, size]`, rotated at these positions.
    fn entries(&self, projected_bsf: Tensor<3>, runs: &Runs, rotary: &RotaryTable, positions_e: &[i64]) -> Tensor<3> {
        let ([b, s, f], e, m) = (projected_bsf.dims(), runs.count(), self.rate);
        let device = projected_bsf.device();
        let starts = runs.all_starts();
        let rows = projected_bsf.cast(FloatDType::F32).reshape([b * s, f]);
        // Channels of the last `size` are those of an entry's own run.
        let part = |offset: usize, first: usize| -> [Tensor<4>; 2] {
            let place = |(entry, start): (usize, &usize)| {
                let start = *start;
                (0..m).map(move |token| (entry / e * s + (start + token).saturating_sub(offset)) as i64)
            };
            let places: Vec<i64> = starts.iter().enumerate().flat_map(place).collect();
            let places =
                Tensor::<1, Int>::from_data(TensorData::new(places, [b * e * m]), &device.clone().without_autodiff());
            let all: Tensor<4> = rows.clone().select(0, places).reshape([b, e, m, f]);
            let bias = self.position_bias.val().cast(FloatDType::F32).narrow(1, first, self.size);
            let gates = all.clone().narrow(HEAD, f / 2 + first, self.size) + bias.reshape([1, 1, m, self.size]);
            [all.narrow(HEAD, first, self.size), gates]
        };
        let [mut kv_bemi, mut gate_bemi] = part(0, f / 2 - self.size);
        if self.overlaps {
            let [before, gates] = part(m, 0);
            let is_first =
                |(entry, start): (usize, &usize)| *start < m || !runs.are_together(entry / e, *start, start - m);
            let hidden: Vec<bool> = starts.iter().enumerate().map(is_first).collect();
            let hidden = Tensor::<4, burn::tensor::Bool>::from_data(
                TensorData::new(hidden, [b, e, 1, 1]),
                &device.without_autodiff(),
            );
            let gates = gates.mask_fill(hidden.expand([b, e, m, self.size]), f32::MIN / 2.0);
            kv_bemi = Tensor::cat(vec![before, kv_bemi], 2);
            gate_bemi = Tensor::cat(vec![gates, gate_bemi], 2);
        }
        let shares = (gate_bemi.clone() - gate_bemi.detach().max_dim(2)).exp();
        let shares = shares.clone() / shares.sum_dim(2);
        let entries_bei = (kv_bemi * shares).sum_dim(2).reshape([b, e, self.size]).cast(self.norm.dtype());
        let ids = TensorData::new(positions_e.to_vec(), [b, e]);
        let positions = Positions::Explicit(Tensor::from_data(ids, &entries_bei.device().without_autodiff()));
        let normed = self.norm.forward(entries_bei).reshape([b, e, 1, self.size]);
        rotated_last(normed, Some(&(rotary.clone(), positions))).reshape([b, e, self.size])
    }

    /// Entries after new tokens of a generation, which begin at the position `offset`.
    fn continued(&self, state: &mut EntryState, projected_btf: Tensor<3>, rotary: &RotaryTable) -> Option<Tensor<3>> {
        let [b, _, _] = projected_btf.dims();
        let pending = match state.pending.take() {
            Some(before) => Tensor::cat(vec![before, projected_btf], SEQUENCE),
            None => projected_btf,
        };
        let (s, m) = (pending.dims()[SEQUENCE], self.rate);
        let done = state.entries.as_ref().map_or(0, |entries| entries.dims()[SEQUENCE]);
        let mut runs = Runs::new([b, s], m, None);
        runs.starts.iter_mut().for_each(|starts| starts.retain(|start| state.first + start >= done * m));
        if runs.count() > 0 {
            let positions: Vec<i64> = runs.all_starts().iter().map(|start| (state.first + start) as i64).collect();
            let new = self.entries(pending.clone(), &runs, rotary, &positions);
            state.entries = Some(match state.entries.take() {
                Some(before) => Tensor::cat(vec![before, new], SEQUENCE),
                None => new,
            });
        }
        let complete = s / m;
        let kept = if self.overlaps { complete.saturating_sub(1) * m } else { complete * m };
        state.first += kept;
        // A selection is a copy; a slice would keep all tokens in memory.
        let places = Tensor::<1, Int>::arange(kept as i64..s as i64, &pending.device());
        state.pending = (kept < s).then(|| pending.select(SEQUENCE, places));
        state.entries.clone()
    }
}

/// Heads whose last elements are rotated, `[b, t, h, d]` -> the same.
fn rotated_last(x_bthd: Tensor<4>, rotary: Option<&(RotaryTable, Positions)>) -> Tensor<4> {
    let Some((table, positions)) = rotary else { return x_bthd };
    let first = x_bthd.dims()[HEAD] - table.rotary_size();
    let last = apply_rotary(x_bthd.clone().narrow(HEAD, first, table.rotary_size()), table, positions);
    if first == 0 { last } else { Tensor::cat(vec![x_bthd.narrow(HEAD, 0, first), last], HEAD) }
}

impl CompressedAttention {
    /// Cost of the block in layer `index` (global).
    pub fn cost(config: &DecoderConfig, compressed: &CompressedConfig, index: usize, work: &Workload) -> SegmentCost {
        let (a, n, all) = (work.activation_bytes, work.tokens(), work.all_tokens());
        let (c, d, q) = (config.hidden_size, config.kv_channels, compressed.q_lora_rank);
        let (rate, indexer) = (compressed.rates[index], config.compressed_indexer(index));
        let heads = config.num_attention_heads / work.place.tensor.size;
        let raw = if rate == 0 { 0 } else { Compressor::width([d, usize::from(indexer.is_some())]) };
        let of_index = indexer.map_or([0; 2], |indexer| {
            [Compressor::width([indexer.head_size, 1]), indexer.heads * (indexer.head_size + 1)]
        });
        let entered = q + d + raw;
        let (groups, rank) = (compressed.output_groups, compressed.output_rank);
        let all_heads = config.num_attention_heads * d;
        let length = work.seq_length as f64;
        let seen = length.min((config.window(index).map_or(work.seq_length, |window| window + 1)) as f64);
        let entries = if rate == 0 { 0.0 } else { length / rate as f64 };
        let of_entries = indexer.map_or(entries, |indexer| entries.min(indexer.topk as f64));
        let scores = indexer.map_or(0.0, |indexer| entries * (indexer.heads * indexer.head_size) as f64);
        let products = flops(all, c, entered)
            + flops(all, q, all_heads)
            + flops(all, groups * rank, c)
            + flops(all, all_heads / groups, groups * rank)
            + 2.0 * all * (c * of_index[0] + q * of_index[1]) as f64;
        let row = work.collective_bytes;
        let context = GroupKind::Context;
        let send = |group, kind, bytes| Exchange {
            kind,
            group,
            operation: Operation::AllGather,
            pass: PassKind::Forward,
            operations: 1,
            bytes,
        };
        let mut exchanges = enter_exchanges(entered as u64 * row, work);
        if work.place.sequence_parallel && indexer.is_some() {
            let bytes = work.tokens_between_blocks() * (of_index[0] + of_index[1]) as u64 * row;
            exchanges.push(send(GroupKind::Tensor, TrafficKind::Tensor, bytes));
        }
        if work.context_size > 1 {
            let sent = if rate == 0 { vec![d, d] } else { vec![d, raw] };
            exchanges.extend(context_exchanges(sent.into_iter().map(|size| n * size as u64 * row), work));
            if rate > 0 {
                exchanges.push(send(context, TrafficKind::Context, n * 8));
            }
            exchanges.extend(indexer.map(|_| send(context, TrafficKind::Context, n * of_index[0] as u64 * row)));
        }
        exchanges.extend(leave_exchanges(c as u64 * row, work));
        let of_heads = n * (heads * d) as u64 * a;
        let (latents, keys) = (n * entered as u64 * a, n * d as u64 * a * work.context_size as u64);
        let choice = if rate == 0 { 0 } else { n * ((length + entries) as u64).div_ceil(64) * 8 + n * 16 };
        let statistics = statistics_bytes(heads as u64, work);
        let entry_bytes = if rate == 0 { 0 } else { 3 * n * raw as u64 * 4 * work.context_size as u64 };
        let grouped = n * (groups * rank / work.place.tensor.size) as u64 * a;
        SegmentCost {
            flops: products + 6.0 * all * all_heads as f64 * (seen + of_entries) + 2.0 * all * scores,
            kept: work.input_alone(n * c as u64)
                + 2 * latents
                + 5 * of_heads
                + 2 * keys
                + entry_bytes
                + grouped
                + statistics
                + choice,
            unmoved: statistics + choice,
            backward: 2 * of_heads + 2 * keys,
            attention: scores_bytes([heads, 1], [d, d], config.window(index), work),
            exchanges,
            ..SegmentCost::default()
        }
    }

    /// The block at `scope`, in layer `index` (global).
    pub fn new(config: &DecoderConfig, compressed: &CompressedConfig, index: usize, scope: &Scope) -> Self {
        let initial = InitialValues::new(config);
        let (c, h, d, q) = (config.hidden_size, config.num_attention_heads, config.kv_channels, compressed.q_lora_rank);
        let (groups, rank, rate) = (compressed.output_groups, compressed.output_rank, compressed.rates[index]);
        let whole = TensorPartition::Replicated(GradientScope::ResidualStream);
        let layer = |name, inputs, outputs, cut, initial| {
            Linear::new(&LinearConfig { inputs, outputs, bias: false, cut, initial }, scope, name)
        };
        let weight = initial.weight;
        let indexer = config.compressed_indexer(index);
        let frozen = scope.child("indexer").frozen();
        let matrix = |name, shape| frozen.child(name).parameter("weight", shape, whole, weight, ParameterRole::Weight);
        Self {
            linear_q_down_proj: layer("linear_q_down_proj", c, q, whole, weight),
            q_layernorm: Norm::new(config.norm, q, scope, "q_layernorm"),
            linear_q_up_proj: layer("linear_q_up_proj", q, h * d, TensorPartition::Rows, weight),
            linear_kv: layer("linear_kv", c, d, whole, weight),
            kv_layernorm: Norm::new(config.norm, d, scope, "kv_layernorm"),
            softmax_offset: sinks(config, scope),
            compressor: (rate > 0).then(|| {
                Compressor::new([c, d], rate, indexer.is_some(), config.norm, weight, &scope.child("compressor"))
            }),
            indexer: indexer.map(|indexer| EntryIndexer {
                linear_wq_b: matrix("linear_wq_b", [indexer.heads * indexer.head_size, q]),
                linear_weights_proj: matrix("linear_weights_proj", [indexer.heads, c]),
                compressor: Compressor::new(
                    [c, indexer.head_size],
                    rate,
                    true,
                    config.norm,
                    weight,
                    &frozen.child("compressor"),
                ),
                config: *indexer,
            }),
            linear_group_proj: scope.child("linear_group_proj").parameter(
                "weight",
                [groups * rank, h * d / groups],
                TensorPartition::Rows,
                weight,
                ParameterRole::Weight,
            ),
            linear_proj: layer("linear_proj", groups * rank, c, TensorPartition::Columns, initial.output),
            settings: Settings {
                heads: h / scope.place().tensor.size,
                groups: groups / scope.place().tensor.size,
                size: d,
                latent: q,
                scale: config.softmax_scale,
                window: config.window(index),
                dropout: config.attention_dropout,
                epsilon: config.norm.epsilon,
            },
        }
    }

    /// Generation state before the first token.
    pub fn new_state(&self) -> CompressedState {
        let window = KeyValues::new(self.settings.window);
        CompressedState { window, entries: EntryState::default(), index: EntryState::default() }
    }

    /// The block's output, `[b, t, c]` -> the same.
    pub fn forward<'a>(&'a self, x_btc: Recomputable<3>, input: AttentionInput<'a>) -> BlockOutput<'a> {
        let (regions, store) = (input.regions, input.weight_gradients);
        let Settings { heads: h, groups, size: d, latent: r, .. } = self.settings;
        // Layers without entries have the rotation of windows.
        let of_table = self.compressor.is_none().then_some(0);
        let rotary = input.rotary.as_ref().map(|tables| (tables.for_window(of_table).clone(), input.positions.clone()));
        let x = x_btc.tensor.clone();
        let (parts, index) = in_module(OffloadModule::QkvLinear, || {
            let q_btr = self.q_layernorm.forward(self.linear_q_down_proj.forward(x_btc.clone(), store));
            let kv_btd = self.kv_layernorm.forward(self.linear_kv.forward(x_btc, store));
            let index = self.indexer.as_ref().map(|indexer| indexer.projected(&x, &q_btr, regions));
            let raw = self.compressor.as_ref().map(|compressor| compressor.projected(x.clone()));
            (regions.enter(Tensor::cat([q_btr, kv_btd].into_iter().chain(raw).collect(), FEATURES)), index)
        });
        let [b, t, f] = parts.dims();
        let q_bthd = self.linear_q_up_proj.forward(parts.clone().narrow(FEATURES, 0, r), store).reshape([b, t, h, d]);
        let ones_d = Tensor::ones([d], (&q_bthd.device(), q_bthd.dtype()));
        let q_bthd = rotated_last(rms_norm(q_bthd, ones_d, self.settings.epsilon), rotary.as_ref());
        let kv_bt1d = rotated_last(parts.clone().narrow(FEATURES, r, d).reshape([b, t, 1, d]), rotary.as_ref());
        let raw_btf = (f > r + d).then(|| parts.narrow(FEATURES, r + d, f - r - d));
        let options = AttentionOptions {
            scale: self.settings.scale,
            window: self.settings.window,
            dropout: dropout(self.settings.dropout, input.dropout_key, regions),
            document_ids: input.document_ids.clone(),
            sinks_h: self.softmax_offset.as_ref().map(Param::val),
            ..AttentionOptions::causal(d)
        };
        let y_bthd = in_module(OffloadModule::CoreAttn, || {
            let (compressor, raw_btf, table) = match (&self.compressor, raw_btf, &rotary) {
                (Some(compressor), Some(raw_btf), Some((table, _))) => (compressor, raw_btf, table),
                _ => {
                    let kv_bs1d =
                        input.compressed.map_or(kv_bt1d.clone(), |state| state.window.append([kv_bt1d])[0].clone());
                    let heads = Heads { q_bthd, k_btgd: kv_bs1d.clone(), v_btgd: kv_bs1d };
                    return attend(heads, options, regions);
                }
            };
            let documents = input.document_ids;
            let (kv_bs1d, entries, visible, runs, before) = match input.compressed {
                Some(state) => {
                    let [kv_bs1d] = state.window.append([kv_bt1d]);
                    let s = kv_bs1d.dims()[SEQUENCE];
                    let seen =
                        state.entries.first + state.entries.pending.as_ref().map_or(0, |x| x.dims()[SEQUENCE]) + t;
                    let entries = compressor.continued(&mut state.entries, raw_btf, table);
                    let of_index = self.indexer.as_ref().zip(index.as_ref());
                    let keys = of_index.and_then(|(indexer, index)| {
                        indexer.compressor.continued(&mut state.index, index.raw_btf.clone(), table)
                    });
                    let visible = VisibleKeys::new([t, s], self.settings.window, None, regions);
                    let runs = Runs::new([b, seen], compressor.rate, None);
                    (kv_bs1d, entries.map(|entries| (entries, keys)), visible, runs, seen - s)
                }
                None => {
                    let group = regions.context();
                    let whole = |x: Tensor<3>| all_gather(x, SEQUENCE, Cut::Zigzag, group);
                    let kv_bs1d = all_gather(kv_bt1d, SEQUENCE, Cut::Zigzag, group);
                    let s = kv_bs1d.dims()[SEQUENCE];
                    let visible = VisibleKeys::new([t, s], self.settings.window, documents, regions);
                    let runs = Runs::new([b, s], compressor.rate, visible.documents().cloned());
                    let positions = positions_of(input.positions, &runs, [b, s], regions);
                    let raw_bsf = whole(raw_btf);
                    let index_bsf = index.as_ref().map(|index| whole(index.raw_btf.clone()));
                    let entries = (runs.count() > 0).then(|| {
                        let entries = compressor.entries(raw_bsf, &runs, table, &positions);
                        let of_index = self.indexer.as_ref().zip(index_bsf);
                        let keys =
                            of_index.map(|(indexer, raw)| indexer.compressor.entries(raw, &runs, table, &positions));
                        (entries, keys)
                    });
                    (kv_bs1d, entries, visible, runs, 0)
                }
            };
            let (entries, keys) = entries.unzip();
            let scores = match (&self.indexer, index, keys.flatten()) {
                (Some(indexer), Some(index), Some(keys)) => indexer.scores(index, keys, rotary.as_ref()),
                _ => None,
            };
            let topk = self.indexer.as_ref().map(|indexer| indexer.config.topk);
            let e = entries.as_ref().map_or(0, |entries: &Tensor<3>| entries.dims()[SEQUENCE]);
            let (s, rate) = (kv_bs1d.dims()[SEQUENCE], compressor.rate);
            let choice = KeyChoice::from_rows([b, 1, t, e + s], |[batch, _, query], marks| {
                let open: Vec<usize> = runs.visible(batch, visible.position(query) + before, rate).collect();
                match (topk, &scores) {
                    (Some(topk), Some(scores)) => {
                        let config = IndexerConfig { topk, ..IndexerConfig::neutral() };
                        mark_best_blocks(&config, open.into_iter(), &scores[(batch * t + query) * e..][..e], marks);
                    }
                    _ => open.into_iter().for_each(|entry| marks[entry] = true),
                }
                visible.of(batch, query).for_each(|key| marks[e + key] = true);
            });
            let entries = entries.map(|entries| entries.reshape([b, e, 1, d]).cast(FloatDType::from(kv_bs1d.dtype())));
            let k_bs1d = Tensor::cat(entries.into_iter().chain([kv_bs1d]).collect(), SEQUENCE);
            let options = AttentionOptions { choice: Some(choice), window: None, document_ids: None, ..options };
            attention(q_bthd, k_bs1d.clone(), k_bs1d, &options)
        });
        let back = rotary.map(|(table, positions)| (table.reversed(), positions));
        let y_bthd = rotated_last(y_bthd, back.as_ref());
        let x_gnf = y_bthd.reshape([b * t, groups, h / groups * d]).swap_dims(0, 1);
        let weight = self.linear_group_proj.val();
        let [outputs, inputs] = weight.dims();
        let y_gnr = x_gnf.matmul(weight.reshape([groups, outputs / groups, inputs]).swap_dims(1, 2));
        let x = y_gnr.swap_dims(0, 1).reshape([b, t, outputs]).into();
        BlockOutput::Product { x, linear: &self.linear_proj, store, module: Some(OffloadModule::AttnProj) }
    }
}

/// Positions of the first tokens of runs, `[b * e]`.
fn positions_of(positions: &Positions, runs: &Runs, [b, s]: [usize; 2], regions: &Regions) -> Vec<i64> {
    let (starts, e) = (runs.all_starts(), runs.count().max(1));
    match positions {
        Positions::From(first) => starts.iter().map(|start| (first + start) as i64).collect(),
        Positions::Explicit(ids_bt) => {
            let ids = all_gather_int(ids_bt.clone(), SEQUENCE, Cut::Zigzag, regions.context());
            let ids: Vec<i64> = ids.into_data().iter::<i64>().collect();
            assert_eq!(ids.len(), b * s, "each token has a position");
            starts.iter().enumerate().map(|(entry, start)| ids[entry / e * s + start]).collect()
        }
    }
}

/// Queries and weights of an indexer, and what its keys are made of, of a tensor-parallel region.
struct IndexParts {
    q_btji: Tensor<4>,
    w_btj: Tensor<3>,
    raw_btf: Tensor<3>,
}

impl EntryIndexer {
    fn projected(&self, x_btc: &Tensor<3>, q_btr: &Tensor<3>, regions: &Regions) -> IndexParts {
        let (x_btc, q_btr) = (x_btc.clone().detach(), q_btr.clone().detach());
        let IndexerConfig { heads: j, head_size: i, .. } = self.config;
        let parts = vec![
            linear(q_btr, self.linear_wq_b.val(), None),
            linear(x_btc.clone(), self.linear_weights_proj.val(), None),
            self.compressor.projected(x_btc),
        ];
        let all_btf = regions.replicated(Tensor::cat(parts, FEATURES));
        let [b, t, f] = all_btf.dims();
        IndexParts {
            q_btji: all_btf.clone().narrow(FEATURES, 0, j * i).reshape([b, t, j, i]),
            w_btj: all_btf.clone().narrow(FEATURES, j * i, j) * (j as f64 * i as f64).powf(-0.5),
            raw_btf: all_btf.narrow(FEATURES, j * i + j, f - j * i - j),
        }
    }

    /// Scores of entries with these keys, `[b, t, e]`, if there are more than a query may have.
    fn scores(
        &self,
        parts: IndexParts,
        keys_bei: Tensor<3>,
        rotary: Option<&(RotaryTable, Positions)>,
    ) -> Option<Vec<f32>> {
        if keys_bei.dims()[SEQUENCE] <= self.config.topk {
            return None;
        }
        let q_btji = rotated_last(parts.q_btji, rotary);
        Some(IndexHeads::scores_of(q_btji, keys_bei, parts.w_btj))
    }
}
