//! Collectives of tensors that stay on their CUDA device: NCCL moves parts between buffers of the
//! tensor library. Sums are computed elsewhere.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bridge_kernels::foreign::{self, Event, ForeignError, Pinned};
use burn::tensor::Tensor;
use cudarc::driver::CudaStream;

use super::carrier::CarrierError;
use super::cuda::{CudaFabric, NcclCarrier, Wire};
use super::lane::Lane;
use super::member::Member;
use super::raw::{GroupedCalls, Span};
use super::staged::{LateLane, Staged};
use super::watch::{InFlight, Watch};
use bridge_dist::comm::device::{DeviceCall, DeviceExchange, DeviceLine, DeviceMemory, DevicePart, DeviceWork};
use bridge_dist::comm::thread::panic_message;
use bridge_dist::comm::transport::{GroupMember, OpKind, Signature, lock};
use bridge_dist::comm::{CommError, CommErrorKind, DType, Request};
use bridge_regions::exchange::TensorMemory;

impl DeviceExchange for Staged<CudaFabric> {
    fn accepts(&self, memory: &dyn DeviceMemory) -> bool {
        let memory: &dyn Any = memory;
        let tensor = memory.downcast_ref::<TensorMemory>().map(TensorMemory::tensor);
        tensor.and_then(foreign::cuda_device) == Some(self.fabric.context.ordinal())
    }

    fn shares_memory(&self) -> bool {
        false
    }

    fn run(&self, call: &DeviceCall, work: DeviceWork) -> Result<DevicePart, CommError> {
        lock(&self.blocking).run_device(&call.signature, work)
    }

    fn start(&self, call: &DeviceCall, work: DeviceWork) -> Result<Request<DevicePart>, CommError> {
        let signature = call.signature;
        self.background.start(&self.member, &signature, move |late: &mut LateLane<CudaFabric>| {
            late.lane(&signature)?.run_device(&signature, work)
        })
    }

    fn start_send(&self, part: DevicePart, to: usize, tag: u32) -> Result<Request<()>, CommError> {
        self.messages.start_send(&part, to, tag)
    }

    fn start_recv(&self, like: DevicePart, from: usize, tag: u32) -> Result<Request<DevicePart>, CommError> {
        self.messages.start_recv(like, from, tag)
    }
}

impl Lane<NcclCarrier> {
    fn run_device(&mut self, signature: &Signature, work: DeviceWork) -> Result<DevicePart, CommError> {
        self.agreement.agree(signature)?;
        let mut line = Line { lane: self, signature: *signature };
        // Unwind safety: captures of the work are dropped, and the lane is not used any more,
        // because the world has failed.
        catch_unwind(AssertUnwindSafe(|| work(&mut line))).unwrap_or_else(|panic| {
            let kind = CommErrorKind::Panicked { message: panic_message(&*panic) };
            Err(self.failed(signature, CarrierError::Failed(kind)))
        })
    }
}

/// A lane during one operation.
struct Line<'a> {
    lane: &'a mut Lane<NcclCarrier>,
    signature: Signature,
}

/// Transfers of one step, in memory of the tensor library.
#[derive(Default)]
struct Moves {
    /// With the other rank, if it is for one.
    reads: Vec<(Tensor<1>, usize)>,
    writes: Vec<(Tensor<1>, usize)>,
}

/// A part as NCCL reads it.
pub(super) fn to_read(part: &DevicePart) -> Result<Tensor<1>, CarrierError> {
    let refused = || CarrierError::library("the exchange", "a part of 2^32 elements or more; make buckets smaller");
    foreign::side_by_side(tensor_of(part)).ok_or_else(refused)
}

fn tensor_of(part: &DevicePart) -> &Tensor<1> {
    TensorMemory::behind(part).tensor()
}

pub(super) fn foreign_error(error: &ForeignError) -> CarrierError {
    CarrierError::library("CUDA", error.to_string())
}

/// The bytes of a tensor whose elements are side by side.
pub(super) fn span((tensor, pointer): (&Tensor<1>, u64)) -> Span {
    Span { pointer, dtype: DType::U8, len: tensor.dims()[0] * tensor.dtype().size() }
}

impl Wire {
    /// Puts calls on the stream after the event `ready`. The watch thread monitors them and holds
    /// `memory` until they are complete. Returns the event of their completion.
    pub fn launch(
        &mut self,
        member: &Member,
        signature: Signature,
        timeout: Duration,
        ready: Event,
        memory: Pinned,
        calls: impl FnOnce(&mut GroupedCalls, &CudaStream) -> Result<(), CarrierError>,
    ) -> Result<Arc<Event>, CarrierError> {
        let watch = match self.watch.take() {
            Some(watch) => watch,
            None => Watch::start(member.clone(), Arc::clone(&self.raw))?,
        };
        let seen = self.begin(&ready, calls).and_then(|done| {
            let done = Arc::new(done);
            watch.see(InFlight { signature, ready, done: Arc::clone(&done), _memory: memory, timeout })?;
            Ok(done)
        });
        self.watch = Some(watch);
        // NCCL may have begun, and its end would not be monitored: it must not write into memory
        // that is reused.
        seen.inspect_err(|_| self.abort())
    }

    /// Puts calls on the stream after the event `ready`. Returns the event of their completion.
    fn begin(
        &mut self,
        ready: &Event,
        calls: impl FnOnce(&mut GroupedCalls, &CudaStream) -> Result<(), CarrierError>,
    ) -> Result<Event, CarrierError> {
        let stream = self.stream.cu_stream();
        // SAFETY: the stream is the communicator's, of the device's primary context.
        unsafe { ready.hold_back(stream) }.map_err(|error| foreign_error(&error))?;
        self.enqueue(calls)?;
        // SAFETY: as above.
        unsafe { Event::on(self.stream.context(), stream) }.map_err(|error| foreign_error(&error))
    }
}

impl Line<'_> {
    /// Puts calls on the communicator's stream, after the earlier work of this thread on the device
    /// and before its later work.
    fn moved(
        &mut self,
        moves: &Moves,
        calls: impl FnOnce(&mut GroupedCalls, &CudaStream, &[Span], &[Span]) -> Result<(), CarrierError>,
    ) -> Result<(), CarrierError> {
        let memory: Vec<Tensor<1>> = moves.reads.iter().chain(&moves.writes).map(|(x, _)| x.clone()).collect();
        if memory.is_empty() {
            return Ok(());
        }
        let opened = foreign::open(&memory).map_err(|error| foreign_error(&error))?;
        let spans: Vec<Span> = memory.iter().zip(opened.addresses).map(span).collect();
        let (reads, writes) = spans.split_at(moves.reads.len());
        let (member, timeout) = (self.lane.agreement.member.clone(), self.lane.agreement.control.timeout());
        let wire = &mut self.lane.carrier.wire;
        let calls = |group: &mut GroupedCalls, stream: &CudaStream| calls(group, stream, reads, writes);
        let done = wire.launch(&member, self.signature, timeout, opened.ready, opened.memory, calls)?;
        foreign::follow(&memory[0], done);
        Ok(())
    }

    fn failed(&mut self, error: CarrierError) -> CommError {
        self.lane.failed(&self.signature, error)
    }

    /// Ranks tell each other how much they send and expect.
    fn agree_counts(&self, parts: &[DevicePart], receive: &[usize]) -> Result<(), CommError> {
        let agreement = &self.lane.agreement;
        let counts = parts.iter().map(|part| part.len).chain(receive.iter().copied());
        let all = agreement.share(&self.signature, &counts.map(|count| count as i64).collect::<Vec<_>>())?;
        let all: Vec<u64> = all.into_iter().map(i64::cast_unsigned).collect();
        let (sent, expected): (Vec<&[u64]>, Vec<&[u64]>) =
            all.chunks_exact(2 * parts.len()).map(|row| row.split_at(parts.len())).unzip();
        let member = &agreement.member;
        let agreed = member.rank_context().agree_counts(&self.signature, &sent, &expected);
        agreed.map_err(|error| member.fail(&self.signature, *error.kind))
    }

    fn exchange_parts(&mut self, parts: &[DevicePart], received: &[DevicePart]) -> Result<(), CarrierError> {
        let own = self.rank();
        let mut moves = Moves::default();
        for (peer, (part, place)) in parts.iter().zip(received).enumerate().filter(|(peer, _)| *peer != own) {
            if part.len > 0 {
                moves.reads.push((to_read(part)?, peer));
            }
            if place.len > 0 {
                moves.writes.push((tensor_of(place).clone(), peer));
            }
        }
        self.moved(&moves, |group, stream, reads, writes| {
            for (span, (_, peer)) in reads.iter().zip(&moves.reads) {
                // SAFETY: the memory is open to this stream until its event has passed, and the
                // watch holds it until then.
                unsafe { group.send(*span, *peer, stream) }?;
            }
            for (span, (_, peer)) in writes.iter().zip(&moves.writes) {
                // SAFETY: as above; the memory was allocated for this call, so no other code uses
                // it.
                unsafe { group.recv(*span, *peer, stream) }?;
            }
            Ok(())
        })
    }

    fn gather_parts(&mut self, part: &DevicePart, whole: &Tensor<1>) -> Result<(), CarrierError> {
        let own = self.rank();
        let moves = Moves { reads: vec![(to_read(part)?, own)], writes: vec![(whole.clone(), own)] };
        // SAFETY: as for parts; the whole has room for the parts of all ranks.
        self.moved(&moves, |group, stream, reads, writes| unsafe { group.all_gather(reads[0], writes[0], stream) })
    }

    fn broadcast_part(&mut self, data: &Tensor<1>, root: usize) -> Result<(), CarrierError> {
        let moves = Moves { reads: Vec::new(), writes: vec![(data.clone(), root)] };
        // SAFETY: as for parts; on the root it is only read.
        self.moved(&moves, |group, stream, _, writes| unsafe { group.broadcast(writes[0], root, stream) })
    }
}

impl DeviceLine for Line<'_> {
    fn rank(&self) -> usize {
        self.lane.agreement.member.rank
    }

    fn size(&self) -> usize {
        self.lane.agreement.member.size()
    }

    fn shares_memory(&self) -> bool {
        false
    }

    fn exchange(&mut self, parts: Vec<DevicePart>, receive: &[usize]) -> Result<Vec<DevicePart>, CommError> {
        // Other operations say lengths in their signatures.
        if self.signature.kind == OpKind::AllToAllUneven {
            self.agree_counts(&parts, receive)?;
        }
        let own = self.rank();
        let place = |(peer, (part, &len)): (usize, (&DevicePart, &usize))| match peer == own {
            true => part.clone(),
            false => DevicePart { len, memory: part.memory.empty(len), ..*part },
        };
        let received: Vec<DevicePart> = parts.iter().zip(receive).enumerate().map(place).collect();
        self.exchange_parts(&parts, &received).map_err(|error| self.failed(error))?;
        Ok(received)
    }

    fn all_gather(&mut self, part: DevicePart) -> Result<Vec<DevicePart>, CommError> {
        let size = self.size();
        if part.len == 0 {
            return Ok(vec![part; size]);
        }
        let all = DevicePart { len: part.len * size, memory: part.memory.empty(part.len * size), ..part };
        let whole = tensor_of(&all);
        self.gather_parts(&part, whole).map_err(|error| self.failed(error))?;
        let len = whole.dims()[0] / size;
        let parts = (0..size).map(|rank| whole.clone().slice(rank * len..(rank + 1) * len));
        Ok(parts.map(|x| TensorMemory::part(x, None)).collect())
    }

    fn broadcast(&mut self, part: DevicePart, root: usize) -> Result<DevicePart, CommError> {
        if part.len == 0 {
            return Ok(part);
        }
        let data = match self.rank() == root {
            true => to_read(&part).map_err(|error| self.failed(error))?,
            false => tensor_of(&DevicePart { memory: part.memory.empty(part.len), ..part }).clone(),
        };
        self.broadcast_part(&data, root).map_err(|error| self.failed(error))?;
        Ok(TensorMemory::part(data, None))
    }
}
