//! Agreement of the ranks of a group on an operation before its data moves.
//!
//! Every rank sends its signature to rank 0 of the group, which compares them and sends a verdict
//! back. So all ranks learn of a mismatch or a missing rank, and data moves only when all ranks
//! have called the operation with equal arguments.

use std::time::Instant;

use super::lane::{Lane, bytes_of};
use super::raw::{Kind, RawError};
use crate::comm::buffer::{DType, HostBuffer};
use crate::comm::error::{CommError, CommErrorKind};
use crate::comm::signature::{MAX_TAG, Signature, odd_one_out};
use crate::comm::worker::GroupMember;

/// Tags of agreement, above those of messages (which use two each).
const TO_ROOT: u32 = 2 * MAX_TAG + 2;
const FROM_ROOT: u32 = 2 * MAX_TAG + 3;

/// Rank 0's verdict on the signatures.
enum Verdict {
    Agreed,
    Mismatch { peer: usize, expected: Signature, found: Signature },
    Missing(Vec<usize>),
}

const AGREED: u8 = 1;
const MISMATCH: u8 = 2;
const MISSING: u8 = 3;
const VERDICT_HEAD: usize = 8 + 2 * Signature::ENCODED;

impl Verdict {
    fn encoded_len(size: usize) -> usize {
        VERDICT_HEAD + size
    }

    fn encode(&self, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; Self::encoded_len(size)];
        match self {
            Self::Agreed => bytes[0] = AGREED,
            Self::Mismatch { peer, expected, found } => {
                bytes[0] = MISMATCH;
                bytes[4..8].copy_from_slice(&(*peer as u32).to_le_bytes());
                bytes[8..8 + Signature::ENCODED].copy_from_slice(&expected.encode());
                bytes[8 + Signature::ENCODED..VERDICT_HEAD].copy_from_slice(&found.encode());
            }
            Self::Missing(ranks) => {
                bytes[0] = MISSING;
                ranks.iter().for_each(|rank| bytes[VERDICT_HEAD + rank] = 1);
            }
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let signature = |start: usize| Signature::decode(bytes[start..start + Signature::ENCODED].try_into().ok()?);
        match bytes[0] {
            AGREED => Some(Self::Agreed),
            MISMATCH => Some(Self::Mismatch {
                peer: u32::from_le_bytes(bytes[4..8].try_into().ok()?) as usize,
                expected: signature(8)?,
                found: signature(8 + Signature::ENCODED)?,
            }),
            MISSING => {
                let flags = bytes[VERDICT_HEAD..].iter().enumerate();
                Some(Self::Missing(flags.filter(|(_, flag)| **flag == 1).map(|(rank, _)| rank).collect()))
            }
            _ => None,
        }
    }
}

impl Lane {
    /// Returns when the signatures of all ranks agree; otherwise all ranks get the same error.
    pub fn agree(&mut self, signature: &Signature) -> Result<(), CommError> {
        self.member.check_world(signature)?;
        let verdict = if self.member.rank == 0 { self.judge(signature)? } else { self.ask(signature)? };
        match verdict {
            Verdict::Agreed => Ok(()),
            Verdict::Mismatch { peer, expected, found } => {
                let kind = CommErrorKind::Mismatch { peer, expected: expected.to_string(), found: found.to_string() };
                Err(self.member.fail(signature, kind))
            }
            Verdict::Missing(ranks) => Err(self.member.timed_out(signature, ranks)),
        }
    }

    /// Rank 0: collects and compares the signatures, and sends the verdict.
    fn judge(&mut self, signature: &Signature) -> Result<Verdict, CommError> {
        let (member, size) = (&self.member, self.member.size());
        let deadline = Instant::now() + member.world().timeout();
        let place = || HostBuffer::zeros(DType::U8, Signature::ENCODED);
        let mut incoming = Vec::with_capacity(size - 1);
        for from in 1..size {
            let kind = Kind::Recv { from, tag: TO_ROOT };
            incoming.push((from, member.start(signature, kind, HostBuffer::zeros(DType::U8, 0), place())?));
        }
        let mut all = vec![*signature; size];
        let mut missing = Vec::new();
        for (from, mut transfer) in incoming {
            if !member.finish(signature, &mut transfer, deadline)? {
                missing.push(from);
                continue;
            }
            let (_, received) = transfer.into_buffers();
            let decoded = bytes_of(&received).try_into().ok().and_then(Signature::decode);
            all[from] = decoded.ok_or_else(|| member.library(signature, RawError("a garbled signature".to_owned())))?;
        }
        let verdict = if missing.is_empty() { compare(&all) } else { Verdict::Missing(missing) };
        let mut outgoing = Vec::with_capacity(size - 1);
        for to in 1..size {
            let kind = Kind::Send { to, tag: FROM_ROOT };
            let bytes = HostBuffer::U8(verdict.encode(size));
            outgoing.push(member.start(signature, kind, bytes, HostBuffer::zeros(DType::U8, 0))?);
        }
        for mut transfer in outgoing {
            // The library buffers short messages; a missing rank may leave its message unread.
            if !member.finish(signature, &mut transfer, deadline.max(Instant::now()))? {
                member.world().adopt(transfer);
            }
        }
        Ok(verdict)
    }

    /// Other ranks: send the signature and wait for the verdict, a little longer than rank 0 waits
    /// for the last signature.
    fn ask(&mut self, signature: &Signature) -> Result<Verdict, CommError> {
        let member = &self.member;
        let timeout = member.world().timeout();
        let deadline = Instant::now() + timeout + timeout / 4;
        let none = || HostBuffer::zeros(DType::U8, 0);
        let header = HostBuffer::U8(signature.encode().to_vec());
        let mut question = member.start(signature, Kind::Send { to: 0, tag: TO_ROOT }, header, none())?;
        let place = HostBuffer::zeros(DType::U8, Verdict::encoded_len(member.size()));
        let kind = Kind::Recv { from: 0, tag: FROM_ROOT };
        let mut answer = member.start(signature, kind, none(), place)?;
        let answered = member.finish(signature, &mut answer, deadline)?;
        if !(answered && member.finish(signature, &mut question, deadline)?) {
            return Ok(Verdict::Missing(vec![0]));
        }
        let (_, received) = answer.into_buffers();
        Verdict::decode(bytes_of(&received))
            .ok_or_else(|| member.library(signature, RawError("a garbled verdict".to_owned())))
    }
}

fn compare(all: &[Signature]) -> Verdict {
    match odd_one_out(all) {
        Some((peer, expected)) => Verdict::Mismatch { peer, expected, found: all[peer] },
        None => Verdict::Agreed,
    }
}
