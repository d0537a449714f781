//! Collectives as exchanges: each rank publishes data, and copies or reduces the data of other
//! ranks. Runs in either lane.
//!
//! A payload is a copy of the rank's data, so that other ranks never read the memory of a rank that
//! fails or gives up.

use std::ops::Range;
use std::sync::Arc;

use super::group::{Body, LaneKind, Member, Payload};
use crate::comm::buffer::{Buffer, BufferMut, HostBuffer, ReduceOp};
use crate::comm::error::CommError;
use crate::comm::pieces::columns;
use crate::comm::reduce::{reduce_ordered, slice_of};
use crate::comm::signature::{OpKind, Signature, UnevenExchange};
use crate::comm::worker::{Collectives, GroupMember};

/// Up to this many bytes every rank reduces everything: a second exchange would cost more than the
/// arithmetic.
const SMALL_BYTES: usize = 32 << 10;

/// Larger data moves in pieces of this many bytes, which bounds the copies and keeps them in a
/// shared cache.
const CHUNK_BYTES: usize = 2 << 20;

/// One rank's end of a lane.
pub(super) struct Endpoint {
    pub member: Arc<Member>,
    kind: LaneKind,
    round: u64,
}

impl Collectives for Endpoint {
    fn all_reduce(&mut self, mut data: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let signature = Signature::reducing(OpKind::AllReduce, data.dtype(), data.len(), op);
        self.member.rank_context().check_reduce(&signature)?;
        self.member.record_call(&signature);
        if data.len() * data.dtype().size() <= SMALL_BYTES {
            let all = self.publish(signature, data.view())?;
            reduce_ordered(op, &views(&all), data);
            return Ok(());
        }
        for chunk in chunks(data.len(), CHUNK_BYTES / data.dtype().size()) {
            self.all_reduce_chunk(signature, data.slice(chunk), op)?;
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, input: Buffer<'_>, mut output: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let signature = self.member.rank_context().reduce_scatter(&input, &output, op)?;
        self.member.record_call(&signature);
        let (part, size, rank) = (output.len(), self.size(), self.member.rank);
        // A piece holds the same range of every rank's part.
        for range in chunks(part, (CHUNK_BYTES / input.dtype().size() / size).max(1)) {
            let width = range.len();
            let all = self.exchange(signature, Body::Data(columns(&input, part, size, &range)))?;
            let own: Vec<Buffer<'_>> =
                views(&all).iter().map(|view| view.slice(rank * width..(rank + 1) * width)).collect();
            reduce_ordered(op, &own, output.slice(range));
        }
        Ok(())
    }

    fn all_gather(&mut self, input: Buffer<'_>, mut output: BufferMut<'_>) -> Result<(), CommError> {
        let signature = self.member.rank_context().all_gather(&input, &output)?;
        self.member.record_call(&signature);
        let part = input.len();
        for range in chunks(part, CHUNK_BYTES / input.dtype().size()) {
            let all = self.publish(signature, input.slice(range.clone()))?;
            for (rank, view) in views(&all).into_iter().enumerate() {
                let (start, end) = (rank * part + range.start, rank * part + range.end);
                output.slice(start..end).copy_from(view);
            }
        }
        Ok(())
    }
}

impl Endpoint {
    pub fn new(member: Arc<Member>, kind: LaneKind) -> Self {
        Self { member, kind, round: 0 }
    }

    fn size(&self) -> usize {
        self.member.group.members.len()
    }

    pub fn exchange(&mut self, signature: Signature, body: Body) -> Result<Vec<Arc<Payload>>, CommError> {
        let round = self.round;
        self.round += 1;
        self.member.exchange(self.kind, round, signature, body)
    }

    /// Publishes a copy of `data`.
    fn publish(&mut self, signature: Signature, data: Buffer<'_>) -> Result<Vec<Arc<Payload>>, CommError> {
        self.exchange(signature, Body::Data(data.into()))
    }

    /// Each rank reduces its slice of the chunk and publishes it for other ranks.
    fn all_reduce_chunk(
        &mut self,
        signature: Signature,
        mut chunk: BufferMut<'_>,
        op: ReduceOp,
    ) -> Result<(), CommError> {
        let (len, size) = (chunk.len(), self.size());
        let all = self.publish(signature, chunk.view())?;
        let own = slice_of(len, size, self.member.rank);
        let mut reduced = HostBuffer::zeros(chunk.dtype(), own.len());
        let inputs: Vec<Buffer<'_>> = views(&all).iter().map(|view| view.slice(own.clone())).collect();
        reduce_ordered(op, &inputs, reduced.view_mut());
        let slices = self.exchange(signature, Body::Data(reduced))?;
        for (rank, slice) in views(&slices).into_iter().enumerate() {
            chunk.slice(slice_of(len, size, rank)).copy_from(slice);
        }
        Ok(())
    }

    pub fn broadcast(&mut self, mut data: BufferMut<'_>, root: usize) -> Result<(), CommError> {
        let signature = self.member.rank_context().broadcast(&data, root)?;
        self.member.record_call(&signature);
        for range in chunks(data.len(), CHUNK_BYTES / data.dtype().size()) {
            let mut chunk = data.slice(range);
            if self.member.rank == root {
                self.publish(signature, chunk.view())?;
            } else {
                let all = self.exchange(signature, Body::Empty)?;
                chunk.copy_from(data_of(&all[root]));
            }
        }
        Ok(())
    }

    pub fn all_to_all(&mut self, input: Buffer<'_>, mut output: BufferMut<'_>) -> Result<(), CommError> {
        let signature = self.member.rank_context().all_to_all(&input, &output)?;
        self.member.record_call(&signature);
        let part = input.len() / self.size();
        let rank = self.member.rank;
        let all = self.publish(signature, input)?;
        for (from, view) in views(&all).into_iter().enumerate() {
            let source = view.slice(rank * part..(rank + 1) * part);
            output.slice(from * part..(from + 1) * part).copy_from(source);
        }
        Ok(())
    }

    pub fn all_to_all_uneven(&mut self, exchange: UnevenExchange<'_>) -> Result<(), CommError> {
        let signature = self.member.rank_context().all_to_all_uneven(&exchange)?;
        self.member.record_call(&signature);
        let wide = |counts: &[usize]| counts.iter().map(|&count| count as u64).collect();
        let body = Body::Uneven {
            data: exchange.input.into(),
            send_counts: wide(exchange.send_counts),
            recv_counts: wide(exchange.recv_counts),
        };
        let all = self.exchange(signature, body)?;
        let (sent, expected): (Vec<&[u64]>, Vec<&[u64]>) = all.iter().map(|payload| counts_of(payload)).unzip();
        self.member
            .rank_context()
            .agree_counts(&signature, &sent, &expected)
            .map_err(|error| self.member.fail_with(error))?;
        let (rank, mut output, mut end) = (self.member.rank, exchange.output, 0);
        for (payload, counts) in all.iter().zip(sent) {
            let start = counts[..rank].iter().sum::<u64>() as usize;
            let count = counts[rank] as usize;
            output.slice(end..end + count).copy_from(data_of(payload).slice(start..start + count));
            end += count;
        }
        Ok(())
    }

    pub fn barrier(&mut self) -> Result<(), CommError> {
        let signature = Signature::bare(OpKind::Barrier);
        self.member.record_call(&signature);
        self.exchange(signature, Body::Empty).map(drop)
    }

    /// The members of this rank's new group, in order, and the group that its first rank created.
    pub fn split(
        &mut self,
        color: Option<usize>,
        key: usize,
        make: impl FnOnce(&[usize]) -> super::group::Group,
    ) -> Result<Option<(usize, Arc<super::group::Group>)>, CommError> {
        let signature = Signature::bare(OpKind::Split);
        self.member.record_call(&signature);
        let wishes = self.exchange(signature, Body::Split { color, key })?;
        let mut chosen: Vec<(usize, usize)> = Vec::new();
        for (rank, wish) in wishes.iter().enumerate() {
            if let Body::Split { color: other, key } = &wish.body
                && *other == color
            {
                chosen.push((*key, rank));
            }
        }
        chosen.sort_unstable();
        let ranks: Vec<usize> = chosen.into_iter().map(|(_, rank)| rank).collect();
        let leads = color.is_some() && ranks[0] == self.member.rank;
        let made = leads.then(|| Arc::new(make(&ranks)));
        let all = self.exchange(signature, Body::Group(made))?;
        if color.is_none() {
            return Ok(None);
        }
        let Body::Group(Some(group)) = &all[ranks[0]].body else {
            unreachable!("the first rank of a colour publishes its group");
        };
        let new_rank = ranks.iter().position(|&rank| rank == self.member.rank);
        let new_rank = new_rank.expect("a rank is among those of its own colour");
        Ok(Some((new_rank, Arc::clone(group))))
    }
}

/// Ranges of at most `width` elements; a single empty one for no elements, because ranks compare
/// signatures even then.
fn chunks(len: usize, width: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len.div_ceil(width).max(1)).map(move |index| index * width..((index + 1) * width).min(len))
}

fn data_of(payload: &Payload) -> Buffer<'_> {
    match &payload.body {
        Body::Data(data) | Body::Uneven { data, .. } => data.view(),
        other => unreachable!("ranks agreed on an operation with data, found {other:?}"),
    }
}

fn views(all: &[Arc<Payload>]) -> Vec<Buffer<'_>> {
    all.iter().map(|payload| data_of(payload)).collect()
}

fn counts_of(payload: &Payload) -> (&[u64], &[u64]) {
    match &payload.body {
        Body::Uneven { send_counts, recv_counts, .. } => (send_counts, recv_counts),
        other => unreachable!("ranks agreed on an uneven exchange, found {other:?}"),
    }
}
