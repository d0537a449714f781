//! Activations and gradients on their way between stages: tensors to host buffers and back, sends under way, receives posted ahead.
//! Which transfer comes when is the schedule's affair.

use std::collections::VecDeque;

use bridge_dist::comm::{CommError, DType, Element, Group, HostBuffer, Request};
use bridge_dist::schedule::{Action, Direction, Message};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use half::bf16;

use super::MicroBatches;

/// Receives posted before their data is needed. Two let the next transfer run while this rank waits for, or uses, the one before.
const RECEIVES_AHEAD: usize = 2;

/// What tensors are on the wire and on this rank.
#[derive(Clone, Debug)]
pub(super) struct WireFormat {
    /// Without autodiff.
    pub device: Device,
    pub wire: FloatDType,
    pub local: FloatDType,
}

impl WireFormat {
    fn dtype(&self) -> DType {
        match self.wire {
            FloatDType::F64 => DType::F64,
            FloatDType::BF16 => DType::Bf16,
            // Collectives have no such element, and messages need none.
            FloatDType::F16 => DType::U8,
            _ => DType::F32,
        }
    }

    fn len(&self, shape: [usize; 3]) -> usize {
        let elements: usize = shape.iter().product();
        if self.wire == FloatDType::F16 { 2 * elements } else { elements }
    }

    fn encode(&self, tensor: Tensor<3>) -> HostBuffer {
        let data = tensor.cast(self.wire).into_data();
        match self.dtype() {
            DType::F64 => elements::<f64>(data),
            DType::Bf16 => elements::<bf16>(data),
            DType::U8 => data.as_bytes().to_vec().into(),
            _ => elements::<f32>(data),
        }
    }

    fn decode(&self, buffer: HostBuffer, shape: [usize; 3]) -> Tensor<3> {
        let data = match buffer {
            HostBuffer::F32(values) => TensorData::new(values, shape),
            HostBuffer::Bf16(values) => TensorData::new(values, shape),
            HostBuffer::F64(values) => TensorData::new(values, shape),
            HostBuffer::U8(bytes) => TensorData::from_bytes_vec(bytes, shape, burn::tensor::DType::F16),
            other => panic!("no activation is sent as {}", other.dtype()),
        };
        Tensor::<3>::from_data(data, (&self.device, burn::tensor::DType::from(self.wire))).cast(self.local)
    }
}

fn elements<T: Element + burn::tensor::Element>(data: TensorData) -> HostBuffer {
    data.try_into_vec::<T>().expect("the tensor was cast to this dtype").into()
}

/// The transfers of one rank in one pass.
pub(super) struct Wire<'a> {
    group: &'a Group,
    format: &'a WireFormat,
    /// Receives of the pass that are not posted yet, in the order in which they are waited for.
    later: VecDeque<(Direction, Message)>,
    /// Receives that are posted, in that order.
    posted: VecDeque<(Direction, Message, Request)>,
    /// Sends that may not be complete.
    sending: VecDeque<Request>,
}

impl<'a> Wire<'a> {
    pub fn new(group: &'a Group, format: &'a WireFormat, actions: &[Action]) -> Self {
        let later = actions.iter().filter(|action| !action.is_send()).filter_map(Action::message).collect();
        Self { group, format, later, posted: VecDeque::new(), sending: VecDeque::new() }
    }

    /// Keeps [`RECEIVES_AHEAD`] receives posted.
    pub fn post(&mut self, micro_batches: &dyn MicroBatches) -> Result<(), CommError> {
        while self.posted.len() < RECEIVES_AHEAD
            && let Some((direction, message)) = self.later.pop_front()
        {
            let len = self.format.len(micro_batches.boundary(message.microbatch));
            let tag = message.tag(direction);
            let request = self.group.start_recv(self.format.dtype(), len, message.peer, tag)?;
            self.posted.push_back((direction, message, request));
        }
        Ok(())
    }

    /// Waits for the next receive of the pass.
    ///
    /// # Panics
    /// If `expected` is not the receive that comes next in the actions.
    pub fn receive(
        &mut self,
        expected: (Direction, Message),
        micro_batches: &dyn MicroBatches,
    ) -> Result<Tensor<3>, CommError> {
        let (direction, message, request) =
            self.posted.pop_front().expect("receives are posted before they are waited for");
        assert_eq!((direction, message), expected, "receives are waited for in the order of the actions");
        let buffer = request.wait()?;
        self.post(micro_batches)?;
        Ok(self.format.decode(buffer, micro_batches.boundary(message.microbatch)))
    }

    /// Starts a send.
    pub fn send(&mut self, (direction, message): (Direction, Message), tensor: Tensor<3>) -> Result<(), CommError> {
        let request = self.group.start_send(self.format.encode(tensor), message.peer, message.tag(direction))?;
        self.sending.push_back(request);
        // Buffers of sends that have ended are freed.
        while let Some(oldest) = self.sending.front_mut()
            && oldest.test()?
        {
            if let Some(oldest) = self.sending.pop_front() {
                oldest.wait()?;
            }
        }
        Ok(())
    }

    /// Waits until all sends are complete.
    pub fn finish(&mut self) -> Result<(), CommError> {
        self.sending.drain(..).try_for_each(|request| request.wait().map(drop))
    }
}
