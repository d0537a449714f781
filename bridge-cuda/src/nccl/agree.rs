//! Agreement of the ranks of a group on an operation before its data moves, and the search for
//! missing ranks when data stalls.
//!
//! NCCL checks nothing: ranks that call different operations hang or get wrong numbers. So every
//! rank first gathers the signatures of all ranks over the bootstrap group. This also identifies
//! missing ranks within the time limit.

use std::time::Duration;

use super::member::Member;
use bridge_dist::comm::transport::{GroupMember, Signature};
use bridge_dist::comm::{CommError, CommErrorKind, Group};

/// The rank is ready to begin the operation.
const BEGIN: u8 = 0;
/// The rank has given up on the operation, because its data did not move.
const GAVE_UP: u8 = 1;
/// State, signature.
const MESSAGE: usize = 1 + Signature::ENCODED;

/// One rank's end of the agreements of one lane.
#[derive(Debug)]
pub(super) struct Agreement {
    pub member: Member,
    /// The bootstrap group with the same ranks, for this lane alone.
    pub control: Group,
}

impl Agreement {
    /// Returns when all ranks are ready to begin `mine`.
    pub fn agree(&self, mine: &Signature) -> Result<(), CommError> {
        self.member.check_world(mine)?;
        let messages = self.gather(BEGIN, mine)?;
        let mut all = Vec::with_capacity(self.member.size());
        for (peer, message) in messages.chunks_exact(MESSAGE).enumerate() {
            let signature = self.decode(message, mine)?;
            if message[0] == GAVE_UP {
                let message = format!("rank {peer} has given up waiting for the data of {signature}");
                return Err(self.member.fail(mine, CommErrorKind::Transport { library: "NCCL", message }));
            }
            all.push(signature);
        }
        self.member.rank_context().agree(mine, &all).map_err(|error| self.member.fail(mine, *error.kind))
    }

    /// The rows of all ranks, in rank order, all of the same length.
    pub fn share(&self, signature: &Signature, mine: &[i64]) -> Result<Vec<i64>, CommError> {
        let mut all = vec![0; mine.len() * self.member.size()];
        let gathered = self.control.all_gather(mine.into(), (&mut all).into());
        gathered.map_err(|error| self.member.adopt(signature, error))?;
        Ok(all)
    }

    /// The error of an operation whose data has not moved for `waited`. This call finds missing
    /// ranks; if all answer, the network or a device is stuck.
    pub fn roll_call(&self, signature: &Signature, waited: Duration) -> CommError {
        match self.gather(GAVE_UP, signature) {
            Err(error) => error,
            Ok(_) => {
                let message = format!("no data moved for {waited:?}, although all ranks are present");
                self.member.fail(signature, CommErrorKind::Transport { library: "NCCL", message })
            }
        }
    }

    fn gather(&self, state: u8, signature: &Signature) -> Result<Vec<u8>, CommError> {
        let mut mine = [state; MESSAGE];
        mine[1..].copy_from_slice(&signature.encode());
        let mut all = vec![0; MESSAGE * self.member.size()];
        let gathered = self.control.all_gather((&mine).into(), (&mut all).into());
        gathered.map_err(|error| self.member.adopt(signature, error))?;
        Ok(all)
    }

    fn decode(&self, message: &[u8], mine: &Signature) -> Result<Signature, CommError> {
        decode(&message[1..]).ok_or_else(|| self.member.fail(mine, garbled()))
    }
}

/// The signature in the bytes of another rank.
pub(super) fn decode(bytes: &[u8]) -> Option<Signature> {
    bytes.try_into().ok().and_then(Signature::decode)
}

pub(super) fn garbled() -> CommErrorKind {
    CommErrorKind::Transport { library: "the bootstrap group", message: "a garbled signature".to_owned() }
}
