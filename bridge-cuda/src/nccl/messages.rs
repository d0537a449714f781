//! Messages of tensors that stay on their CUDA device: the NCCL calls of a link's ends.

use std::sync::Arc;

use bridge_kernels::foreign::{self, Event, Pinned};
use burn::tensor::Tensor;
use cudarc::driver::CudaStream;

use super::carrier::CarrierError;
use super::cuda::{CudaFabric, Wire, driver};
use super::links::{CONNECT, Channel, End, Way};
use super::raw::{GroupedCalls, ID_BYTES, Span, unique_id};
use super::tensors::{foreign_error, span, to_read};
use bridge_dist::comm::CommError;
use bridge_dist::comm::device::DevicePart;
use bridge_dist::comm::transport::Signature;
use bridge_regions::exchange::TensorMemory;

/// Ranks in a link's communicator.
const SENDER: usize = 0;
const RECEIVER: usize = 1;

/// A tensor that NCCL may read.
pub(super) struct OpenedTensor {
    memory: Pinned,
    span: Span,
    ready: Event,
}

impl OpenedTensor {
    fn new(tensor: Tensor<1>) -> Result<Self, CarrierError> {
        let opened = foreign::open(std::slice::from_ref(&tensor)).map_err(|error| foreign_error(&error))?;
        let span = span((&tensor, opened.addresses[0]));
        Ok(Self { memory: opened.memory, span, ready: opened.ready })
    }
}

/// One end of a link's communicator.
pub(super) struct MessageWire {
    wire: Wire,
    end: End,
}

impl MessageWire {
    /// Puts a call with the tensor on the stream. Returns the event of its completion.
    fn launch(
        &mut self,
        signature: &Signature,
        OpenedTensor { memory, span, ready }: OpenedTensor,
        call: impl FnOnce(&mut GroupedCalls, Span, &CudaStream) -> Result<(), CarrierError>,
    ) -> Result<Arc<Event>, CarrierError> {
        let timeout = self.end.control.timeout();
        let call = |group: &mut GroupedCalls, stream: &CudaStream| call(group, span, stream);
        self.wire.launch(&self.end.member, *signature, timeout, ready, memory, call)
    }
}

impl Channel for MessageWire {
    type Opened = OpenedTensor;

    fn send(&mut self, signature: &Signature, data: OpenedTensor) -> Result<(), CarrierError> {
        // SAFETY: the memory is open to this stream until its event has passed, and the watch holds
        // it until then.
        let sent = self.launch(signature, data, |group, span, stream| unsafe { group.send(span, RECEIVER, stream) });
        sent.map(drop)
    }

    fn receive(&mut self, sent: &Signature, like: &DevicePart) -> Result<DevicePart, CarrierError> {
        let what = sent.dtype.zip(sent.len.map(|len| len as usize));
        let garbled = || CarrierError::library("the bootstrap group", "a garbled header");
        let (dtype, len) = what.ok_or_else(garbled)?;
        let place = TensorMemory::place_of(dtype, len, like);
        let opened = OpenedTensor::new(place.clone())?;
        // SAFETY: as above; the memory was allocated for this message, so no other code uses it.
        let done = self.launch(sent, opened, |group, span, stream| unsafe { group.recv(span, SENDER, stream) })?;
        foreign::follow(&place, done);
        Ok(TensorMemory::marked(place))
    }

    fn abort(&mut self) {
        self.wire.abort();
    }
}

impl Way for CudaFabric {
    type Channel = MessageWire;

    fn open(&self, part: &DevicePart) -> Result<OpenedTensor, CarrierError> {
        OpenedTensor::new(to_read(part)?)
    }

    fn connect(&self, end: &End) -> Result<MessageWire, CarrierError> {
        self.context.bind_to_thread().map_err(driver)?;
        let id = share_id(end)?;
        let place = if end.sends { SENDER } else { RECEIVER };
        let wire = self.wire(id, (place as i32, 2), end.control.timeout())?;
        Ok(MessageWire { wire, end: end.clone() })
    }
}

/// The sender's id for both ends. The first byte says whether there is one.
fn share_id(end: &End) -> Result<[u8; ID_BYTES], CarrierError> {
    let told = |error: CommError| CarrierError::Failed(*error.kind);
    let mut message = [0; 1 + ID_BYTES];
    if end.sends {
        let id = unique_id();
        if let Ok(id) = &id {
            message[0] = 1;
            message[1..].copy_from_slice(id);
        }
        end.control.send((&message).into(), end.peer, CONNECT).map_err(told)?;
        return id;
    }
    end.control.recv((&mut message).into(), end.peer, CONNECT).map_err(told)?;
    match message {
        [1, id @ ..] => Ok(id),
        _ => Err(CarrierError::library("NCCL", "the sender could not create the id of the new communicator")),
    }
}
