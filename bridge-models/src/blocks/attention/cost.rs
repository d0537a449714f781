//! Cost of attention: FLOPs, bytes kept for backward, and messages between ranks.

use bridge_core::config::QkNormScope;
use bridge_core::model::{Exchange, PassKind, SegmentCost, TrafficKind, Workload};
use bridge_dist::comm::Operation;
use bridge_dist::mesh::GroupKind;
use bridge_kernels::PackedHeads;
use bridge_kernels::attention::{workspace_bytes, workspace_bytes_on_gpu};
use bridge_kernels::offload::Module as OffloadModule;

use super::{SelfAttention, heads_of_a_rank};
use crate::architecture::config::{DecoderConfig, PositionEmbedding};
use crate::blocks::chunks::Chunks;
use crate::blocks::indexer::Indexer;
use crate::blocks::norm::statistics;
use crate::blocks::output_gate;
use crate::blocks::regions::{enter_exchanges, exchange, leave_exchanges, total_exchanges};

impl SelfAttention {
    /// Cost of the block in layer `index` (global).
    pub fn cost(config: &DecoderConfig, index: usize, work: &Workload) -> SegmentCost {
        Self::cost_reading(config, index, config.hidden_size, work)
    }

    /// [`Self::cost`] of a block that reads `inputs` elements a token.
    ///
    /// Each term of `kept` is a tensor that an operation's backward captures; attention's output is
    /// the input of the projection after it.
    pub fn cost_reading(config: &DecoderConfig, index: usize, inputs: usize, work: &Workload) -> SegmentCost {
        const FLOAT32: u64 = 4;
        let config = &*config.of_layer(index);
        let (a, n, ranks) = (work.activation_bytes, work.tokens(), work.context_size as u64);
        let PackedHeads { groups, queries_per_group, head_size } = heads_of_a_rank(config, work.place.tensor.size);
        let (h, g, d) = ((groups * queries_per_group) as u64, groups as u64, head_size as u64);
        let (queries, keys) = (n * h * d * a, n * g * d * a);
        let w = config.value_size() as u64;
        let (outputs, values) = (n * h * w * a, n * g * w * a);
        let stream = n * inputs as u64 * a;
        let rotates = matches!(config.position_embedding, PositionEmbedding::Rope(_));
        let normalizes = (config.qk_layernorm || config.qk_l2_norm) && config.normalizes_heads(index);
        let (scales, gates) = (config.query_scale(index).is_some(), config.has_fused_gates());
        // The kernel works on the whole projection, rotated or not, where nothing comes between.
        let is_whole = config.projected_size(index) == config.qkv_size();
        let shares = !is_whole || config.leaves_keys(index) || config.v_l2_norm;
        let chooses = config.chosen_keys(index).is_some();
        let comes_between = normalizes || scales || gates || config.has_other_values() || shares || chooses;
        let is_packed = !comes_between && ranks == 1;
        let of_indexer = Indexer::cost(config, index, inputs, [groups * queries_per_group, head_size], work);
        let of_gates = output_gate::cost(config, [groups * queries_per_group, w as usize], work);
        let elements = n * inputs as u64;
        let mut kept = work.input_alone(elements) + queries + keys + values;
        let mut of_linear = stream;
        if normalizes {
            kept += queries + keys + statistics(config.norm, n * (h + g)).kept;
            of_linear += queries + keys;
        }
        if config.v_l2_norm {
            kept += values + statistics(config.norm, n * g).kept;
            of_linear += values;
        }
        if normalizes && config.qk_layernorm_scope == QkNormScope::EachHead {
            // Normalized heads, which the weights multiply, and those that the norm reads, in
            // float32.
            let wider = n * (h + g) * d * (2 * FLOAT32 - a);
            kept += wider;
            of_linear += wider;
        }
        // Masks of a byte an element where either limit holds.
        let limits = if config.clip_qkv.is_some() { 2 * n * ((h + g) * d + g * w) } else { 0 };
        kept += limits;
        if !is_packed && (rotates || normalizes) {
            kept += queries + keys;
        }
        if ranks > 1 {
            kept += (keys + values) * ranks;
        }
        // Query heads that share a key first form its gradient each for itself.
        let terms = if h > g { n * h * (d + w) * FLOAT32 } else { 0 };
        let row = |size: usize| size as u64 * work.collective_bytes;
        let made = if is_whole { (h + g + if gates { h } else { 0 }) * d + g * w } else { h * d };
        let layers = [[inputs, made as usize], [(h * w) as usize, config.hidden_size]];
        let in_hand = layers.map(|layer| work.operands_in_hand(n, layer)).into_iter().max().unwrap_or(0);
        SegmentCost {
            flops: flops(config, index, inputs, work) + of_gates.flops + of_indexer.flops,
            // The output is counted too: the next projection keeps it.
            kept: kept
                + outputs
                + of_gates.kept
                + work.input_besides(n * h * w)
                + statistics_bytes(h, work)
                + of_indexer.kept,
            // The output is also the input that the next projection keeps.
            modules: vec![
                (OffloadModule::QkvLinear.name(), of_linear),
                (OffloadModule::CoreAttn.name(), queries + outputs + (keys + values) * ranks + of_gates.kept),
            ],
            unmoved: statistics_bytes(h, work) + limits + of_indexer.unmoved,
            // Gradients of the output, and of queries, keys and values.
            backward: queries + outputs + (keys + values) * ranks + terms + in_hand,
            // Operands of the projection of queries, keys and values, and of the output projection.
            deferred: 2 * stream + queries + outputs + keys + values,
            attention: scores_bytes(
                [groups * queries_per_group, groups],
                [head_size, w as usize],
                config.window(index),
                work,
            ),
            exchanges: [
                enter_exchanges(row(inputs), work),
                if normalizes && config.qk_layernorm_scope == QkNormScope::Projection {
                    total_exchanges(2, work)
                } else {
                    Vec::new()
                },
                context_exchanges(
                    [d, w].map(|size| n * g * size * work.collective_bytes),
                    // An indexer gathers the documents of tokens.
                    &Workload { documents: work.documents && !chooses, ..Chunks::workload(config, index, work) },
                ),
                of_indexer.exchanges,
                leave_exchanges(row(config.hidden_size), work),
            ]
            .concat(),
            ..SegmentCost::default()
        }
    }
}

/// FLOPs of the block in layer `index` over all ranks, on `inputs` elements a token: projections,
/// and the products of queries, keys and values within the window. A causal product counts half of
/// the full square.
fn flops(config: &DecoderConfig, index: usize, inputs: usize, work: &Workload) -> f64 {
    let tokens = work.all_tokens();
    let (inputs, h) = (inputs as f64, config.hidden_size as f64);
    let queries = (config.num_attention_heads * config.kv_channels) as f64;
    let outputs = (config.num_attention_heads * config.value_size()) as f64;
    let projections = inputs * config.projected_size(index) as f64 + h * outputs;
    6.0 * projections * tokens + 3.0 * (queries + outputs) * seen_keys(config, index, work)
}

/// Keys that the queries of all tokens see in layer `index` (global).
pub(in crate::blocks) fn seen_keys(config: &DecoderConfig, index: usize, work: &Workload) -> f64 {
    let window = config.window(index).map(|window| window + 1);
    let chosen = config.chosen_keys(index).map(|indexer| indexer.topk);
    let (tokens, whole) = (work.all_tokens(), work.seq_length as f64);
    tokens * window.into_iter().chain(chosen).map(|keys| keys as f64).fold(whole, f64::min)
}

/// Bytes that attention of `[heads, groups]`, whose keys and values have these sizes, works in.
pub(crate) fn scores_bytes(
    [heads, groups]: [usize; 2],
    sizes: [usize; 2],
    window: Option<usize>,
    work: &Workload,
) -> u64 {
    let (queries, keys) = (work.seq_length / work.context_size, work.seq_length);
    let bytes = match work.on_cpu {
        true => workspace_bytes([queries, keys], sizes),
        false => {
            let shape = [work.micro_batch_size, heads, queries, keys];
            let [d, width] = sizes;
            workspace_bytes_on_gpu(
                shape,
                [groups, d, width],
                window,
                work.activation_bytes as usize,
                work.has_tensor_cores,
            )
        }
    };
    bytes as u64
}

/// Bytes that attention keeps for backward of each query of `heads`, in float32: the log-sum-exp,
/// and on a GPU also the largest score.
pub(crate) fn statistics_bytes(heads: u64, work: &Workload) -> u64 {
    let numbers = if work.on_cpu { 1 } else { 2 };
    work.tokens() * heads * numbers * size_of::<f32>() as u64
}

/// Messages of ranks that share sequences: tensors of these bytes, such as keys and values, and the
/// document of each token.
pub(in crate::blocks) fn context_exchanges(sent: impl IntoIterator<Item = u64>, work: &Workload) -> Vec<Exchange> {
    let of = |bytes: u64| {
        [
            exchange(TrafficKind::Context, GroupKind::Context, Operation::AllGather, PassKind::Forward, 1, bytes),
            exchange(
                TrafficKind::Context,
                GroupKind::Context,
                Operation::ReduceScatter,
                PassKind::Backward,
                1,
                bytes * work.context_size as u64,
            ),
        ]
    };
    let mut exchanges: Vec<Exchange> = sent.into_iter().flat_map(of).collect();
    if work.documents {
        exchanges.push(exchange(
            TrafficKind::Context,
            GroupKind::Context,
            Operation::AllGather,
            PassKind::Forward,
            1,
            work.tokens() * 8,
        ));
    }
    exchanges
}
