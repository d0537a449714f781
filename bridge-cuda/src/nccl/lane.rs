//! The collectives of host memory on a carrier: the division into pieces, the transfers, and the
//! arithmetic.
//!
//! Carriers only move bytes. Elements are combined on the host in rank order, with the code of the
//! other communicators, so results are bit-identical to theirs. A reduction moves as many bytes as
//! a ring would (each rank gets its slice from all others, reduces it, and all gather the slices),
//! and a sum of bf16 is rounded once.

use std::ops::Range;

use super::agree::Agreement;
use super::carrier::{Carrier, CarrierError};
use bridge_dist::comm::transport::{Collectives, GroupMember, OpKind, Signature, chunks, reduce_parts, spread};
use bridge_dist::comm::{Buffer, BufferMut, CommError, DType, HostBuffer, ReduceOp, UnevenExchange};

/// Up to this many bytes every rank gathers and reduces everything: a second transfer would cost
/// more than the arithmetic.
const SMALL_BYTES: usize = 32 << 10;

/// One rank's end of a sequence of collectives.
pub(super) struct Lane<C> {
    pub agreement: Agreement,
    pub carrier: C,
    piece_bytes: usize,
}

impl<C: Carrier + 'static> Collectives for Lane<C> {
    fn all_reduce(&mut self, mut data: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let signature = Signature::reducing(OpKind::AllReduce, data.dtype(), data.len(), op);
        self.agreement.member.rank_context().check_reduce(&signature)?;
        self.agreement.agree(&signature)?;
        let small = data.len() * data.dtype().size() <= SMALL_BYTES;
        for range in chunks(data.len(), self.piece(data.dtype())) {
            let piece = data.slice(range);
            let moved = if small { self.reduce_everything(piece, op) } else { self.reduce_slice_and_gather(piece, op) };
            moved.map_err(|error| self.failed(&signature, error))?;
        }
        Ok(())
    }

    fn reduce_scatter(&mut self, input: Buffer<'_>, mut output: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let signature = self.agreement.member.rank_context().reduce_scatter(&input, &output, op)?;
        self.agreement.agree(&signature)?;
        let (part, size, dtype) = (output.len(), self.size(), input.dtype());
        for range in chunks(part, self.piece_of_rank(dtype)) {
            let mut parts = HostBuffer::zeros(dtype, range.len() * size);
            let sends = ranges_of_parts(&input, part, &range);
            let mut view = parts.view_mut();
            let mut receives = split_evenly(view.bytes_mut(), size);
            self.carrier.exchange(&sends, &mut receives).map_err(|error| self.failed(&signature, error))?;
            reduce_parts(op, &parts, output.slice(range));
        }
        Ok(())
    }

    fn all_gather(&mut self, input: Buffer<'_>, mut output: BufferMut<'_>) -> Result<(), CommError> {
        let signature = self.agreement.member.rank_context().all_gather(&input, &output)?;
        self.agreement.agree(&signature)?;
        let (part, size, dtype) = (input.len(), self.size(), input.dtype());
        if part <= self.piece_of_rank(dtype) {
            if part > 0 {
                let gathered = self.carrier.all_gather(input.bytes(), output.bytes_mut());
                gathered.map_err(|error| self.failed(&signature, error))?;
            }
            return Ok(());
        }
        for range in chunks(part, self.piece_of_rank(dtype)) {
            let mut all = HostBuffer::zeros(dtype, range.len() * size);
            let gathered = self.carrier.all_gather(input.slice(range.clone()).bytes(), all.view_mut().bytes_mut());
            gathered.map_err(|error| self.failed(&signature, error))?;
            spread(&all, &mut output, part, size, &range);
        }
        Ok(())
    }
}

impl<C: Carrier> Lane<C> {
    pub fn new(agreement: Agreement, carrier: C, piece_bytes: usize) -> Self {
        Self { agreement, carrier, piece_bytes }
    }

    fn size(&self) -> usize {
        self.agreement.member.size()
    }

    /// Elements of a piece that all ranks share.
    fn piece(&self, dtype: DType) -> usize {
        (self.piece_bytes / dtype.size()).max(1)
    }

    /// Elements of a piece of which there is one for each rank.
    fn piece_of_rank(&self, dtype: DType) -> usize {
        (self.piece(dtype) / self.size()).max(1)
    }

    /// Converts a failure of the carrier to an error of the operation. The lane is not used any
    /// more.
    pub fn failed(&mut self, signature: &Signature, error: CarrierError) -> CommError {
        self.carrier.abort();
        match error {
            CarrierError::Stalled(waited) => self.agreement.roll_call(signature, waited),
            CarrierError::Failed(kind) => self.agreement.member.fail(signature, kind),
        }
    }

    pub fn barrier(&self) -> Result<(), CommError> {
        // The agreement completes only after all ranks have joined.
        self.agreement.agree(&Signature::bare(OpKind::Barrier))
    }

    fn reduce_everything(&mut self, mut data: BufferMut<'_>, op: ReduceOp) -> Result<(), CarrierError> {
        let (dtype, len, size) = (data.dtype(), data.len(), self.size());
        let mut all = HostBuffer::zeros(dtype, len * size);
        self.carrier.all_gather(data.view().bytes(), all.view_mut().bytes_mut())?;
        reduce_parts(op, &all, data.reborrow());
        Ok(())
    }

    fn reduce_slice_and_gather(&mut self, mut data: BufferMut<'_>, op: ReduceOp) -> Result<(), CarrierError> {
        let (dtype, len, size) = (data.dtype(), data.len(), self.size());
        let slices = Slices { len, width: len.div_ceil(size) };
        let own = slices.range_of(self.agreement.member.rank).len();
        let mut parts = HostBuffer::zeros(dtype, own * size);
        {
            let whole = data.view();
            let sends: Vec<&[u8]> = (0..size).map(|rank| whole.slice(slices.range_of(rank)).bytes()).collect();
            let mut view = parts.view_mut();
            let mut receives = split_evenly(view.bytes_mut(), size);
            self.carrier.exchange(&sends, &mut receives)?;
        }
        // As wide as the widest slice, so that all ranks contribute the same number of elements.
        let mut reduced = HostBuffer::zeros(dtype, slices.width);
        reduce_parts(op, &parts, reduced.view_mut().slice(0..own));
        let mut all = HostBuffer::zeros(dtype, slices.width * size);
        self.carrier.all_gather(reduced.view().bytes(), all.view_mut().bytes_mut())?;
        data.copy_from(all.view().slice(0..len));
        Ok(())
    }

    pub fn broadcast(&mut self, mut data: BufferMut<'_>, root: usize) -> Result<(), CommError> {
        let signature = self.agreement.member.rank_context().broadcast(&data, root)?;
        self.agreement.agree(&signature)?;
        for range in chunks(data.len(), self.piece(data.dtype())) {
            let sent = self.carrier.broadcast(data.slice(range).bytes_mut(), root);
            sent.map_err(|error| self.failed(&signature, error))?;
        }
        Ok(())
    }

    pub fn all_to_all(&mut self, input: Buffer<'_>, mut output: BufferMut<'_>) -> Result<(), CommError> {
        let signature = self.agreement.member.rank_context().all_to_all(&input, &output)?;
        self.agreement.agree(&signature)?;
        let part = input.len() / self.size();
        let (piece, counts) = (self.piece_of_rank(input.dtype()), vec![part; self.size()]);
        self.exchange_in_pieces(part.div_ceil(piece), input, &counts, output.reborrow(), &counts)
            .map_err(|error| self.failed(&signature, error))
    }

    pub fn all_to_all_uneven(&mut self, mut exchange: UnevenExchange<'_>) -> Result<(), CommError> {
        let signature = self.agreement.member.rank_context().all_to_all_uneven(&exchange)?;
        self.agreement.agree(&signature)?;
        let size = self.size();
        let wide = exchange.send_counts.iter().chain(exchange.recv_counts).map(|&count| count as i64);
        let all = self.agreement.share(&signature, &wide.collect::<Vec<_>>())?;
        let all: Vec<u64> = all.into_iter().map(i64::cast_unsigned).collect();
        let (sent, expected): (Vec<&[u64]>, Vec<&[u64]>) =
            all.chunks_exact(2 * size).map(|row| row.split_at(size)).unzip();
        let member = &self.agreement.member;
        let agreed = member.rank_context().agree_counts(&signature, &sent, &expected);
        agreed.map_err(|error| member.fail(&signature, *error.kind))?;
        // The longest pair of the group decides, so that all ranks run the same number of rounds.
        let longest = all.iter().copied().max().map_or(0, |count| count as usize);
        let rounds = longest.div_ceil(self.piece_of_rank(exchange.input.dtype()));
        self.exchange_in_pieces(
            rounds,
            exchange.input,
            exchange.send_counts,
            exchange.output.reborrow(),
            exchange.recv_counts,
        )
        .map_err(|error| self.failed(&signature, error))
    }

    /// Round `r` moves the `r`-th piece between each pair of ranks; pairs with less data have empty
    /// pieces.
    fn exchange_in_pieces(
        &mut self,
        rounds: usize,
        input: Buffer<'_>,
        send_counts: &[usize],
        mut output: BufferMut<'_>,
        recv_counts: &[usize],
    ) -> Result<(), CarrierError> {
        let piece = self.piece_of_rank(input.dtype()) * input.dtype().size();
        let bytes = |count: usize| count * input.dtype().size();
        for round in 0..rounds {
            let cut = |len: usize| (round * piece).min(len)..((round + 1) * piece).min(len);
            let (mut start, mut sends) = (0, Vec::with_capacity(send_counts.len()));
            for &count in send_counts {
                let part = &input.bytes()[start..start + bytes(count)];
                sends.push(&part[cut(part.len())]);
                start += part.len();
            }
            let (mut rest, mut receives) = (output.bytes_mut(), Vec::with_capacity(recv_counts.len()));
            for &count in recv_counts {
                let (part, others) = rest.split_at_mut(bytes(count));
                let range = cut(part.len());
                receives.push(&mut part[range]);
                rest = others;
            }
            self.carrier.exchange(&sends, &mut receives)?;
        }
        Ok(())
    }
}

/// `len` elements as one slice for each rank, all `width` long but the last ones.
struct Slices {
    len: usize,
    width: usize,
}

impl Slices {
    fn range_of(&self, rank: usize) -> Range<usize> {
        (rank * self.width).min(self.len)..((rank + 1) * self.width).min(self.len)
    }
}

/// The same range of each rank's part of `input`.
fn ranges_of_parts<'a>(input: &Buffer<'a>, part: usize, range: &Range<usize>) -> Vec<&'a [u8]> {
    let parts = (0..input.len() / part).map(|rank| rank * part + range.start..rank * part + range.end);
    parts.map(|range| input.slice(range).bytes()).collect()
}

/// `parts` slices of equal length.
fn split_evenly(bytes: &mut [u8], parts: usize) -> Vec<&mut [u8]> {
    let width = bytes.len() / parts;
    let mut rest = bytes;
    (0..parts)
        .map(|_| {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(width);
            rest = others;
            part
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_and_pieces_cover_everything_once() {
        for len in [0, 1, 7, 12, 1000] {
            for parts in 1..6 {
                let slices = Slices { len, width: len.div_ceil(parts) };
                let covered: Vec<usize> = (0..parts).flat_map(|rank| slices.range_of(rank)).collect();
                assert!(covered.iter().copied().eq(0..len), "{len} in {parts}");
                let covered: Vec<usize> = chunks(len, parts).flatten().collect();
                assert!(covered.iter().copied().eq(0..len), "{len} by {parts}");
                assert!(chunks(len, parts).all(|range| (1..=parts).contains(&range.len())));
            }
        }
    }

    #[test]
    fn nothing_splits_into_empty_parts() {
        assert_eq!(split_evenly(&mut [], 3), [&[0u8; 0]; 3]);
        assert_eq!(split_evenly(&mut [1, 2, 3, 4], 2), [[1, 2], [3, 4]]);
    }
}
