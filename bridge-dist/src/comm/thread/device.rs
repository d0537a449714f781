//! Exchanges of device memory between ranks that share one device: ranks publish the memory itself,
//! and other ranks read it. This file does not copy or compute.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::ThreadCommunicator;
use super::collectives::Endpoint;
use super::group::{Body, Payload};
use super::launch::panic_message;
use super::mailbox::{Message, Receive};
use crate::comm::device::{DeviceCall, DeviceExchange, DeviceLine, DeviceMemory, DevicePart, DeviceWork};
use crate::comm::error::{CommError, CommErrorKind};
use crate::comm::lock::lock;
use crate::comm::request::{Pending, Request};
use crate::comm::signature::{OpKind, Signature};
use crate::comm::worker::GroupMember;

/// A lane during one operation.
struct Line<'a> {
    endpoint: &'a mut Endpoint,
    signature: Signature,
}

impl DeviceLine for Line<'_> {
    fn rank(&self) -> usize {
        self.endpoint.member.rank
    }

    fn size(&self) -> usize {
        self.endpoint.member.group.members.len()
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn exchange(&mut self, parts: Vec<DevicePart>, receive: &[usize]) -> Result<Vec<DevicePart>, CommError> {
        let wide = |count: usize| count as u64;
        let send_counts = parts.iter().map(|part| wide(part.len)).collect();
        let body = Body::Parts { parts, send_counts, recv_counts: receive.iter().copied().map(wide).collect() };
        let all = self.endpoint.exchange(self.signature, body)?;
        let (sent, expected): (Vec<&[u64]>, Vec<&[u64]>) = all.iter().map(|payload| counts_of(payload)).unzip();
        let member = &self.endpoint.member;
        let agreed = member.rank_context().agree_counts(&self.signature, &sent, &expected);
        agreed.map_err(|error| member.fail_with(error))?;
        Ok(all.iter().map(|payload| parts_of(payload)[member.rank].clone()).collect())
    }

    fn all_gather(&mut self, part: DevicePart) -> Result<Vec<DevicePart>, CommError> {
        let all = self.endpoint.exchange(self.signature, Body::Part(part))?;
        Ok(all.iter().map(|payload| part_of(payload).clone()).collect())
    }

    fn broadcast(&mut self, part: DevicePart, root: usize) -> Result<DevicePart, CommError> {
        let body = if self.rank() == root { Body::Part(part) } else { Body::Empty };
        let all = self.endpoint.exchange(self.signature, body)?;
        Ok(part_of(&all[root]).clone())
    }
}

fn counts_of(payload: &Payload) -> (&[u64], &[u64]) {
    match &payload.body {
        Body::Parts { send_counts, recv_counts, .. } => (send_counts, recv_counts),
        other => unreachable!("ranks agreed on an exchange of parts, found {other:?}"),
    }
}

fn parts_of(payload: &Payload) -> &[DevicePart] {
    match &payload.body {
        Body::Parts { parts, .. } => parts,
        other => unreachable!("ranks agreed on an exchange of parts, found {other:?}"),
    }
}

fn part_of(payload: &Payload) -> &DevicePart {
    match &payload.body {
        Body::Part(part) => part,
        other => unreachable!("ranks agreed on a gather of parts, found {other:?}"),
    }
}

impl Endpoint {
    fn run_device(&mut self, call: &DeviceCall, work: DeviceWork) -> Result<DevicePart, CommError> {
        self.member.record_call(&call.signature);
        let member = Arc::clone(&self.member);
        let mut line = Line { endpoint: self, signature: call.signature };
        // Unwind safety: captures of the work are dropped, and the lane is not used any more,
        // because the world has failed.
        match catch_unwind(AssertUnwindSafe(|| work(&mut line))) {
            Ok(result) => result,
            Err(panic) => Err(member.fail(&call.signature, panicked(&*panic))),
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> CommErrorKind {
    CommErrorKind::Panicked { message: panic_message(panic) }
}

impl DeviceExchange for ThreadCommunicator {
    fn accepts(&self, _memory: &dyn DeviceMemory) -> bool {
        true
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn run(&self, call: &DeviceCall, work: DeviceWork) -> Result<DevicePart, CommError> {
        lock(&self.blocking).run_device(call, work)
    }

    fn start(&self, call: &DeviceCall, work: DeviceWork) -> Result<Request<DevicePart>, CommError> {
        let call = *call;
        self.background.start(&*self.member, &call.signature, move |lane| lane.run_device(&call, work))
    }

    fn start_send(&self, part: DevicePart, to: usize, tag: u32) -> Result<Request<()>, CommError> {
        let signature = self.member.rank_context().message(OpKind::Send, (part.dtype, part.len), to, tag)?.on_device();
        self.post(signature, Message::Device(part), to, tag)?;
        Ok(Request::ready(()))
    }

    fn start_recv(&self, like: DevicePart, from: usize, tag: u32) -> Result<Request<DevicePart>, CommError> {
        let signature =
            self.member.rank_context().message(OpKind::Recv, (like.dtype, like.len), from, tag)?.on_device();
        self.member.record_call(&signature);
        Ok(Request::new(ReceivedPart(Receive::start(Arc::clone(&self.member), signature, from, tag))))
    }
}

/// A receive of device memory.
struct ReceivedPart(Receive);

impl Pending<DevicePart> for ReceivedPart {
    fn test(&mut self) -> Result<bool, CommError> {
        self.0.test()
    }

    fn wait(self: Box<Self>) -> Result<DevicePart, CommError> {
        match self.0.finish()? {
            Message::Device(part) => Ok(part),
            Message::Host(data) => unreachable!("a receive of device memory got {} elements of the host", data.len()),
        }
    }
}
