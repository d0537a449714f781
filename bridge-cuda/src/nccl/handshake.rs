//! Headers that two ranks exchange before a message of device memory moves, so that a mismatch is
//! an error instead of a hang. Headers go over the bootstrap group; data does not belong here.

use super::agree::{decode, garbled};
use super::member::Member;
use bridge_dist::comm::transport::{GroupMember, OpKind, Signature};
use bridge_dist::comm::{CommError, CommErrorKind, DType, Group, HostBuffer, Request};

/// Tags of headers: in the direction of the data, and against it. Each direction between two ranks
/// keeps its own order.
const FROM_SENDER: u32 = 0;
const FROM_RECEIVER: u32 = 1;

/// A message, from the view of one of its two ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub signature: Signature,
    pub peer: usize,
    tags: Tags,
}

#[derive(Clone, Copy, Debug)]
struct Tags {
    mine: u32,
    theirs: u32,
}

impl Message {
    /// `kind` is `Send` or `Recv`.
    pub fn new(member: &Member, kind: OpKind, what: (DType, usize), peer: usize) -> Result<Self, CommError> {
        let signature = Signature { tag: None, ..member.rank_context().message(kind, what, peer, 0)? };
        let tags = match kind {
            OpKind::Send => Tags { mine: FROM_SENDER, theirs: FROM_RECEIVER },
            _ => Tags { mine: FROM_RECEIVER, theirs: FROM_SENDER },
        };
        Ok(Self { signature, peer, tags })
    }
}

/// Returns when the peers of all messages are ready for their part.
pub(super) fn shake_hands(member: &Member, control: &Group, messages: &[Message]) -> Result<(), CommError> {
    // All headers are sent before the first is waited for.
    let mut sent: Vec<Request> = Vec::with_capacity(messages.len());
    for message in messages {
        member.check_world(&message.signature)?;
        let header = message.signature.encode().to_vec();
        let started = control.start_send(header.into(), message.peer, message.tags.mine);
        sent.push(started.map_err(|error| member.adopt(&message.signature, error))?);
    }
    for message in messages {
        let Message { signature, peer, tags } = message;
        let mut header = [0; Signature::ENCODED];
        let received = control.recv((&mut header).into(), *peer, tags.theirs);
        received.map_err(|error| member.adopt(signature, error))?;
        let theirs = decode(&header).ok_or_else(|| member.fail(signature, garbled()))?;
        if (theirs.dtype, theirs.len) != (signature.dtype, signature.len) {
            let (expected, found) = (signature.to_string(), theirs.to_string());
            return Err(member.fail(signature, CommErrorKind::Mismatch { peer: *peer, expected, found }));
        }
    }
    for (request, message) in sent.into_iter().zip(messages) {
        let _: HostBuffer = request.wait().map_err(|error| member.adopt(&message.signature, error))?;
    }
    Ok(())
}
