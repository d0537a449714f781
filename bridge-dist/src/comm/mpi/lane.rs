//! Blocking collectives of one rank on one MPI communicator. Data moves in pieces through buffers
//! of this module, which also reduces, in rank order.

use std::ops::Range;
use std::time::Instant;

use super::member::Member;
use super::raw::Kind;
use crate::comm::buffer::{Buffer, BufferMut, DType, HostBuffer, ReduceOp};
use crate::comm::error::CommError;
use crate::comm::pieces::{chunks, columns, reduce_parts, spread};
use crate::comm::signature::{OpKind, Signature, UnevenExchange};
use crate::comm::worker::{Collectives, GroupMember};

/// Bytes of a piece on one rank.
const CHUNK_BYTES: usize = 2 << 20;

/// Below this many bytes an all_reduce gathers everything everywhere: fewer steps matter more than
/// fewer bytes.
const SMALL_BYTES: usize = 8 << 10;

pub(super) fn bytes_of(buffer: &HostBuffer) -> &[u8] {
    buffer.view().bytes()
}

/// One rank's collectives on one communicator, one at a time.
#[derive(Debug)]
pub(super) struct Lane {
    pub member: Member,
}

impl Collectives for Lane {
    fn all_reduce(&mut self, mut data: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let signature = Signature::reducing(OpKind::AllReduce, data.dtype(), data.len(), op);
        self.member.rank_context().check_reduce(&signature)?;
        self.agree(&signature)?;
        if data.is_empty() {
            return Ok(());
        }
        if data.len() * data.dtype().size() <= SMALL_BYTES {
            let all = self.gather(&signature, data.view().into())?;
            reduce_parts(op, &all, data);
            return Ok(());
        }
        let (dtype, size) = (data.dtype(), self.member.size());
        for range in chunks(data.len(), self.chunk(dtype) * size) {
            // Padded, so that all ranks reduce the same amount.
            let width = range.len().div_ceil(size);
            let mut padded = HostBuffer::zeros(dtype, width * size);
            padded.view_mut().slice(0..range.len()).copy_from(data.view().slice(range.clone()));
            let parts = self.transpose(&signature, padded)?;
            let mut reduced = HostBuffer::zeros(dtype, width);
            reduce_parts(op, &parts, reduced.view_mut());
            let all = self.gather(&signature, reduced)?;
            let len = range.len();
            data.slice(range).copy_from(all.view().slice(0..len));
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, input: Buffer<'_>, mut output: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let signature = self.member.rank_context().reduce_scatter(&input, &output, op)?;
        self.agree(&signature)?;
        for range in chunks(output.len(), self.chunk(input.dtype())) {
            let parts = self.transpose(&signature, columns(&input, output.len(), self.member.size(), &range))?;
            reduce_parts(op, &parts, output.slice(range));
        }
        Ok(())
    }

    fn all_gather(&mut self, input: Buffer<'_>, mut output: BufferMut<'_>) -> Result<(), CommError> {
        let signature = self.member.rank_context().all_gather(&input, &output)?;
        self.agree(&signature)?;
        for range in chunks(input.len(), self.chunk(input.dtype())) {
            let all = self.gather(&signature, input.slice(range.clone()).into())?;
            spread(&all, &mut output, input.len(), self.member.size(), &range);
        }
        Ok(())
    }
}

impl Lane {
    /// Runs one agreed data transfer and returns the received data.
    fn transfer(
        &mut self,
        signature: &Signature,
        kind: Kind,
        input: HostBuffer,
        output: HostBuffer,
    ) -> Result<HostBuffer, CommError> {
        let member = &self.member;
        let deadline = Instant::now() + member.world().timeout();
        let mut transfer = member.start(signature, kind, input, output)?;
        if member.finish(signature, &mut transfer, deadline)? {
            return Ok(transfer.into_buffers().1);
        }
        // All ranks had agreed to this operation, so which of them has stopped since is not known
        // here.
        let others = (0..member.size()).filter(|rank| *rank != member.rank);
        Err(member.timed_out(signature, others))
    }

    /// Every rank's `input`, concatenated.
    fn gather(&mut self, signature: &Signature, input: HostBuffer) -> Result<HostBuffer, CommError> {
        let output = HostBuffer::zeros(input.dtype(), input.len() * self.member.size());
        self.transfer(signature, Kind::AllGather, input, output)
    }

    /// Sends the `j`-th equal part of `input` to rank `j`.
    fn transpose(&mut self, signature: &Signature, input: HostBuffer) -> Result<HostBuffer, CommError> {
        let output = HostBuffer::zeros(input.dtype(), input.len());
        self.transfer(signature, Kind::AllToAll, input, output)
    }

    fn chunk(&self, dtype: DType) -> usize {
        (CHUNK_BYTES / dtype.size() / self.member.size()).max(1)
    }

    pub fn broadcast(&mut self, mut data: BufferMut<'_>, root: usize) -> Result<(), CommError> {
        let signature = self.member.rank_context().broadcast(&data, root)?;
        self.agree(&signature)?;
        for range in chunks(data.len(), CHUNK_BYTES / data.dtype().size()) {
            let mut part = data.slice(range);
            let none = HostBuffer::zeros(part.dtype(), 0);
            let kind = Kind::Broadcast { root };
            let arrived = self.transfer(&signature, kind, none, part.view().into())?;
            part.copy_from(arrived.view());
        }
        Ok(())
    }

    pub fn all_to_all(&mut self, input: Buffer<'_>, mut output: BufferMut<'_>) -> Result<(), CommError> {
        let signature = self.member.rank_context().all_to_all(&input, &output)?;
        self.agree(&signature)?;
        let (size, part) = (self.member.size(), input.len() / self.member.size());
        for range in chunks(part, self.chunk(input.dtype())) {
            let all = self.transpose(&signature, columns(&input, part, size, &range))?;
            spread(&all, &mut output, part, size, &range);
        }
        Ok(())
    }

    pub fn all_to_all_uneven(&mut self, exchange: UnevenExchange<'_>) -> Result<(), CommError> {
        let UnevenExchange { input, send_counts, mut output, recv_counts } = exchange;
        let checked = UnevenExchange { input, send_counts, output: output.reborrow(), recv_counts };
        let signature = self.member.rank_context().all_to_all_uneven(&checked)?;
        self.agree(&signature)?;
        let longest = self.agree_counts(&signature, send_counts, recv_counts)?;
        let (dtype, width) = (input.dtype(), self.chunk(input.dtype()));
        for range in chunks(longest, width) {
            let (outgoing, sent) = window(&input, send_counts, &range);
            let received = overlaps(recv_counts, &range);
            let total = received.iter().sum();
            let in_bytes = |counts: &[usize]| counts.iter().map(|n| (n * dtype.size()) as i32).collect();
            let kind = Kind::AllToAllUneven { send: in_bytes(&sent), recv: in_bytes(&received) };
            let arrived = self.transfer(&signature, kind, outgoing, HostBuffer::zeros(dtype, total))?;
            let (mut source, mut start) = (0, 0);
            for (count, here) in recv_counts.iter().zip(received) {
                let to = start + range.start.min(*count);
                output.slice(to..to + here).copy_from(arrived.view().slice(source..source + here));
                source += here;
                start += count;
            }
        }
        Ok(())
    }

    /// Checks that the counts of all ranks match; returns the largest count of any pair.
    fn agree_counts(
        &mut self,
        signature: &Signature,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> Result<usize, CommError> {
        let size = self.member.size();
        let mine: Vec<i64> = send_counts.iter().chain(recv_counts).map(|&count| count as i64).collect();
        let gathered = self.gather(signature, mine.into())?;
        let all: Vec<u64> = bytemuck::cast_slice(bytes_of(&gathered)).to_vec();
        let rows: Vec<&[u64]> = all.chunks(size).collect();
        let (sent, expected): (Vec<&[u64]>, Vec<&[u64]>) = rows.chunks(2).map(|pair| (pair[0], pair[1])).unzip();
        let agreed = self.member.rank_context().agree_counts(signature, &sent, &expected);
        agreed.map_err(|error| self.member.world().fail(error))?;
        Ok(all.into_iter().max().unwrap_or(0) as usize)
    }

    pub fn barrier(&mut self) -> Result<(), CommError> {
        self.agree(&Signature::bare(OpKind::Barrier))
    }
}

/// Number of elements of each part that fall into `range`.
fn overlaps(counts: &[usize], range: &Range<usize>) -> Vec<usize> {
    counts.iter().map(|count| range.end.min(*count).saturating_sub(range.start)).collect()
}

/// The elements of each part that fall into `range`, packed, and how many they are.
fn window(input: &Buffer<'_>, counts: &[usize], range: &Range<usize>) -> (HostBuffer, Vec<usize>) {
    let inside = overlaps(counts, range);
    let mut packed = HostBuffer::zeros(input.dtype(), inside.iter().sum());
    let (mut start, mut next) = (0, 0);
    for (count, here) in counts.iter().zip(&inside) {
        let from = start + range.start.min(*count);
        packed.view_mut().slice(next..next + here).copy_from(input.slice(from..from + here));
        next += here;
        start += count;
    }
    (packed, inside)
}
