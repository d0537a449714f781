//! Messages between two MPI ranks: a header that describes the data, and the data, with separate
//! tags.
//!
//! Both receives are posted when a receive starts, so that MPI's matching order is the order of the
//! starts.

use std::time::Instant;

use super::member::Member;
use super::raw::{Kind, Transfer};
use crate::comm::buffer::{DType, HostBuffer};
use crate::comm::error::{CommError, CommErrorKind};
use crate::comm::pace::Pace;
use crate::comm::request::Pending;
use crate::comm::signature::Signature;
use crate::comm::worker::GroupMember;

/// A message being sent or received.
pub(super) struct Message {
    member: Member,
    signature: Signature,
    peer: usize,
    direction: Direction,
    header: Option<Transfer>,
    data: Option<Transfer>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Out,
    In,
}

impl Message {
    pub fn send(
        member: Member,
        signature: Signature,
        data: HostBuffer,
        to: usize,
        tag: u32,
    ) -> Result<Self, CommError> {
        member.check_world(&signature)?;
        let none = || HostBuffer::zeros(DType::U8, 0);
        let header = HostBuffer::U8(signature.encode().to_vec());
        let header = member.start(&signature, Kind::Send { to, tag: 2 * tag }, header, none())?;
        let data = member.start(&signature, Kind::Send { to, tag: 2 * tag + 1 }, data, none())?;
        Ok(Self { member, signature, peer: to, direction: Direction::Out, header: Some(header), data: Some(data) })
    }

    pub fn receive(
        member: Member,
        signature: Signature,
        place: HostBuffer,
        from: usize,
        tag: u32,
    ) -> Result<Self, CommError> {
        member.check_world(&signature)?;
        let none = || HostBuffer::zeros(DType::U8, 0);
        let header = HostBuffer::zeros(DType::U8, Signature::ENCODED);
        let header = member.start(&signature, Kind::Recv { from, tag: 2 * tag }, none(), header)?;
        let data = member.start(&signature, Kind::Recv { from, tag: 2 * tag + 1 }, none(), place)?;
        Ok(Self { member, signature, peer: from, direction: Direction::In, header: Some(header), data: Some(data) })
    }

    fn poll(&mut self) -> Result<bool, CommError> {
        self.member.check_world(&self.signature)?;
        if let Some(header) = &mut self.header {
            if !self.member.poll(&self.signature, header)? {
                return Ok(false);
            }
            let finished = self.header.take().map(Transfer::into_buffers);
            if let (Direction::In, Some((_, bytes))) = (self.direction, finished) {
                self.check_header(&bytes)?;
            }
        }
        match &mut self.data {
            Some(data) => self.member.poll(&self.signature, data),
            None => Ok(true),
        }
    }

    /// Checked before the data: for data of another length, the library's error says much less.
    fn check_header(&self, bytes: &HostBuffer) -> Result<(), CommError> {
        let sent = bytes.view().bytes().try_into().ok().and_then(Signature::decode);
        if sent.is_some_and(|sent| (sent.dtype, sent.len) == (self.signature.dtype, self.signature.len)) {
            return Ok(());
        }
        let found = match sent {
            Some(Signature { dtype: Some(dtype), len: Some(len), .. }) => format!("a message of {len} x {dtype}"),
            _ => "a garbled header".to_owned(),
        };
        let kind = CommErrorKind::Mismatch { peer: self.peer, expected: self.signature.to_string(), found };
        Err(self.member.fail(&self.signature, kind))
    }

    pub fn finish(mut self) -> Result<HostBuffer, CommError> {
        let deadline = Instant::now() + self.member.world().timeout();
        let mut pace = Pace::default();
        let mut note = self.member.note();
        while !self.poll()? {
            if Instant::now() >= deadline {
                return Err(self.member.timed_out(&self.signature, [self.peer]));
            }
            note.still_waiting(&self.member.name, &self.signature);
            pace.pause();
        }
        let (input, output) = match self.data.take() {
            Some(data) => data.into_buffers(),
            None => unreachable!("the data is taken once, here"),
        };
        Ok(if self.direction == Direction::Out { input } else { output })
    }
}

impl Pending for Message {
    fn test(&mut self) -> Result<bool, CommError> {
        self.poll()
    }

    fn wait(self: Box<Self>) -> Result<HostBuffer, CommError> {
        self.finish()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        for transfer in [self.header.take(), self.data.take()].into_iter().flatten() {
            self.member.world().adopt(transfer);
        }
    }
}
