//! Communication inside the model: what forward and backward of each segment do, and messages between stages.

use bridge_dist::comm::Operation;
use bridge_dist::mesh::GroupKind;
use bridge_kernels::cross_entropy;

use super::{FLOAT32, FLOAT64, INT64, Tally, TrafficKind, Way};
use crate::config::TokenDispatcher;
use crate::model::{Segment, SegmentRole};

/// How often a segment runs.
#[derive(Clone, Copy)]
struct Times {
    forward: u64,
    backward: u64,
}

const fn tensor(operation: Operation) -> Way {
    Way::on(TrafficKind::Tensor, GroupKind::Tensor, operation)
}

impl Tally<'_, '_> {
    /// A segment that runs forward and backward so often.
    pub(super) fn segment(&mut self, segment: Segment, forward: u64, backward: u64) {
        let times = Times { forward, backward };
        match segment.role {
            SegmentRole::Embedding => self.leave(times),
            SegmentRole::Attention => self.attention(times),
            SegmentRole::Mlp | SegmentRole::Moe => self.mlp(segment.layer, times),
            SegmentRole::Layer => {
                self.attention(times);
                self.mlp(segment.layer, times);
            }
            SegmentRole::Head => self.head(times),
        }
    }

    /// Bytes of a token of the residual stream.
    fn row(&self) -> u64 {
        self.setup.model.hidden_size as u64 * self.setup.bytes.collective
    }

    /// From between blocks into one, with `row` bytes a token: the input of a column-parallel projection.
    fn enter(&mut self, row: u64, times: Times) {
        let (between, inside) = (self.setup.tokens_between_blocks() * row, self.setup.tokens() * row);
        if self.setup.layout.sequence_parallel {
            self.add(tensor(Operation::AllGather), times.forward, between);
            self.add(tensor(Operation::ReduceScatter), times.backward, inside);
        } else {
            self.add(tensor(Operation::AllReduce), times.backward, inside);
        }
    }

    /// Out of a block: the partial sums of a row-parallel projection, or of a vocabulary-parallel look-up.
    fn leave(&mut self, times: Times) {
        let row = self.row();
        let (between, inside) = (self.setup.tokens_between_blocks() * row, self.setup.tokens() * row);
        if self.setup.layout.sequence_parallel {
            self.add(tensor(Operation::ReduceScatter), times.forward, inside);
            self.add(tensor(Operation::AllGather), times.backward, between);
        } else {
            self.add(tensor(Operation::AllReduce), times.forward, inside);
        }
    }

    fn attention(&mut self, times: Times) {
        self.enter(self.row(), times);
        let setup = self.setup;
        let width = setup.local_groups() * setup.model.kv_channels as u64;
        let keys = setup.tokens() * width * setup.bytes.collective;
        let way = |operation| Way::on(TrafficKind::Context, GroupKind::Context, operation);
        // Keys and values each.
        self.add(way(Operation::AllGather), 2 * times.forward, keys);
        self.add(way(Operation::ReduceScatter), 2 * times.backward, keys * setup.layout.context as u64);
        if setup.config.dataset.reset_attention_mask {
            self.add(way(Operation::AllGather), times.forward, setup.tokens() * INT64);
        }
        self.leave(times);
    }

    fn mlp(&mut self, layer: Option<usize>, times: Times) {
        if layer.is_some_and(|layer| self.setup.is_moe(layer)) {
            self.experts(times);
        } else {
            self.enter(self.row(), times);
            self.leave(times);
        }
    }

    /// A block with experts. Where these are cut over the same ranks as the rest, tokens enter one tensor-parallel region that spans
    /// router, experts and shared experts. Where they are not, each rank routes the tokens of its residual stream, and the ranks of an
    /// expert show each other theirs.
    fn experts(&mut self, times: Times) {
        let setup = self.setup;
        let is_alike = setup.layout.expert_tensor == setup.layout.tensor;
        // Tokens and probabilities of each expert, and the sum of squared log-partitions.
        let statistics = (2 * setup.num_experts() + 1) * FLOAT64;
        self.add(Way::on(TrafficKind::Expert, GroupKind::Context, Operation::AllReduce), times.forward, statistics);
        if is_alike {
            self.enter(setup.num_experts() * FLOAT32, times);
            self.enter(self.row(), times);
            self.dispatch(setup.tokens(), times);
            self.leave(times);
            return;
        }
        self.add(Way::on(TrafficKind::Expert, GroupKind::Tensor, Operation::AllReduce), times.forward, statistics);
        let (tokens, ranks) = (setup.tokens_between_blocks(), setup.layout.expert_tensor as u64);
        self.share(tokens, (GroupKind::ExpertTensor, ranks), times);
        self.dispatch(tokens * ranks, times);
        if setup.model.moe_shared_expert_intermediate_size.is_some() {
            self.enter(self.row(), times);
            self.leave(times);
        }
    }

    /// `tokens` to their experts and back.
    fn dispatch(&mut self, tokens: u64, times: Times) {
        let setup = self.setup;
        if setup.model.moe_token_dispatcher_type == TokenDispatcher::AllGather {
            self.share(tokens, (GroupKind::Expert, setup.layout.expert as u64), times);
            return;
        }
        let way = Way::on(TrafficKind::Expert, GroupKind::Expert, Operation::AllToAll);
        // How many tokens go to each expert; the tokens, to their experts and back, in forward and in backward.
        self.add(way, times.forward, setup.num_experts() * INT64);
        let choices = tokens * setup.model.moe_router_topk as u64;
        self.add(way, 2 * (times.forward + times.backward), choices * self.row());
    }

    /// Choices, `tokens` and weights of each rank to all of a group; what each rank's experts make of them is summed.
    fn share(&mut self, tokens: u64, (group, ranks): (GroupKind, u64), times: Times) {
        let way = |operation| Way::on(TrafficKind::Expert, group, operation);
        let choices = tokens * self.setup.model.moe_router_topk as u64;
        let rows = tokens * self.row();
        self.add(way(Operation::AllGather), times.forward, choices * INT64);
        self.add(way(Operation::AllGather), times.forward, rows);
        self.add(way(Operation::AllGather), times.forward, choices * FLOAT32);
        self.add(way(Operation::ReduceScatter), times.forward, ranks * rows);
        self.add(way(Operation::AllGather), times.backward, rows);
        self.add(way(Operation::ReduceScatter), times.backward, ranks * choices * FLOAT32);
        self.add(way(Operation::ReduceScatter), times.backward, ranks * rows);
    }

    /// Three numbers for each token: the largest logit; then, in one operation, the sum of exponentials and the target's logit. The
    /// processor's float32 kernel goes through tokens in chunks.
    fn head(&mut self, times: Times) {
        self.enter(self.row(), times);
        let setup = self.setup;
        let rows = setup.vocabulary_rows();
        let is_chunked = setup.bytes.activation == FLOAT32 && setup.config.computes_on_processor();
        let chunk = match is_chunked {
            true => cross_entropy::chunk_rows(setup.tokens() as usize, rows as usize) as u64,
            false => setup.tokens(),
        };
        let operations = 2 * setup.tokens().div_ceil(chunk.max(1)) * times.forward;
        let way = Way::on(TrafficKind::Loss, GroupKind::Tensor, Operation::AllReduce);
        self.add_uneven(way, operations, 3 * times.forward * setup.tokens() * FLOAT32);
    }

    /// Each chunk sends its output on and the gradient of its input back, unless it is at an end of the chain.
    pub(super) fn pipeline(&mut self, stage: usize, microbatches: u64) {
        let shape = self.setup.shape;
        let message =
            self.setup.tokens_between_blocks() * self.setup.model.hidden_size as u64 * self.setup.bytes.pipeline;
        for chunk in 0..shape.num_chunks {
            let place = shape.virtual_stage(stage, chunk);
            let neighbours = u64::from(place > 0) + u64::from(place + 1 < shape.num_virtual_stages());
            for end in [Operation::Send, Operation::Recv] {
                let way = Way::on(TrafficKind::Pipeline, GroupKind::Pipeline, end);
                self.add(way, neighbours * microbatches, message);
            }
        }
    }
}
