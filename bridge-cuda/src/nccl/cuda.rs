//! The carrier of a CUDA device: host bytes are staged in device memory that is reused between
//! calls, and NCCL moves them from there.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError};

use super::carrier::{Carrier, CarrierError, Fabric};
use super::error::NcclInitError;
use super::library;
#[cfg(feature = "cuda")]
use super::links::Links;
use super::member::Member;
use super::raw::{GroupedCalls, ID_BYTES, RawComm, Span, unique_id};
#[cfg(feature = "cuda")]
use super::staged::Staged;
use super::staging::{Parts, capacity};
#[cfg(feature = "cuda")]
use bridge_dist::comm::device::DeviceExchange;
use bridge_dist::comm::transport::{Pace, lock};
use bridge_dist::comm::{DType, Group};

/// Bounds the staging memory of a lane to twice this, and makes transfers long enough for the
/// link's full rate.
const PIECE_BYTES: usize = 64 << 20;

/// Interval at which a waiting rank polls NCCL for failures.
pub(super) const HEALTH_CHECK: Duration = Duration::from_millis(10);

/// A CUDA device, for which NCCL communicators are created.
#[derive(Clone, Debug)]
pub(super) struct CudaFabric {
    pub context: Arc<CudaContext>,
}

impl CudaFabric {
    pub fn open(ordinal: usize) -> Result<Self, NcclInitError> {
        let count = library::device_count()?;
        if ordinal >= count {
            return Err(NcclInitError::NoDevice { ordinal, count });
        }
        library::check_nccl()?;
        let context = CudaContext::new(ordinal).map_err(|error| library::driver_error(&error))?;
        Ok(Self { context })
    }

    /// Joins the communicator `id` as one of `size` ranks. All its ranks call this together.
    pub fn wire(&self, id: [u8; ID_BYTES], (rank, size): (i32, i32), timeout: Duration) -> Result<Wire, CarrierError> {
        self.context.bind_to_thread().map_err(driver)?;
        let raw = RawComm::join(id, rank, size, timeout)?;
        let stream = self.context.new_stream().map_err(driver)?;
        let raw = Arc::new(Mutex::new(raw));
        Ok(Wire {
            #[cfg(feature = "cuda")]
            watch: None,
            raw,
            stream,
            timeout,
        })
    }
}

impl Fabric for CudaFabric {
    type Carrier = NcclCarrier;
    #[cfg(feature = "cuda")]
    type Messages = Links<Self>;
    #[cfg(not(feature = "cuda"))]
    type Messages = ();

    fn piece_bytes(&self) -> usize {
        PIECE_BYTES
    }

    #[cfg(feature = "cuda")]
    fn exchange(staged: &Staged<Self>) -> Option<&dyn DeviceExchange> {
        Some(staged)
    }

    #[cfg(feature = "cuda")]
    fn messages(&self, member: &Member, control: &Group) -> Links<Self> {
        Links::new(member, control, self.clone())
    }

    #[cfg(not(feature = "cuda"))]
    fn messages(&self, _member: &Member, _control: &Group) {}

    fn connect(&self, control: &Group) -> Result<NcclCarrier, CarrierError> {
        self.context.bind_to_thread().map_err(driver)?;
        let id = share_id(control)?;
        let place = (control.rank() as i32, control.size() as i32);
        let wire = self.wire(id, place, control.timeout())?;
        Ok(NcclCarrier { wire, rank: control.rank(), outgoing: None, incoming: None })
    }
}

/// Broadcasts rank 0's id. The first byte says whether there is one.
fn share_id(control: &Group) -> Result<[u8; ID_BYTES], CarrierError> {
    let mut message = [0; 1 + ID_BYTES];
    let mut own_error = None;
    if control.rank() == 0 {
        match unique_id() {
            Ok(id) => {
                message[0] = 1;
                message[1..].copy_from_slice(&id);
            }
            Err(error) => own_error = Some(error),
        }
    }
    control.broadcast((&mut message).into(), 0).map_err(|error| CarrierError::Failed(*error.kind))?;
    if let Some(error) = own_error {
        return Err(error);
    }
    let [1, id @ ..] = message else {
        return Err(CarrierError::library("NCCL", "rank 0 could not create the id of the new communicator"));
    };
    Ok(id)
}

pub(super) fn driver(error: DriverError) -> CarrierError {
    CarrierError::library("the CUDA driver", error.to_string())
}

/// A communicator and the stream that its calls are on.
pub(super) struct Wire {
    /// Watchdog of operations that no caller waits for, created with the first of them. Dropped
    /// before the communicator.
    #[cfg(feature = "cuda")]
    pub watch: Option<super::watch::Watch>,
    /// Shared with it.
    pub raw: Arc<Mutex<RawComm>>,
    pub stream: Arc<CudaStream>,
    timeout: Duration,
}

impl Wire {
    /// Runs calls as one operation and waits until the stream has completed it.
    pub fn run(
        &mut self,
        calls: impl FnOnce(&mut GroupedCalls, &CudaStream) -> Result<(), CarrierError>,
    ) -> Result<(), CarrierError> {
        self.enqueue(calls)?;
        self.finish()
    }

    /// Puts calls on the stream as one operation.
    pub fn enqueue(
        &mut self,
        calls: impl FnOnce(&mut GroupedCalls, &CudaStream) -> Result<(), CarrierError>,
    ) -> Result<(), CarrierError> {
        self.stream.context().bind_to_thread().map_err(driver)?;
        let stream = Arc::clone(&self.stream);
        lock(&self.raw).grouped(|group| calls(group, &stream))
    }

    /// Waits until everything on the stream is done.
    pub fn finish(&mut self) -> Result<(), CarrierError> {
        let event = self.stream.record_event(None).map_err(driver)?;
        let (start, mut pace, mut checked) = (Instant::now(), Pace::default(), Duration::ZERO);
        while !event.try_is_complete().map_err(driver)? {
            let waited = start.elapsed();
            if waited >= self.timeout {
                return Err(CarrierError::Stalled(self.timeout));
            }
            if waited - checked >= HEALTH_CHECK {
                checked = waited;
                lock(&self.raw).check_health()?;
            }
            pace.pause();
        }
        Ok(())
    }

    pub fn abort(&mut self) {
        lock(&self.raw).abort();
    }
}

/// One rank's NCCL communicator with its stream and staging memory.
pub(super) struct NcclCarrier {
    pub wire: Wire,
    rank: usize,
    outgoing: Option<CudaSlice<u8>>,
    incoming: Option<CudaSlice<u8>>,
}

impl NcclCarrier {
    /// Makes room on the device.
    fn reserve(&mut self, outgoing: usize, incoming: usize) -> Result<(), CarrierError> {
        self.wire.stream.context().bind_to_thread().map_err(driver)?;
        for (place, needed) in [(&mut self.outgoing, outgoing), (&mut self.incoming, incoming)] {
            let present = place.as_ref().map_or(0, CudaSlice::len);
            if needed > present {
                // The old memory goes first, so that both need not fit.
                *place = None;
                *place = Some(self.wire.stream.alloc_zeros(capacity(needed)).map_err(driver)?);
            }
        }
        Ok(())
    }

    /// Copies host memory to `start` of the outgoing memory.
    fn stage(&mut self, bytes: &[u8], start: usize) -> Result<(), CarrierError> {
        if let Some(outgoing) = self.outgoing.as_mut().filter(|_| !bytes.is_empty()) {
            let mut place = outgoing.slice_mut(start..start + bytes.len());
            self.wire.stream.memcpy_htod(bytes, &mut place).map_err(driver)?;
        }
        Ok(())
    }

    /// Copies from `start` of the incoming memory; complete after the next [`Wire::finish`].
    fn fetch(&self, start: usize, bytes: &mut [u8]) -> Result<(), CarrierError> {
        if let Some(incoming) = self.incoming.as_ref().filter(|_| !bytes.is_empty()) {
            let place = incoming.slice(start..start + bytes.len());
            self.wire.stream.memcpy_dtoh(&place, bytes).map_err(driver)?;
        }
        Ok(())
    }

    /// The device addresses of both staging memories.
    fn addresses(&mut self) -> (u64, u64) {
        let stream = &self.wire.stream;
        let outgoing = self.outgoing.as_ref().map_or(0, |memory| memory.device_ptr(stream).0);
        let incoming = self.incoming.as_mut().map_or(0, |memory| memory.device_ptr_mut(stream).0);
        (outgoing, incoming)
    }
}

fn bytes_at(pointer: u64, len: usize) -> Span {
    Span { pointer, dtype: DType::U8, len }
}

impl Carrier for NcclCarrier {
    fn all_gather(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), CarrierError> {
        if input.is_empty() {
            return Ok(());
        }
        self.reserve(input.len(), output.len())?;
        self.stage(input, 0)?;
        let (outgoing, incoming) = self.addresses();
        // SAFETY: the staging memory is this carrier's, long enough, and used on this stream alone.
        self.wire.run(|group, stream| unsafe {
            group.all_gather(bytes_at(outgoing, input.len()), bytes_at(incoming, output.len()), stream)
        })?;
        self.fetch(0, output)?;
        self.wire.finish()
    }

    fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), CarrierError> {
        if data.is_empty() {
            return Ok(());
        }
        // In place, in the outgoing memory.
        self.reserve(data.len(), 0)?;
        if self.rank == root {
            self.stage(data, 0)?;
        }
        let span = bytes_at(self.addresses().0, data.len());
        // SAFETY: as above.
        self.wire.run(|group, stream| unsafe { group.broadcast(span, root, stream) })?;
        if self.rank != root
            && let Some(memory) = &self.outgoing
        {
            self.wire.stream.memcpy_dtoh(&memory.slice(0..data.len()), data).map_err(driver)?;
            self.wire.finish()?;
        }
        Ok(())
    }

    fn exchange(&mut self, sends: &[&[u8]], receives: &mut [&mut [u8]]) -> Result<(), CarrierError> {
        // Data that a rank sends to itself does not go through the device.
        receives[self.rank].copy_from_slice(sends[self.rank]);
        let others = |index: usize, len: usize| if index == self.rank { 0 } else { len };
        let outgoing = Parts::new(sends.iter().enumerate().map(|(to, part)| others(to, part.len())));
        let incoming = Parts::new(receives.iter().enumerate().map(|(from, part)| others(from, part.len())));
        if outgoing.is_empty() && incoming.is_empty() {
            return Ok(());
        }
        self.reserve(outgoing.total(), incoming.total())?;
        for (to, range) in outgoing.parts() {
            self.stage(sends[to], range.start)?;
        }
        let (out_start, in_start) = self.addresses();
        self.wire.run(|group, stream| {
            for (to, range) in outgoing.parts() {
                let span = bytes_at(out_start + range.start as u64, range.len());
                // SAFETY: as above.
                unsafe { group.send(span, to, stream) }?;
            }
            for (from, range) in incoming.parts() {
                let span = bytes_at(in_start + range.start as u64, range.len());
                // SAFETY: as above.
                unsafe { group.recv(span, from, stream) }?;
            }
            Ok(())
        })?;
        for (from, range) in incoming.parts() {
            self.fetch(range.start, receives[from])?;
        }
        self.wire.finish()
    }

    fn abort(&mut self) {
        self.wire.abort();
    }
}
