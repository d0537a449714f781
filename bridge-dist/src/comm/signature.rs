//! Signatures of operations, which ranks compare before data moves, and the argument checks that
//! each rank makes alone. Shared by all implementations so that their errors read the same.

use std::fmt;
use std::sync::Arc;

use super::buffer::{Buffer, BufferMut, DType, ReduceOp};
use super::error::{CommError, CommErrorKind};

/// The largest tag of a message. The MPI standard guarantees tags up to 32767; an implementation
/// may use two per message and a few internal ones.
pub const MAX_TAG: u32 = 16_379;

/// The operations, for comparison and for error texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OpKind {
    /// `all_reduce`.
    AllReduce = 1,
    /// `reduce_scatter`.
    ReduceScatter,
    /// `all_gather`.
    AllGather,
    /// `broadcast`.
    Broadcast,
    /// `all_to_all` with equal parts.
    AllToAll,
    /// `all_to_all_uneven`.
    AllToAllUneven,
    /// `barrier`.
    Barrier,
    /// `split`.
    Split,
    /// `send`.
    Send,
    /// `recv`.
    Recv,
}

impl OpKind {
    const ALL: [Self; 10] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::AllToAll,
        Self::AllToAllUneven,
        Self::Barrier,
        Self::Split,
        Self::Send,
        Self::Recv,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
            Self::AllToAllUneven => "all_to_all_uneven",
            Self::Barrier => "barrier",
            Self::Split => "split",
            Self::Send => "send",
            Self::Recv => "recv",
        }
    }
}

/// One operation with everything that must agree between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Operation.
    pub kind: OpKind,
    /// Reduction, if the operation has one.
    pub reduce: Option<ReduceOp>,
    /// Element type, if data moves.
    pub dtype: Option<DType>,
    /// Elements: of the whole vector for all_reduce, of one rank's part for the others.
    pub len: Option<u64>,
    /// The root of a broadcast, the peer of a message.
    pub peer: Option<u32>,
    /// The tag of a message.
    pub tag: Option<u32>,
    /// True if the data stays on devices.
    pub on_device: bool,
}

impl Signature {
    /// An operation without data.
    pub const fn bare(kind: OpKind) -> Self {
        Self { kind, reduce: None, dtype: None, len: None, peer: None, tag: None, on_device: false }
    }

    /// An operation that moves `len` elements of each rank.
    pub const fn data(kind: OpKind, dtype: DType, len: usize) -> Self {
        Self { dtype: Some(dtype), len: Some(len as u64), ..Self::bare(kind) }
    }

    /// An operation that reduces `len` elements of each rank.
    pub const fn reducing(kind: OpKind, dtype: DType, len: usize, op: ReduceOp) -> Self {
        Self { reduce: Some(op), ..Self::data(kind, dtype, len) }
    }

    /// A message of a buffer, given by its type and length, to or from rank `peer`.
    pub const fn message(kind: OpKind, (dtype, len): (DType, usize), peer: usize, tag: u32) -> Self {
        Self { peer: Some(peer as u32), tag: Some(tag), ..Self::data(kind, dtype, len) }
    }

    /// The same operation on device memory.
    #[must_use]
    pub const fn on_device(self) -> Self {
        Self { on_device: true, ..self }
    }

    /// Bytes of [`Self::encode`].
    pub const ENCODED: usize = 24;

    /// A fixed-size form for transports that move bytes. Absent values are zero; present ones are
    /// shifted by one.
    pub fn encode(&self) -> [u8; Self::ENCODED] {
        let mut bytes = [0; Self::ENCODED];
        bytes[0] = self.kind as u8;
        bytes[1] = self.reduce.map_or(0, |op| op as u8);
        bytes[2] = self.dtype.map_or(0, |dtype| dtype as u8);
        bytes[3] = u8::from(self.on_device);
        bytes[4..8].copy_from_slice(&self.tag.map_or(0, |tag| tag + 1).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.map_or(0, |len| len + 1).to_le_bytes());
        bytes[16..20].copy_from_slice(&self.peer.map_or(0, |peer| peer + 1).to_le_bytes());
        bytes
    }

    /// The inverse of [`Self::encode`]; `None` for bytes it never makes.
    pub fn decode(bytes: &[u8; Self::ENCODED]) -> Option<Self> {
        let word =
            |start: usize| u32::from_le_bytes([bytes[start], bytes[start + 1], bytes[start + 2], bytes[start + 3]]);
        let len = u64::from(word(8)) | u64::from(word(12)) << 32;
        let ops = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];
        Some(Self {
            kind: OpKind::ALL.into_iter().find(|kind| *kind as u8 == bytes[0])?,
            reduce: ops.into_iter().find(|op| *op as u8 == bytes[1]),
            dtype: DType::ALL.into_iter().find(|dtype| *dtype as u8 == bytes[2]),
            len: len.checked_sub(1),
            peer: word(16).checked_sub(1),
            tag: word(4).checked_sub(1),
            on_device: bytes[3] != 0,
        })
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(op) = self.reduce {
            parts.push(op.to_string());
        }
        match (self.dtype, self.len) {
            (Some(dtype), Some(len)) => parts.push(format!("{len} x {dtype}")),
            (Some(dtype), None) => parts.push(dtype.to_string()),
            _ => {}
        }
        if let Some(peer) = self.peer {
            let role = match self.kind {
                OpKind::Send => "to",
                OpKind::Recv => "from",
                _ => "root",
            };
            parts.push(format!("{role} number {peer}"));
        }
        if let Some(tag) = self.tag {
            parts.push(format!("tag {tag}"));
        }
        if self.on_device {
            parts.push("on the device".to_owned());
        }
        write!(f, "{}({})", self.kind.name(), parts.join(", "))
    }
}

/// Element type and number of elements of a buffer, wherever its memory is.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
}

impl From<&Buffer<'_>> for Extent {
    fn from(buffer: &Buffer<'_>) -> Self {
        Self { dtype: buffer.dtype(), len: buffer.len() }
    }
}

impl From<&BufferMut<'_>> for Extent {
    fn from(buffer: &BufferMut<'_>) -> Self {
        Self { dtype: buffer.dtype(), len: buffer.len() }
    }
}

/// The rank and group that every error of a rank names.
#[derive(Clone, Copy, Debug)]
pub struct RankContext<'a> {
    /// Rank in the group.
    pub rank: usize,
    /// The group's ranks as ranks of the world.
    pub world_ranks: &'a Arc<[usize]>,
    /// Name of the group.
    pub group: &'a str,
}

impl RankContext<'_> {
    fn size(&self) -> usize {
        self.world_ranks.len()
    }

    /// An error of this rank in an operation.
    pub fn error(&self, signature: &Signature, kind: CommErrorKind) -> CommError {
        CommError {
            rank: self.rank,
            world_ranks: Arc::clone(self.world_ranks),
            group: self.group.to_owned(),
            operation: signature.to_string(),
            kind: Box::new(kind),
        }
    }

    fn invalid(
        &self,
        signature: &Signature,
        what: &'static str,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> CommError {
        let kind = CommErrorKind::InvalidArgument { what, expected: expected.to_string(), found: found.to_string() };
        self.error(signature, kind)
    }

    /// The signatures of all ranks, in rank order, must be equal. The most frequent one is taken as
    /// correct.
    pub fn agree(&self, mine: &Signature, all: &[Signature]) -> Result<(), CommError> {
        let Some((peer, expected)) = odd_one_out(all) else { return Ok(()) };
        let kind = CommErrorKind::Mismatch { peer, expected: expected.to_string(), found: all[peer].to_string() };
        Err(self.error(mine, kind))
    }

    /// Refuses averages of integers.
    ///
    /// # Errors
    /// If elements of the type have no such reduction.
    pub fn check_reduce(&self, signature: &Signature) -> Result<(), CommError> {
        match (signature.reduce, signature.dtype) {
            (Some(ReduceOp::Avg), Some(dtype)) if !dtype.is_float() => {
                Err(self.invalid(signature, "element type of an average", "f32, bf16 or f64", dtype))
            }
            _ => Ok(()),
        }
    }

    /// Devices add up and average, and nothing else.
    pub fn check_device_reduce(&self, signature: &Signature) -> Result<(), CommError> {
        match signature.reduce {
            Some(op @ (ReduceOp::Max | ReduceOp::Min)) => {
                Err(self.invalid(signature, "reduction on the device", "sum or avg", op))
            }
            _ => self.check_reduce(signature),
        }
    }

    /// Checks type and length of `output` against those that follow from `input`.
    fn check_pair(
        &self,
        signature: &Signature,
        input: Extent,
        output: Extent,
        expected_len: usize,
    ) -> Result<(), CommError> {
        if input.dtype != output.dtype {
            return Err(self.invalid(signature, "element type of the output", input.dtype, output.dtype));
        }
        if output.len != expected_len {
            return Err(self.invalid(signature, "length of the output", expected_len, output.len));
        }
        Ok(())
    }

    /// Signature of a reduce-scatter of these buffers.
    ///
    /// # Errors
    /// If types or lengths do not fit.
    pub fn reduce_scatter(
        &self,
        input: impl Into<Extent>,
        output: impl Into<Extent>,
        op: ReduceOp,
    ) -> Result<Signature, CommError> {
        let (input, output) = (input.into(), output.into());
        let signature = Signature::reducing(OpKind::ReduceScatter, input.dtype, output.len, op);
        if !input.len.is_multiple_of(self.size()) {
            let expected = format!("a multiple of the {} ranks", self.size());
            return Err(self.invalid(&signature, "length of the input", expected, input.len));
        }
        self.check_pair(&signature, input, output, input.len / self.size())?;
        self.check_reduce(&signature)?;
        Ok(signature)
    }

    /// Signature of an all-gather of these buffers.
    ///
    /// # Errors
    /// If types or lengths do not fit.
    pub fn all_gather(&self, input: impl Into<Extent>, output: impl Into<Extent>) -> Result<Signature, CommError> {
        let (input, output) = (input.into(), output.into());
        let signature = Signature::data(OpKind::AllGather, input.dtype, input.len);
        self.check_pair(&signature, input, output, input.len * self.size())?;
        Ok(signature)
    }

    /// Signature of an all-to-all of these buffers.
    ///
    /// # Errors
    /// If types or lengths do not fit.
    pub fn all_to_all(&self, input: impl Into<Extent>, output: impl Into<Extent>) -> Result<Signature, CommError> {
        let (input, output) = (input.into(), output.into());
        let signature = Signature::data(OpKind::AllToAll, input.dtype, input.len / self.size());
        if !input.len.is_multiple_of(self.size()) {
            let expected = format!("a multiple of the {} ranks", self.size());
            return Err(self.invalid(&signature, "length of the input", expected, input.len));
        }
        self.check_pair(&signature, input, output, input.len)?;
        Ok(signature)
    }

    /// Signature of an uneven all-to-all.
    ///
    /// # Errors
    /// If types or counts do not fit.
    pub fn all_to_all_uneven(&self, exchange: &UnevenExchange<'_>) -> Result<Signature, CommError> {
        let (input, output) = ((&exchange.input).into(), (&exchange.output).into());
        self.uneven(input, exchange.send_counts, output, exchange.recv_counts)
    }

    /// As [`all_to_all_uneven`](Self::all_to_all_uneven), of memory anywhere.
    pub fn uneven(
        &self,
        input: Extent,
        send_counts: &[usize],
        output: Extent,
        recv_counts: &[usize],
    ) -> Result<Signature, CommError> {
        let signature = Signature { dtype: Some(input.dtype), ..Signature::bare(OpKind::AllToAllUneven) };
        let counts = [
            ("number of send counts", "sum of the send counts", send_counts, input.len),
            ("number of receive counts", "sum of the receive counts", recv_counts, output.len),
        ];
        for (number, sum, counts, len) in counts {
            if counts.len() != self.size() {
                return Err(self.invalid(&signature, number, self.size(), counts.len()));
            }
            if counts.iter().sum::<usize>() != len {
                let found = counts.iter().sum::<usize>();
                return Err(self.invalid(&signature, sum, format!("the buffer's length {len}"), found));
            }
        }
        let own = send_counts[self.rank];
        if own != recv_counts[self.rank] {
            let found = recv_counts[self.rank];
            return Err(self.invalid(&signature, "receive count from this rank itself", own, found));
        }
        self.check_pair(&signature, input, output, output.len)?;
        Ok(signature)
    }

    /// Signature of a broadcast from rank `root`.
    ///
    /// # Errors
    /// If there is no such rank.
    pub fn broadcast(&self, data: impl Into<Extent>, root: usize) -> Result<Signature, CommError> {
        let data = data.into();
        let signature =
            Signature { peer: Some(root as u32), ..Signature::data(OpKind::Broadcast, data.dtype, data.len) };
        if root >= self.size() {
            return Err(self.invalid(&signature, "root", format!("a number below {}", self.size()), root));
        }
        Ok(signature)
    }

    /// Signature of a message to or from rank `peer`.
    ///
    /// # Errors
    /// If there is no such rank, it is this one, or the tag is too large.
    pub fn message(&self, kind: OpKind, buffer: (DType, usize), peer: usize, tag: u32) -> Result<Signature, CommError> {
        let signature = Signature::message(kind, buffer, peer, tag);
        if peer >= self.size() || peer == self.rank {
            let expected = format!("a number below {} other than {}", self.size(), self.rank);
            return Err(self.invalid(&signature, "peer", expected, peer));
        }
        if tag > MAX_TAG {
            return Err(self.invalid(&signature, "tag", format!("at most {MAX_TAG}"), tag));
        }
        Ok(signature)
    }

    /// The send counts of each rank must match the receive counts of the others.
    /// `send_counts[i][j]`: elements that `i` sends to `j`.
    pub fn agree_counts(
        &self,
        signature: &Signature,
        send_counts: &[&[u64]],
        recv_counts: &[&[u64]],
    ) -> Result<(), CommError> {
        for (from, row) in send_counts.iter().enumerate() {
            for (to, &sent) in row.iter().enumerate() {
                let expected = recv_counts[to][from];
                if sent != expected {
                    let kind = CommErrorKind::Mismatch {
                        peer: from,
                        expected: format!("{expected} elements for rank {} (its receive count)", self.world_ranks[to]),
                        found: format!("{sent} elements"),
                    };
                    return Err(self.error(signature, kind));
                }
            }
        }
        Ok(())
    }
}

/// The first rank whose signature differs from the majority's, and the majority's signature; `None`
/// if all are equal. Among equally frequent signatures the first counts, so that all ranks name the
/// same rank.
pub fn odd_one_out(all: &[Signature]) -> Option<(usize, Signature)> {
    if all.windows(2).all(|pair| pair[0] == pair[1]) {
        return None;
    }
    let votes = |candidate: &Signature| all.iter().filter(|other| *other == candidate).count();
    let expected = *all.iter().rev().max_by_key(|candidate| votes(candidate))?;
    let peer = all.iter().position(|other| *other != expected)?;
    Some((peer, expected))
}

/// The arguments of [`Communicator::all_to_all_uneven`](super::Communicator::all_to_all_uneven).
///
/// Both buffers are packed in rank order: the first `send_counts[0]` elements of `input` go to rank
/// 0, the next `send_counts[1]` to rank 1, and so on; `output` likewise with `recv_counts`.
#[derive(Debug)]
pub struct UnevenExchange<'a> {
    /// The elements that this rank sends. Length: the sum of `send_counts`.
    pub input: Buffer<'a>,
    /// Elements for each rank.
    pub send_counts: &'a [usize],
    /// The elements that this rank receives. Length: the sum of `recv_counts`.
    pub output: BufferMut<'a>,
    /// Elements from each rank; must equal rank `j`'s `send_counts` for this rank.
    pub recv_counts: &'a [usize],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_round_trips() {
        let cases = [
            Signature::bare(OpKind::Barrier),
            Signature::reducing(OpKind::AllReduce, DType::Bf16, 0, ReduceOp::Avg),
            Signature::message(OpKind::Send, (DType::U8, 1 << 40), 0, MAX_TAG),
            Signature::data(OpKind::AllGather, DType::F32, 7).on_device(),
        ];
        for case in cases {
            assert_eq!(Signature::decode(&case.encode()), Some(case));
        }
        assert_eq!(Signature::decode(&[0; Signature::ENCODED]), None);
    }

    #[test]
    fn the_minority_is_named() {
        let context = RankContext { rank: 0, world_ranks: &[0, 1, 2].into(), group: "dp" };
        let sum = Signature::reducing(OpKind::AllReduce, DType::F32, 4, ReduceOp::Sum);
        let odd = Signature::bare(OpKind::Barrier);
        let error = context.agree(&odd, &[odd, sum, sum]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "rank 0 of group `dp` (size 3) in barrier(): rank 0 disagrees: \
             expected all_reduce(sum, 4 x f32), found barrier()"
        );
    }
}
