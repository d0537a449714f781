//! The borders of the regions that ranks compute together: where activations are gathered, summed
//! and cut.
//!
//! Inside a tensor-parallel region each rank has some heads, feed-forward columns or vocabulary
//! rows. Outside, all ranks hold the same residual stream, or under sequence parallelism each has a
//! contiguous part of the sequence, `[b, t / tp, c]`.

use std::sync::Arc;

use bridge_core::model::{Exchange, Parallel, PassKind, TrafficKind, Workload};
use bridge_dist::comm::single::SingleCommunicator;
use bridge_dist::comm::{Group, Operation};
use bridge_dist::mesh::GroupKind;
use bridge_kernels::{DropoutKey, Philox, Recomputable, dropout};
use bridge_regions::{
    Cut, copy_to_group, gather_replicated, gather_sequence, reduce_from_group, reduce_scatter_sequence,
};
use burn::tensor::{DType, Device, Tensor, TensorData};

/// The dimension of the sequence in `[b, t, ..]`.
const SEQUENCE: usize = 1;

/// The groups that share one forward pass, and whether sequences are cut between tensor-parallel
/// regions.
#[derive(Clone, Debug)]
pub(crate) struct Regions {
    tensor: Group,
    context: Group,
    expert: Group,
    expert_tensor: Group,
    data: Group,
    sequence_parallel: bool,
}

impl Regions {
    pub fn new(parallel: &Parallel) -> Self {
        let (tensor, context) = (parallel.groups.tensor().clone(), parallel.groups.context().clone());
        // With one rank there is nothing to cut.
        let sequence_parallel = parallel.sequence_parallel && tensor.size() > 1;
        let (expert, expert_tensor) = (parallel.groups.expert().clone(), parallel.groups.expert_tensor().clone());
        let data = parallel.groups.data().clone();
        Self { tensor, context, expert, expert_tensor, data, sequence_parallel }
    }

    /// The ranks that share weight matrices.
    pub fn tensor(&self) -> &Group {
        &self.tensor
    }

    /// The ranks that share each sequence.
    pub fn context(&self) -> &Group {
        &self.context
    }

    /// The ranks that share the experts of a layer.
    pub fn expert(&self) -> &Group {
        &self.expert
    }

    /// The ranks that share each expert's matrices.
    pub fn expert_tensor(&self) -> &Group {
        &self.expert_tensor
    }

    /// The ranks that have other sequences.
    pub fn data(&self) -> &Group {
        &self.data
    }

    /// True if experts are sharded over the same ranks as all other weights.
    pub fn shards_experts_alike(&self) -> bool {
        self.expert_tensor.size() == self.tensor.size()
    }

    /// The same with whole sequences on every rank: for generation, whose sequences need not
    /// divide.
    #[must_use]
    pub fn with_whole_sequences(&self) -> Self {
        let context = Arc::new(SingleCommunicator::new(self.context.name()));
        Self { context, sequence_parallel: false, ..self.clone() }
    }

    /// Into a tensor-parallel region: `[b, t, c]`, or `[b, t / tp, c]` under sequence parallelism,
    /// -> `[b, t, c]`.
    pub fn enter<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if self.sequence_parallel { gather_sequence(x, SEQUENCE, &self.tensor) } else { copy_to_group(x, &self.tensor) }
    }

    /// [`Self::enter`] of a recomputable tensor, which stays recomputable if nothing is exchanged.
    pub fn enter_recomputable<const D: usize>(&self, x: Recomputable<D>) -> Recomputable<D> {
        if self.tensor.size() == 1 { x } else { self.enter(x.tensor).into() }
    }

    /// The residual stream of all of this context-parallel rank's tokens, for tensor-parallel ranks
    /// that all compute the same from it.
    pub fn replicated(&self, x_btc: Tensor<3>) -> Tensor<3> {
        if self.sequence_parallel { gather_replicated(x_btc, SEQUENCE, Cut::Contiguous, &self.tensor) } else { x_btc }
    }

    /// Out of it, from this rank's term of a sum: the reverse of [`Self::enter`].
    pub fn leave<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if self.sequence_parallel {
            let t = x.dims()[SEQUENCE];
            assert!(
                t.is_multiple_of(self.tensor.size()),
                "sequence parallelism over {} ranks cannot cut a sequence of {t} tokens",
                self.tensor.size()
            );
            reduce_scatter_sequence(x, SEQUENCE, &self.tensor)
        } else {
            reduce_from_group(x, &self.tensor)
        }
    }

    /// All-reduced sum of the ranks' terms, `[b, t, n]`, inside a tensor-parallel region. Gradients
    /// are summed over the ranks, too: each rank uses the sum differently.
    pub fn total(&self, term_btn: Tensor<3>) -> Tensor<3> {
        copy_to_group(reduce_from_group(term_btn, &self.tensor), &self.tensor)
    }

    /// Range of this rank's residual stream among the `rows` tokens of a tensor-parallel region.
    pub fn own_rows(&self, rows: usize) -> std::ops::Range<usize> {
        if self.sequence_parallel {
            let [own] =
                Cut::Contiguous.parts(rows, self.tensor.rank(), self.tensor.size()).try_into().expect("one part");
            own
        } else {
            0..rows
        }
    }

    /// The dropout key for values that are sharded over ranks: heads, columns of a feed-forward
    /// block, and chunks of a sequence.
    pub fn own_key(&self, key: Option<DropoutKey>) -> Option<DropoutKey> {
        let own = |stream: Philox, group: &Group| match group.size() {
            1 => stream,
            _ => stream.derive(group.rank() as u64),
        };
        key.map(|DropoutKey(stream)| DropoutKey(own(own(stream, &self.tensor), &self.context)))
    }

    /// Dropout of the residual stream with the mask that one rank alone would have drawn for these
    /// tokens.
    ///
    /// `x_btc` `[b, this rank's tokens, c]` -> the same.
    pub fn dropout(&self, x_btc: Tensor<3>, rate: f64, key: Option<DropoutKey>) -> Tensor<3> {
        let Some(key) = key.filter(|_| rate > 0.0) else { return x_btc };
        let [b, t, c] = x_btc.dims();
        if !self.sequence_parallel && self.context.size() == 1 {
            return dropout(x_btc, rate, key);
        }
        let device = x_btc.device();
        let mask = self.drawn([b, t, c], &device, x_btc.dtype(), |run| {
            let mut factors = Vec::with_capacity(run.len());
            mask_factors(rate, key, run, &mut factors);
            factors
        });
        x_btc * mask
    }

    /// Numbers drawn for each element of `[b, this rank's tokens, n]` of the residual stream: those
    /// that one rank alone would draw for these tokens. `draw` makes a run of the elements of whole
    /// sequences.
    pub fn drawn(
        &self,
        [b, t, n]: [usize; 3],
        device: &Device,
        dtype: DType,
        draw: impl Fn(std::ops::Range<usize>) -> Vec<f32>,
    ) -> Tensor<3> {
        let (positions, length) = (self.token_positions(t), self.whole_sequence(t));
        let starts = (0..b).flat_map(|row| positions.iter().map(move |place| (row * length + place) * n));
        let values: Vec<f32> = starts.flat_map(|start| draw(start..start + n)).collect();
        let device = device.clone().without_autodiff();
        Tensor::from_data(TensorData::new(values, [b, t, n]).convert_dtype(dtype), (&device, dtype))
    }

    /// The numbers, in whole sequences one after the other, of `b` times `t` tokens that a router
    /// has: those of a tensor-parallel region, or where experts are cut otherwise those of this
    /// rank's residual stream.
    pub fn token_numbers(&self, b: usize, t: usize) -> Vec<usize> {
        let places = if self.shards_experts_alike() { self.region_positions(t) } else { self.token_positions(t) };
        let length = if self.shards_experts_alike() { t * self.context.size() } else { self.whole_sequence(t) };
        (0..b).flat_map(|row| places.iter().map(move |place| row * length + place)).collect()
    }

    /// Tokens of the whole sequence, of which this rank's residual stream has `t`.
    fn whole_sequence(&self, t: usize) -> usize {
        let tensor = if self.sequence_parallel { self.tensor.size() } else { 1 };
        t * tensor * self.context.size()
    }

    /// Positions in the whole sequence of this rank's `t` tokens.
    fn token_positions(&self, t: usize) -> Vec<usize> {
        let tensor = if self.sequence_parallel { self.tensor.size() } else { 1 };
        let in_context = self.region_positions(t * tensor);
        in_context[self.own_rows(in_context.len())].to_vec()
    }

    /// Positions in the whole sequence of the `t` tokens of this rank's tensor-parallel region.
    pub fn region_positions(&self, t: usize) -> Vec<usize> {
        let context = self.context.size();
        match context {
            1 => (0..t).collect(),
            _ => Cut::Zigzag.parts(t * context, self.context.rank(), context).into_iter().flatten().collect(),
        }
    }
}

/// Operations of one kind on a group, each with a payload of `bytes`.
pub(crate) fn exchange(
    kind: TrafficKind,
    group: GroupKind,
    operation: Operation,
    pass: PassKind,
    operations: u64,
    bytes: u64,
) -> Exchange {
    Exchange { kind, group, operation, pass, operations, bytes: operations * bytes }
}

/// Messages of [`Regions::enter`] for tokens with `row` bytes each.
pub(crate) fn enter_exchanges(row: u64, work: &Workload) -> Vec<Exchange> {
    border_exchanges(row, work, [PassKind::Forward, PassKind::Backward])
}

/// Messages of [`Regions::leave`] for tokens with `row` bytes each.
pub(crate) fn leave_exchanges(row: u64, work: &Workload) -> Vec<Exchange> {
    let mut exchanges = border_exchanges(row, work, [PassKind::Backward, PassKind::Forward]);
    // Forward comes first, as in a step.
    exchanges.reverse();
    exchanges
}

/// Messages at a border of a tensor-parallel region: in one pass the stream is gathered, in the
/// other the ranks' terms are summed. Without sequence parallelism nothing needs to be gathered.
fn border_exchanges(row: u64, work: &Workload, [gathering, summing]: [PassKind; 2]) -> Vec<Exchange> {
    let of = |operation, pass, tokens: u64| {
        exchange(TrafficKind::Tensor, GroupKind::Tensor, operation, pass, 1, tokens * row)
    };
    if !work.place.sequence_parallel {
        return vec![of(Operation::AllReduce, summing, work.tokens())];
    }
    vec![
        of(Operation::AllGather, gathering, work.tokens_between_blocks()),
        of(Operation::ReduceScatter, summing, work.tokens()),
    ]
}

/// Messages of [`Regions::total`] for `numbers` a token, in float32.
pub(crate) fn total_exchanges(numbers: u64, work: &Workload) -> Vec<Exchange> {
    let of = |pass| {
        let bytes = work.tokens() * numbers * 4;
        exchange(TrafficKind::Tensor, GroupKind::Tensor, Operation::AllReduce, pass, 1, bytes)
    };
    vec![of(PassKind::Forward), of(PassKind::Backward)]
}

/// Appends the factors, 0 or `1 / (1 - rate)`, of the elements `range` of a dropout mask.
fn mask_factors(rate: f64, key: DropoutKey, range: std::ops::Range<usize>, factors: &mut Vec<f32>) {
    // As `bridge_kernels::dropout` documents: element i goes where word i is below rate * 2^32.
    let threshold = (rate * 4_294_967_296.0) as u32;
    let kept = (1.0 / (1.0 - rate)) as f32;
    let blocks = range.start as u64 / 4..(range.end as u64).div_ceil(4);
    let words = blocks.flat_map(|index| key.0.block(index)).skip(range.start % 4).take(range.len());
    factors.extend(words.map(|word| if word < threshold { 0.0 } else { kept }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use bridge_kernels::Philox;

    #[test]
    fn factors_are_the_masks_of_the_kernel() {
        let key = DropoutKey(Philox::new(9));
        let expected = bridge_kernels::dropout::dropped(101, 0.3, key);
        let mut factors = Vec::new();
        for range in [0..3, 3..17, 17..17, 17..101] {
            mask_factors(0.3, key, range, &mut factors);
        }
        assert_eq!(factors.iter().map(|factor| *factor == 0.0).collect::<Vec<_>>(), expected);
    }
}
