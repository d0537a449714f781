//! Sparse attention (DeepSeek-V3.2, arXiv:2512.02556, section 2.1): an indexer scores all keys of a
//! query, and the query attends to the best ones.
//!
//! The score of key `s` for query `t` is `sum_j w_tj relu(q_tj k_s)` over the heads `j` of the
//! indexer. The stream gets no gradient from it. The indexer is trained by the Kullback-Leibler
//! divergence from the softmax of its scores to the attention of all main heads, over the visible
//! keys or the chosen ones. Backward adds the gradients of this loss, which the loss that the model
//! returns does not include. Without a weight of the loss the parameters are frozen.
//!
//! Another form chooses blocks of keys (MiniMax-M3): each index head chooses for an equal run of
//! query heads. The score of a block is the largest `q_tj k_s` of its keys; the last blocks are
//! always chosen.
//!
//! Indexers are replicated over tensor-parallel ranks. Further shape letters: `j` heads, `i`
//! elements of an index head, `f` elements of all.

use std::ops::Range;

use bridge_core::model::{
    Auxiliary, Exchange, GradientScope, INDEXER_LOSS, ParameterRole, PassKind, Scope, SegmentCost, TensorPartition,
    TrafficKind, Workload,
};
use bridge_dist::comm::Operation;
use bridge_dist::mesh::GroupKind;
use bridge_kernels::rotary::{Positions, RotaryPairing};
use bridge_kernels::{KeyChoice, RotaryTable, apply_rotary, linear, mark_best, vjp};
use bridge_regions::{Cut, all_gather, all_gather_int, reduce_from_group};
use burn::module::{Module, Param};
use burn::tensor::activation::relu;
use burn::tensor::{Bool, FloatDType, Int, Tensor};

use super::init::InitialValues;
use super::key_values::KeyValues;
use super::norm::{Norm, statistics};
use super::regions::Regions;
use crate::architecture::config::{DecoderConfig, IndexerConfig, NormConfig};

/// The dimension of the sequence in `[b, t, ..]`, and of elements in `[b, t, f]`.
const SEQUENCE: usize = 1;
const FEATURES: usize = 2;
/// Scores of all heads that exist at once, at most: 16 MiB of float32.
const SCORES: usize = 1 << 22;
const FLOAT32: u64 = 4;

/// Projections of queries, keys and weights of heads.
#[derive(Module, Debug)]
pub(crate) struct Indexer {
    linear_wq_b: Param<Tensor<2>>,
    q_norm: Option<Norm>,
    linear_wk: Param<Tensor<2>>,
    k_norm: Norm,
    linear_weights_proj: Option<Param<Tensor<2>>>,
    #[module(skip)]
    config: IndexerConfig,
    /// The heads that choose for this rank, in the form that chooses blocks.
    #[module(skip)]
    own: Range<usize>,
    /// Elements of a head that are rotated, if they are its last ones.
    #[module(skip)]
    rotated: Option<usize>,
}

/// Queries, keys and weights of an indexer, of the tokens of a tensor-parallel region.
#[derive(Clone, Debug)]
pub(crate) struct IndexHeads {
    q_btji: Tensor<4>,
    /// Keys of all tokens that queries may see, `[b, s, i]`.
    pub k_bsi: Tensor<3>,
    w_btj: Tensor<3>,
}

/// Earlier keys of the same document, or those of a window.
pub(crate) struct VisibleKeys {
    /// Positions of the queries among the keys.
    positions: Vec<usize>,
    window: Option<usize>,
    /// Documents of `s` keys of each sequence.
    documents: Option<Vec<i64>>,
    s: usize,
}

impl VisibleKeys {
    /// Keys that `t` queries of this rank see of `s`: the last ones, or those of a context-parallel
    /// rank.
    pub fn new(
        [t, s]: [usize; 2],
        window: Option<usize>,
        documents_bt: Option<Tensor<2, Int>>,
        regions: &Regions,
    ) -> Self {
        let group = regions.context();
        let positions = if group.size() == 1 { (s - t..s).collect() } else { regions.region_positions(t) };
        let whole = |ids_bt| all_gather_int(ids_bt, SEQUENCE, Cut::Zigzag, group).into_data().iter::<i64>().collect();
        Self { positions, window, documents: documents_bt.map(whole), s }
    }

    /// Documents of the keys of each sequence.
    pub fn documents(&self) -> Option<&Vec<i64>> {
        self.documents.as_ref()
    }

    /// Position of a query among the keys.
    pub fn position(&self, query: usize) -> usize {
        self.positions[query]
    }

    /// Numbers of the keys of a query, in their order.
    pub fn of(&self, batch: usize, query: usize) -> impl Iterator<Item = usize> {
        let position = self.positions[query];
        let first = self.window.map_or(0, |window| position.saturating_sub(window));
        let document = move |key: usize| self.documents.as_ref().map(|ids| ids[batch * self.s + key]);
        (first..=position).filter(move |key| document(*key) == document(position))
    }
}

/// Marks the best of a query's `keys` by the scores of all keys, one by one or in blocks.
pub(crate) fn mark_best_blocks(
    config: &IndexerConfig,
    keys: impl Iterator<Item = usize>,
    scores: &[f32],
    marks: &mut [bool],
) {
    let keys: Vec<usize> = keys.collect();
    let size = config.block_size.unwrap_or(1);
    let largest = |block: &[usize]| block.iter().map(|key| scores[*key]).fold(f32::NEG_INFINITY, f32::max);
    let mut of_blocks: Vec<f32> = keys.chunks(size).map(largest).collect();
    let local = if config.block_size.is_some() { config.local_blocks } else { 0 };
    let first_local = of_blocks.len().saturating_sub(local);
    of_blocks[first_local..].fill(f32::INFINITY);
    let mut best = vec![false; of_blocks.len()];
    mark_best(&of_blocks, config.topk / size, &mut best);
    keys.iter().enumerate().for_each(|(index, key)| marks[*key] = best[index / size]);
}

/// Queries whose scores by `heads` heads exist at once.
fn queries_at_once([b, t, s]: [usize; 3], heads: usize) -> usize {
    (SCORES / (b * heads * s).max(1)).clamp(1, t.max(1))
}

/// Elements of all queries, a key and all weights of a token.
fn sizes(config: &IndexerConfig) -> [usize; 3] {
    let weights = if config.block_size.is_some() { 0 } else { config.heads };
    [config.heads * config.head_size, config.head_size, weights]
}

/// Bytes that a choice of keys for `runs` of heads keeps.
fn choice_bytes(runs: usize, work: &Workload) -> u64 {
    work.tokens() * runs as u64 * ((work.seq_length as u64).div_ceil(64) * 8 + 16)
}

/// The index heads that choose for the heads of rank `rank` of `ranks`.
fn own_heads(heads: usize, rank: usize, ranks: usize) -> Range<usize> {
    let count = (heads / ranks).max(1);
    let first = rank * heads / ranks;
    first..first + count
}

impl Indexer {
    /// The indexer of an attention at `scope`; its queries come from vectors of `inputs` elements.
    pub fn new(config: &DecoderConfig, indexer: &IndexerConfig, inputs: usize, scope: &Scope) -> Self {
        let scope = scope.child("core_attention").child("indexer");
        let scope = if indexer.loss_coeff == 0.0 { scope.frozen() } else { scope };
        let initial = InitialValues::new(config).weight;
        let [queries, keys, weights] = sizes(indexer);
        let matrix = |name, shape| {
            let cut = TensorPartition::Replicated(GradientScope::ResidualStream);
            scope.child(name).parameter("weight", shape, cut, initial, ParameterRole::Weight)
        };
        let has_blocks = indexer.block_size.is_some();
        let of_keys = if has_blocks { config.norm } else { NormConfig::neutral() };
        let norm = |name| Norm::new(NormConfig { epsilon: indexer.norm_epsilon, ..of_keys }, keys, &scope, name);
        let tensor = scope.place().tensor;
        Self {
            linear_wq_b: matrix("linear_wq_b", [queries, inputs]),
            q_norm: has_blocks.then(|| norm("q_norm")),
            linear_wk: matrix("linear_wk", [keys, config.hidden_size]),
            k_norm: norm("k_norm"),
            linear_weights_proj: (!has_blocks).then(|| matrix("linear_weights_proj", [weights, config.hidden_size])),
            config: *indexer,
            own: own_heads(indexer.heads, tensor.rank, tensor.size),
            rotated: indexer.rotates_last.then(|| config.rotated_size()),
        }
    }

    /// Cost of the choice of keys in layer `index` (global) beside main heads, `[b, this rank's
    /// heads, t, s]` scores of which `size` elements make one.
    pub fn cost(
        config: &DecoderConfig,
        index: usize,
        inputs: usize,
        [heads, size]: [usize; 2],
        work: &Workload,
    ) -> SegmentCost {
        let Some(indexer) = config.indexer_of(index) else {
            let kept = if config.chosen_keys(index).is_some() { choice_bytes(1, work) } else { 0 };
            return SegmentCost { kept, unmoved: kept, ..SegmentCost::default() };
        };
        let (n, trained) = (work.tokens(), indexer.loss_coeff > 0.0);
        let (all, length) = (work.all_tokens(), work.seq_length);
        let [queries, keys, weights] = sizes(indexer);
        let passes = if trained { 3.0 } else { 1.0 };
        let projections = queries * inputs + (keys + weights) * config.hidden_size;
        let teacher = if trained { (config.num_attention_heads * size) as f64 } else { 0.0 };
        let scores = all * length as f64 * (passes * queries as f64 + teacher);
        let elements = (queries + keys + weights) as u64;
        let send =
            |kind, group, operation, pass, bytes| Exchange { kind, group, operation, pass, operations: 1, bytes };
        let (mut exchanges, row) = (Vec::new(), work.collective_bytes);
        if work.place.sequence_parallel {
            let (operation, bytes) = (Operation::AllGather, work.tokens_between_blocks() * elements * row);
            exchanges.push(send(TrafficKind::Tensor, GroupKind::Tensor, operation, PassKind::Forward, bytes));
        }
        let (kind, group) = (TrafficKind::Context, GroupKind::Context);
        let gather = |bytes| send(kind, group, Operation::AllGather, PassKind::Forward, bytes);
        if work.context_size > 1 {
            exchanges.push(gather(n * keys as u64 * row));
            exchanges.extend(work.documents.then(|| gather(n * 8)));
            if trained {
                exchanges.push(gather(n * (heads * size) as u64 * row));
                let bytes = n * keys as u64 * row * work.context_size as u64;
                exchanges.push(send(kind, group, Operation::ReduceScatter, PassKind::Backward, bytes));
            }
        }
        if trained && work.place.tensor.size > 1 {
            let [b, t] = [work.micro_batch_size, length / work.context_size];
            let operations = t.div_ceil(queries_at_once([b, t, length], heads.max(indexer.heads))) as u64;
            exchanges.push(Exchange {
                operations,
                bytes: n * length as u64 * FLOAT32,
                ..send(TrafficKind::Tensor, GroupKind::Tensor, Operation::AllReduce, PassKind::Forward, 0)
            });
        }
        let runs = if indexer.block_size.is_some() { (indexer.heads / work.place.tensor.size).max(1) } else { 1 };
        let choice = choice_bytes(runs, work);
        let of_norm = statistics(NormConfig::neutral(), work.tokens_between_blocks()).kept;
        let of_loss = n * elements * FLOAT32 + n * keys as u64 * work.activation_bytes + of_norm;
        let kept = choice + if trained { of_loss } else { 0 };
        let flops = 2.0 * passes * projections as f64 * all + scores;
        SegmentCost { flops, kept, unmoved: kept, exchanges, ..SegmentCost::default() }
    }

    /// Queries, keys and weights from the stream and from the vectors that queries come from, of
    /// this rank's residual stream: `[b, t, c]` and `[b, t, r]`.
    pub fn heads(
        &self,
        x_btc: &Tensor<3>,
        queries_btr: &Tensor<3>,
        rotary: Option<(&RotaryTable, &Positions)>,
        regions: &Regions,
    ) -> IndexHeads {
        let (x_btc, queries_btr) = (x_btc.clone().detach(), queries_btr.clone().detach());
        let product = |x, weight: &Param<Tensor<2>>| linear(x, weight.val(), None);
        let ([queries, keys, weights], j) = (sizes(&self.config), self.config.heads);
        let k_bti = self.k_norm.forward(product(x_btc.clone(), &self.linear_wk));
        let q_btf = product(queries_btr, &self.linear_wq_b);
        let q_btf = match &self.q_norm {
            Some(norm) => {
                let [b, t, _] = q_btf.dims();
                norm.forward(q_btf.reshape([b, t, j, keys])).reshape([b, t, queries])
            }
            None => q_btf,
        };
        let weights_btj = self.linear_weights_proj.as_ref().map(|weight| product(x_btc, weight));
        let parts = [q_btf, k_bti].into_iter().chain(weights_btj).collect();
        let all_btf = regions.replicated(Tensor::cat(parts, FEATURES));
        let [b, t, _] = all_btf.dims();
        let part = |first, size| all_btf.clone().narrow(FEATURES, first, size);
        let pairing = if self.config.interleaved { RotaryPairing::Interleaved } else { RotaryPairing::Halves };
        let rotated = |x_bthi: Tensor<4>| match rotary {
            Some((table, positions)) => {
                let first = self.rotated.map_or(0, |rotated| keys - rotated);
                let last = x_bthi.clone().narrow(3, first, keys - first);
                let turned = apply_rotary(last, &table.clone().paired(pairing), positions);
                if first == 0 { turned } else { Tensor::cat(vec![x_bthi.narrow(3, 0, first), turned], 3) }
            }
            None => x_bthi,
        };
        let k_bti = rotated(part(queries, keys).reshape([b, t, 1, keys])).reshape([b, t, keys]);
        let w_btj = match weights {
            0 => Tensor::ones([b, t, self.own.len()], (&all_btf.device(), all_btf.dtype())),
            weights => part(queries + keys, weights) * (j as f64 * self.config.head_size as f64).powf(-0.5),
        };
        let own = if weights == 0 { self.own.clone() } else { 0..j };
        IndexHeads {
            q_btji: rotated(part(0, queries).reshape([b, t, j, keys])).slice_dim(2, own),
            k_bsi: all_gather(k_bti, SEQUENCE, Cut::Zigzag, regions.context()),
            w_btj,
        }
    }

    /// The best visible keys of each query.
    pub fn choose(&self, heads: IndexHeads, visible: VisibleKeys) -> ChosenKeys {
        let ([b, t, j, _], s, config) = (heads.q_btji.dims(), visible.s, self.config);
        let (step, runs) = (queries_at_once([b, t, s], j), if config.block_size.is_some() { j } else { 1 });
        let parts: Vec<_> = (0..t)
            .step_by(step)
            .map(|first| {
                let queries = first..(first + step).min(t);
                let count = queries.len();
                let scores = || {
                    let index = heads.without_graph();
                    let of_runs: Tensor<4> = match config.block_size {
                        Some(_) => index.products(queries),
                        None => index.scores(queries).1.unsqueeze_dim(2),
                    };
                    of_runs.into_data().iter::<f32>().collect()
                };
                // Queries with fewer keys than they may have need no scores.
                let scores: Vec<f32> = if s > config.topk { scores() } else { vec![0.0; b * count * runs * s] };
                KeyChoice::from_rows([b, runs, count, s], |[batch, run, query], marks| {
                    let row = &scores[((batch * count + query) * runs + run) * s..][..s];
                    mark_best_blocks(&config, visible.of(batch, first + query), row, marks);
                })
            })
            .collect();
        let loss = (config.loss_coeff > 0.0).then_some((heads, visible, config));
        ChosenKeys { keys: KeyChoice::cat(&parts), loss }
    }
}

/// Keys that a layer attends to: those that it chose, or `s` keys whose choice an earlier layer
/// left in `shared`. A choice that later layers use is left there, in the form of `like`.
pub(crate) fn choice_of_layer(
    chosen: Option<&ChosenKeys>,
    shared: Option<&mut Option<Tensor<3>>>,
    s: usize,
    like: &Tensor<3>,
) -> Option<KeyChoice> {
    match (chosen, shared) {
        (Some(chosen), Some(left)) => {
            *left = Some(chosen.keys.to_numbers(&like.device(), like.dtype().into()));
            Some(chosen.keys.clone())
        }
        (Some(chosen), None) => Some(chosen.keys.clone()),
        (None, shared) => Some(KeyChoice::from_numbers(shared?.clone()?, s)),
    }
}

impl IndexHeads {
    /// Appends the keys of new tokens, and others by token, to a generation's. Returns all others.
    pub fn append_keys(&mut self, state: &mut KeyValues, [a, b]: [Tensor<4>; 2]) -> [Tensor<4>; 2] {
        let [a, b, k_bs1i] = state.append([a, b, self.k_bsi.clone().unsqueeze_dim(2)]);
        self.k_bsi = k_bs1i.squeeze_dim(2);
        [a, b]
    }

    /// Scores of keys by queries and weights of heads, `[b, t, s]`.
    pub fn scores_of(q_btji: Tensor<4>, k_bsi: Tensor<3>, w_btj: Tensor<3>) -> Vec<f32> {
        let ([b, t, j, _], [_, s, _]) = (q_btji.dims(), k_bsi.dims());
        let heads = Self { q_btji, k_bsi, w_btj }.without_graph();
        let step = queries_at_once([b, t, s], j);
        let parts = (0..t).step_by(step).map(|first| heads.scores(first..(first + step).min(t)).1);
        Tensor::cat(parts.collect(), SEQUENCE).into_data().iter::<f32>().collect()
    }

    /// The same in float32, outside any graph.
    fn without_graph(&self) -> Self {
        Self { q_btji: in_float32(&self.q_btji), k_bsi: in_float32(&self.k_bsi), w_btj: in_float32(&self.w_btj) }
    }

    /// Products of queries with keys, `[b, t, j, s]`.
    fn products(&self, queries: Range<usize>) -> Tensor<4> {
        let ([b, _, j, i], [_, s, _], t) = (self.q_btji.dims(), self.k_bsi.dims(), queries.len());
        let rows = self.q_btji.clone().slice_dim(SEQUENCE, queries).reshape([b, t * j, i]);
        rows.matmul(self.k_bsi.clone().swap_dims(1, 2)).reshape([b, t, j, s])
    }

    /// Positive products of queries with keys, `[b, t, j, s]`, and their weighted sums over the
    /// heads, `[b, t, s]`.
    fn scores(&self, queries: Range<usize>) -> (Tensor<4>, Tensor<3>) {
        let products_btjs = relu(self.products(queries.clone()));
        let [b, t, j, s] = products_btjs.dims();
        let w_btj1 = self.w_btj.clone().slice_dim(SEQUENCE, queries).reshape([b, t, j, 1]);
        let sums_bts = (products_btjs.clone() * w_btj1).sum_dim(2).reshape([b, t, s]);
        (products_btjs, sums_bts)
    }
}

fn in_float32<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    x.clone().without_autodiff().cast(FloatDType::F32)
}

/// Keys that queries attend to.
pub(crate) struct ChosenKeys {
    pub keys: KeyChoice,
    /// Terms of the loss, if there is one.
    loss: Option<(IndexHeads, VisibleKeys, IndexerConfig)>,
}

/// Attention whose scores the indexer learns.
pub(crate) struct Teacher<'a> {
    /// Queries and keys of the heads and tokens of this rank, `[b, t, h, d]`.
    pub heads: [Tensor<4>; 2],
    pub scale: f64,
    pub softcap: Option<f64>,
    pub regions: &'a Regions,
    pub auxiliary: Auxiliary<'a>,
    pub layer: usize,
}

impl ChosenKeys {
    /// Output of attention, whose backward adds the gradients of the indexer's loss.
    pub fn with_loss<const D: usize>(&self, y: Tensor<D>, teacher: &Teacher) -> Tensor<D> {
        let is_needed = y.device().is_autodiff() || teacher.auxiliary.metrics.is_some();
        let Some((tracked, visible, config)) = self.loss.as_ref().filter(|_| is_needed) else {
            return y;
        };
        let index = tracked.without_graph();
        let ([b, t, j, i], s, h) = (index.q_btji.dims(), visible.s, teacher.heads[0].dims()[2]);
        let all = || {
            KeyChoice::from_rows([b, 1, t, s], |[batch, _, query], marks| {
                visible.of(batch, query).for_each(|key| marks[key] = true);
            })
        };
        let keys = if config.sparse_loss { self.keys.clone() } else { all() };
        let [q_bhtd, k_bhsd] = teacher.whole_heads();
        let group = teacher.regions.context();
        let factor = teacher.auxiliary.gradient_scale * config.loss_coeff / (b * t * group.size()) as f64;
        let (mut dq, mut dw, mut dk_bsi) = (Vec::new(), Vec::new(), index.k_bsi.zeros_like());
        let mut sum = Tensor::<1>::zeros([1], &index.k_bsi.device());
        let step = queries_at_once([b, t, s], h.max(j));
        for first in (0..t).step_by(step) {
            let queries = first..(first + step).min(t);
            let count = queries.len();
            let hidden_bts = keys.hidden(queries.clone(), &sum.device()).reshape([b, count, s]);
            let (products_btjs, scores_bts) = index.scores(queries.clone());
            let log_bts = log_softmax(scores_bts.mask_fill(hidden_bts.clone(), f32::NEG_INFINITY));
            let p_bts = teacher.shares(q_bhtd.clone().slice_dim(2, queries.clone()), k_bhsd.clone(), &hidden_bts);
            let finite_bts = log_bts.clone().mask_fill(hidden_bts, 0.0);
            sum = sum + (p_bts.clone() * (p_bts.clone().clamp_min(f32::MIN_POSITIVE).log() - finite_bts)).sum();
            let d_bt1s = ((log_bts.exp() - p_bts) * factor).reshape([b, count, 1, s]);
            let w_btj1 = index.w_btj.clone().slice_dim(SEQUENCE, queries.clone()).reshape([b, count, j, 1]);
            dw.push((products_btjs.clone() * d_bt1s.clone()).sum_dim(3).reshape([b, count, j]));
            let d_btjs = (d_bt1s * w_btj1).mask_fill(products_btjs.lower_equal_elem(0.0), 0.0);
            let d_bfs: Tensor<3> = d_btjs.reshape([b, count * j, s]);
            dq.push(d_bfs.clone().matmul(index.k_bsi.clone()).reshape([b, count, j, i]));
            let rows = index.q_btji.clone().slice_dim(SEQUENCE, queries).reshape([b, count * j, i]);
            dk_bsi = dk_bsi + d_bfs.swap_dims(1, 2).matmul(rows);
        }
        if let Some(metrics) = teacher.auxiliary.metrics {
            metrics.record(INDEXER_LOSS, teacher.layer, vec![f64::from(sum.into_scalar::<f32>()), (b * t) as f64]);
        }
        if !y.device().is_autodiff() {
            return y;
        }
        let dtype = FloatDType::from(tracked.q_btji.dtype());
        let (dq_btji, dw_btj) = (Tensor::cat(dq, SEQUENCE).cast(dtype), Tensor::cat(dw, SEQUENCE).cast(dtype));
        let dk_bsi = dk_bsi.cast(dtype);
        let IndexHeads { q_btji, k_bsi, w_btj } = tracked.clone();
        let output = y.clone().without_autodiff();
        let inputs = vec![y.into_dispatch(), q_btji.into_dispatch(), k_bsi.into_dispatch(), w_btj.into_dispatch()];
        vjp::attach(output, inputs, move |dy: Tensor<D>| {
            vec![dy.into_dispatch(), dq_btji.into_dispatch(), dk_bsi.into_dispatch(), dw_btj.into_dispatch()]
        })
    }
}

impl Teacher<'_> {
    /// Queries and the keys of all tokens, `[b, h, t, d]` and `[b, h, s, d]`.
    fn whole_heads(&self) -> [Tensor<4>; 2] {
        let [q_bthd, k_bthd] = self.heads.each_ref().map(|x| x.clone().without_autodiff());
        let k_bshd = all_gather(k_bthd, SEQUENCE, Cut::Zigzag, self.regions.context());
        [q_bthd, k_bshd].map(|x| x.cast(FloatDType::F32).swap_dims(1, 2))
    }

    /// Each key's share of the attention of all heads of all ranks, `[b, t, s]`.
    fn shares(&self, q_bhtd: Tensor<4>, k_bhsd: Tensor<4>, hidden_bts: &Tensor<3, Bool>) -> Tensor<3> {
        let [b, h, t, _] = q_bhtd.dims();
        let mut scores_bhts = q_bhtd.matmul(k_bhsd.swap_dims(2, 3)) * self.scale;
        if let Some(cap) = self.softcap {
            scores_bhts = (scores_bhts / cap).tanh() * cap;
        }
        let s = scores_bhts.dims()[3];
        let hidden_bhts = hidden_bts.clone().unsqueeze_dim::<4>(1).expand([b, h, t, s]);
        let log_bhts = log_softmax(scores_bhts.mask_fill(hidden_bhts, f32::NEG_INFINITY));
        let shares_bts = reduce_from_group(log_bhts.exp().sum_dim(1).reshape([b, t, s]), self.regions.tensor());
        let sums = shares_bts.clone().sum_dim(2);
        shares_bts / sums
    }
}

/// Logarithms of the softmax over the last dimension.
fn log_softmax<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let x = x.clone() - x.max_dim(D - 1);
    x.clone() - x.exp().sum_dim(D - 1).log()
}

#[cfg(test)]
mod tests {
    use bridge_core::model::{LayerMetrics, Parallel};
    use bridge_dist::mesh::ProcessGroups;
    use bridge_kernels::Philox;
    use burn::tensor::{Device, TensorData};

    use super::*;

    const B: usize = 2;
    const T: usize = 7;
    const S: usize = 9;
    const J: usize = 3;
    const I: usize = 5;
    const H: usize = 2;
    const D: usize = 4;
    const SCALE: f64 = 0.7;

    /// Queries, keys and weights of the indexer, queries and keys of main heads.
    const SIZES: [usize; 5] = [B * T * J * I, B * S * I, B * T * J, B * T * H * D, B * S * H * D];

    fn values(place: usize) -> Vec<f64> {
        Philox::new(place as u64).normal(SIZES[place], 1.0).into_iter().map(f64::from).collect()
    }

    fn tensor<const R: usize>(place: usize, shape: [usize; R]) -> Tensor<R> {
        let values: Vec<f32> = values(place).into_iter().map(|value| value as f32).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff()).require_grad()
    }

    fn regions() -> Regions {
        Regions::new(&Parallel { groups: ProcessGroups::single(), sequence_parallel: false })
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    /// Score of a key, from [`values`].
    fn score(x: &[Vec<f64>], batch: usize, query: usize, key: usize) -> f64 {
        let head = |j: usize| {
            let row = (batch * T + query) * J + j;
            x[2][row] * dot(&x[0][row * I..][..I], &x[1][(batch * S + key) * I..][..I]).max(0.0)
        };
        (0..J).map(head).sum()
    }

    /// Visible keys of a query: the last `T` of `S` positions, within a window of 5.
    fn visible(query: usize) -> Vec<usize> {
        let position = S - T + query;
        (position.saturating_sub(5)..=position).collect()
    }

    fn best(x: &[Vec<f64>], batch: usize, query: usize, count: usize) -> Vec<usize> {
        let mut keys = visible(query);
        keys.sort_by(|a, b| score(x, batch, query, *b).total_cmp(&score(x, batch, query, *a)));
        keys.truncate(count);
        keys
    }

    fn softmax(scores: &[f64]) -> Vec<f64> {
        let sum: f64 = scores.iter().map(|score| score.exp()).sum();
        scores.iter().map(|score| score.exp() / sum).collect()
    }

    /// Sum over queries of the divergence of scores from attention over `keys`.
    fn divergence(x: &[Vec<f64>], keys: &[Vec<usize>]) -> f64 {
        let of_query = |(row, keys): (usize, &Vec<usize>)| {
            let (batch, query) = (row / T, row % T);
            let index = softmax(&keys.iter().map(|key| score(x, batch, query, *key)).collect::<Vec<_>>());
            let mut shares = vec![0.0; keys.len()];
            for head in 0..H {
                let of_key = |key: &usize| {
                    SCALE * dot(&x[3][(row * H + head) * D..][..D], &x[4][((batch * S + key) * H + head) * D..][..D])
                };
                let attention = softmax(&keys.iter().map(of_key).collect::<Vec<_>>());
                shares.iter_mut().zip(attention).for_each(|(sum, share)| *sum += share / H as f64);
            }
            shares.iter().zip(index).map(|(p, q)| p * (p.ln() - q.ln())).sum::<f64>()
        };
        keys.iter().enumerate().map(of_query).sum()
    }

    #[test]
    fn blocks_are_chosen_by_their_largest_scores_and_the_last_always() {
        let config = IndexerConfig { topk: 6, block_size: Some(3), local_blocks: 1, ..IndexerConfig::neutral() };
        let chosen = |keys: Range<usize>, scores: [f32; 12]| {
            let mut marks = [false; 12];
            mark_best_blocks(&config, keys, &scores, &mut marks);
            (0..12).filter(|key| marks[*key]).collect::<Vec<_>>()
        };
        let scores = [-1.0, 7.0, -3.0, 2.0, 2.0, 2.0, 3.0, -9.0, 0.0, 1.0, 1.0, 9.0];
        assert_eq!(chosen(0..11, scores), [0, 1, 2, 9, 10]);
        // Blocks are counted from the beginning of a document.
        assert_eq!(chosen(2..12, scores), [5, 6, 7, 11]);
        assert_eq!(chosen(3..9, scores), [3, 4, 5, 6, 7, 8]);
        assert_eq!([own_heads(4, 1, 2), own_heads(2, 3, 4), own_heads(3, 0, 1)], [2..4, 1..2, 0..3]);
    }

    #[test]
    fn the_best_visible_keys_are_chosen_and_gradients_are_those_of_the_divergence() {
        let x: Vec<Vec<f64>> = (0..5).map(values).collect();
        for (topk, sparse_loss) in [(3, false), (3, true), (100, false)] {
            let config = IndexerConfig { topk, sparse_loss, loss_coeff: 0.3, ..IndexerConfig::neutral() };
            let device = Device::flex();
            let weight = || Param::from_tensor(Tensor::<2>::zeros([1, 1], &device));
            let norm = NormConfig { affine: false, ..NormConfig::neutral() };
            let scope = bridge_core::model::ChunkScope::outline(bridge_core::model::RankPlace::SINGLE, None)
                .segment(bridge_core::model::SegmentRole::Layer, None);
            let indexer = Indexer {
                linear_wq_b: weight(),
                q_norm: None,
                linear_wk: weight(),
                k_norm: Norm::new(norm, 1, &scope, "k_norm"),
                linear_weights_proj: Some(weight()),
                config,
                own: 0..J,
                rotated: None,
            };
            let heads = IndexHeads {
                q_btji: tensor(0, [B, T, J, I]),
                k_bsi: tensor(1, [B, S, I]),
                w_btj: tensor(2, [B, T, J]),
            };
            let (regions, metrics) = (regions(), LayerMetrics::default());
            let chosen = indexer.choose(heads.clone(), VisibleKeys::new([T, S], Some(5), None, &regions));
            let hidden = chosen.keys.hidden(0..T, &device).into_data().try_into_vec::<bool>().unwrap();
            let rows: Vec<Vec<usize>> = (0..B * T).map(|row| best(&x, row / T, row % T, topk)).collect();
            for (row, keys) in hidden.chunks(S).zip(&rows) {
                assert!((0..S).all(|key| row[key] != keys.contains(&key)), "{row:?} and {keys:?}");
            }
            let teacher = Teacher {
                heads: [tensor(3, [B, T, H, D]), tensor(4, [B, S, H, D])],
                scale: SCALE,
                softcap: None,
                regions: &regions,
                auxiliary: Auxiliary { gradient_scale: 1.7, metrics: Some(&metrics) },
                layer: 4,
            };
            let y = tensor(2, [B, T, J]);
            let gradients = chosen.with_loss(y.clone() * 2.0, &teacher).sum().backward();
            let rows = if sparse_loss { rows } else { (0..B * T).map(|row| visible(row % T)).collect() };
            let expected = divergence(&x, &rows);
            let found = &metrics.take()[&(INDEXER_LOSS, 4)];
            assert!((found[0] / expected - 1.0).abs() < 1e-5 && found[1] == (B * T) as f64, "{found:?}, {expected}");
            assert!(y.grad(&gradients).unwrap().into_data().iter::<f32>().all(|gradient| gradient == 2.0));
            let found = [
                heads.q_btji.grad(&gradients).unwrap().into_data(),
                heads.k_bsi.grad(&gradients).unwrap().into_data(),
                heads.w_btj.grad(&gradients).unwrap().into_data(),
            ];
            for (place, found) in found.into_iter().enumerate() {
                for (index, found) in found.iter::<f32>().enumerate() {
                    let at = |step: f64| {
                        let mut x = x.clone();
                        x[place][index] += step;
                        divergence(&x, &rows) * 1.7 * 0.3 / (B * T) as f64
                    };
                    let slope = (at(1e-6) - at(-1e-6)) / 2e-6;
                    assert!((f64::from(found) - slope).abs() < 1e-5, "{place} {index}: {found} and {slope}");
                }
            }
        }
    }
}
