//! Bytes of activations: what backward keeps of each segment of one micro-batch, with this workspace's fused kernels.
//!
//! Each line below is a tensor that an operation's backward captures (`bridge-kernels/src/fast`). Tensors that two operations share are
//! counted once: the residual stream is the input of a norm, attention's output the input of the projection after it.

use bridge_dist::schedule::placement::StageContent;

use super::segments::{chunk_regions, chunk_segments};
use super::setup::Setup;
use crate::config::{Normalization, PositionEmbeddingType};
use crate::model::{Segment, SegmentRole};

/// Statistics and losses are in float32.
const FLOAT32: u64 = 4;
/// Token ids.
const ID: u64 = 8;

/// What a segment keeps of one micro-batch, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// Its input: the residual stream.
    pub input: u64,
    /// Everything inside it.
    pub inside: u64,
    /// Gradients that its backward has in hand at once.
    pub backward: u64,
    /// Inputs of linear layers and gradients of their outputs: what a split backward leaves for its weight part.
    pub put_off: u64,
}

/// What a chunk keeps of one micro-batch, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChunkActivations {
    /// From forward to backward.
    pub kept: u64,
    /// What running a region again brings back for the time of its backward: the largest one.
    pub recomputed: u64,
    /// From the input part of a split backward to the weight part.
    pub put_off: u64,
}

/// What a segment keeps.
pub(super) fn of_segment(setup: &Setup<'_>, segment: Segment) -> Kept {
    match (segment.role, segment.layer) {
        (SegmentRole::Embedding, _) => Kept { inside: setup.tokens() * ID, backward: stream(setup), ..Kept::default() },
        (SegmentRole::Attention, _) => attention(setup),
        (SegmentRole::Mlp | SegmentRole::Moe, layer) => mlp(setup, layer.unwrap_or(0)),
        (SegmentRole::Layer, layer) => {
            let (first, second) = (attention(setup), mlp(setup, layer.unwrap_or(0)));
            let inside = first.inside + second.input + second.inside;
            let put_off = first.put_off + second.put_off;
            Kept { input: first.input, inside, backward: first.backward.max(second.backward), put_off }
        }
        (SegmentRole::Head, _) => head(setup),
    }
}

/// What a chunk keeps.
pub(super) fn of_chunk(setup: &Setup<'_>, chunk: &StageContent) -> ChunkActivations {
    let mut activations = ChunkActivations::default();
    for (region, segments) in chunk_regions(setup, chunk) {
        let kept: Vec<Kept> = segments.into_iter().map(|segment| of_segment(setup, segment)).collect();
        let input = kept.first().map_or(0, |kept| kept.input);
        let all: u64 = kept.iter().map(|kept| kept.input + kept.inside).sum();
        activations.put_off += kept.iter().map(|kept| kept.put_off).sum::<u64>();
        if region.recomputed {
            activations.kept += input;
            activations.recomputed = activations.recomputed.max(all - input);
        } else {
            activations.kept += all;
        }
    }
    activations
}

/// The most that the backward of any segment of a chunk has in hand.
pub(super) fn backward_of_chunk(setup: &Setup<'_>, chunk: &StageContent) -> u64 {
    let segments = chunk_segments(setup, chunk).into_iter();
    segments.map(|segment| of_segment(setup, segment).backward).max().unwrap_or(0)
}

/// The residual stream between blocks.
pub(super) fn stream(setup: &Setup<'_>) -> u64 {
    setup.tokens_between_blocks() * setup.model.hidden_size as u64 * setup.bytes.activation
}

/// The residual stream inside a tensor-parallel block, gathered along the sequence.
fn gathered_stream(setup: &Setup<'_>) -> u64 {
    setup.tokens() * setup.model.hidden_size as u64 * setup.bytes.activation
}

/// Statistics of a norm over `rows` rows: the inverse root mean square; with LayerNorm also the mean.
fn statistics(setup: &Setup<'_>, rows: u64) -> u64 {
    let numbers = if setup.model.normalization == Normalization::LayerNorm { 2 } else { 1 };
    rows * numbers * FLOAT32
}

fn attention(setup: &Setup<'_>) -> Kept {
    let (model, a) = (setup.model, setup.bytes.activation);
    let (n, tp, d) = (setup.tokens(), setup.layout.tensor as u64, model.kv_channels as u64);
    let (h, g) = (model.num_attention_heads as u64 / tp, setup.local_groups());
    let rotates = model.position_embedding_type == PositionEmbeddingType::Rope;
    let (queries, keys) = (n * h * d * a, n * g * d * a);
    // The kernel works on the whole projection, rotated or not, where nothing comes between.
    let is_packed = !model.qk_layernorm && setup.layout.context == 1;
    let mut inside = statistics(setup, setup.tokens_between_blocks()) + gathered_stream(setup) + queries + 2 * keys;
    if model.qk_layernorm {
        inside += queries + keys + statistics(setup, n * (h + g));
    }
    if !is_packed && (rotates || model.qk_layernorm) {
        inside += queries + keys;
    }
    if setup.layout.context > 1 {
        inside += 2 * keys * setup.layout.context as u64;
    }
    let output = queries + n * h * FLOAT32;
    // Gradients of the output, and of queries, keys and values.
    let keys_in_hand = 2 * keys * setup.layout.context as u64;
    // Query heads that share a key first form its gradient each for itself.
    let terms = if h > g { 2 * n * h * d * FLOAT32 } else { 0 };
    // Of the projection of queries, keys and values, and of the output's.
    let put_off = 2 * (gathered_stream(setup) + queries) + 2 * keys;
    Kept { input: stream(setup), inside: inside + output, backward: 2 * queries + keys_in_hand + terms, put_off }
}

fn mlp(setup: &Setup<'_>, layer: usize) -> Kept {
    let statistics = statistics(setup, setup.tokens_between_blocks());
    if setup.is_moe(layer) {
        let experts = experts(setup);
        return Kept { inside: statistics + experts.inside, ..experts };
    }
    let f = setup.model.ffn_hidden_size as u64 / setup.layout.tensor as u64;
    let (inside, backward) = feed_forward(setup, setup.tokens(), f);
    let put_off = 2 * gathered_stream(setup) + inside;
    Kept { input: stream(setup), inside: statistics + gathered_stream(setup) + inside, backward, put_off }
}

/// The two inner tensors of a feed-forward block over `rows` rows, and their gradients.
fn feed_forward(setup: &Setup<'_>, rows: u64, f: u64) -> (u64, u64) {
    let first = if setup.model.gated_linear_unit { 2 * f } else { f };
    let bytes = rows * (first + f) * setup.bytes.activation;
    (bytes, bytes)
}

/// Router, dispatched tokens and experts. Every expert is thought to get the same number of tokens.
fn experts(setup: &Setup<'_>) -> Kept {
    let (model, a) = (setup.model, setup.bytes.activation);
    let (c, etp) = (model.hidden_size as u64, setup.layout.expert_tensor as u64);
    let local = setup.tokens_between_blocks();
    let routed = local * model.moe_router_topk as u64;
    // The normalized tokens, router logits and probabilities.
    let mut inside = local * c * a + 2 * local * setup.num_experts() * FLOAT32;
    // What arrives at the experts here, and what comes back to be weighted.
    inside += routed * etp * c * a + routed * c * a;
    let (hidden, mut backward) = feed_forward(setup, routed * etp, setup.expert_width() / etp);
    inside += hidden;
    if let Some(shared) = model.moe_shared_expert_intermediate_size {
        let tp = setup.layout.tensor as u64;
        let (hidden, gradients) = feed_forward(setup, setup.tokens(), shared as u64 / tp);
        let gathered = if setup.layout.sequence_parallel { gathered_stream(setup) } else { 0 };
        inside += hidden + gathered;
        backward = backward.max(gradients);
    }
    Kept { input: stream(setup), inside, backward: backward + routed * etp * c * a, put_off: 0 }
}

/// Final norm, and the loss with both of its gradients, which the fused kernel makes in the forward.
fn head(setup: &Setup<'_>) -> Kept {
    let c = setup.model.hidden_size as u64;
    let gradient = setup.tokens() * c * FLOAT32;
    let weight_gradient = setup.vocabulary_rows() * c * FLOAT32;
    let norm = statistics(setup, setup.tokens_between_blocks()) + gathered_stream(setup);
    Kept { input: stream(setup), inside: norm + gradient + weight_gradient, backward: stream(setup), put_off: 0 }
}
