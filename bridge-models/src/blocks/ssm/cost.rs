//! Cost of a state space block: FLOPs, bytes and messages.

use bridge_core::model::{SegmentCost, Workload};

use super::Mamba;
use crate::architecture::config::DecoderConfig;
use crate::architecture::hybrid::HybridConfig;
use crate::blocks::linear::flops;
use crate::blocks::regions::{enter_exchanges, leave_exchanges};

impl Mamba {
    /// Cost of the block. The scan counts seven operations for each number of the state and token,
    /// as upstream counts it.
    ///
    /// Each term of `kept` is a tensor that an operation's backward captures; the norm's output is
    /// the input of the projection after it.
    pub fn cost(config: &DecoderConfig, hybrid: &HybridConfig, work: &Workload) -> SegmentCost {
        let mamba = &hybrid.mamba;
        const FLOAT32: u64 = 4;
        let ranks = work.place.tensor.size;
        let (c, i, g) = (config.hidden_size, mamba.inner_size(), mamba.group_size());
        let projected = 2 * i + 2 * g + mamba.num_heads;
        let tokens = work.all_tokens();
        let scan = 3.0 * 7.0 * tokens * (i * mamba.state_size) as f64;
        let (a, n) = (work.activation_bytes, work.tokens());
        let of = |columns: usize| n * (columns / ranks) as u64 * a;
        let stream = n * c as u64 * a;
        let chunks = (work.seq_length.div_ceil(mamba.chunk_size) * work.micro_batch_size) as u64;
        let states = chunks * (i * mamba.state_size / ranks) as u64 * FLOAT32;
        // A gate apart from the norm keeps its value; a norm before it keeps its output too.
        let apart = match (mamba.has_norm, mamba.norm_before_gate) {
            (true, false) => 0,
            (false, _) => of(i),
            (true, true) => 2 * of(i),
        };
        let row = c as u64 * work.collective_bytes;
        let layers = [[c, projected / ranks], [i / ranks, c]];
        let in_hand = layers.map(|layer| work.operands_in_hand(n, layer)).into_iter().max().unwrap_or(0);
        SegmentCost {
            flops: flops(tokens, c, projected) + scan + flops(tokens, i, c),
            // The projection's parts, the outputs of the convolution, the scan and the norm, and
            // the states between chunks.
            kept: work.input_alone(n * c as u64)
                + of(projected)
                + of(i + 2 * g)
                + of(i)
                + apart
                + work.input_alone(n * (i / ranks) as u64)
                + states,
            backward: 2 * of(projected) + in_hand,
            deferred: 2 * stream + of(projected) + of(i),
            exchanges: [enter_exchanges(row, work), leave_exchanges(row, work)].concat(),
            ..SegmentCost::default()
        }
    }
}
