//! Transfers of activations and gradients between stages: tensors to host buffers and back, or on
//! their device, sends in flight, receives posted ahead. The schedule decides on their order.

use std::collections::VecDeque;

use bridge_dist::comm::{CommError, DType, Element, Group, HostBuffer, Request};
use bridge_dist::schedule::{Action, Direction, Message};
use bridge_regions::exchange::{PendingTransfer, TensorExchange, TransferBuffer};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use half::bf16;

use crate::model::{Boundary, BoundaryTensor};

/// Receives posted before their data is needed. Two let the next transfer run while this rank waits
/// for, or uses, the one before.
const RECEIVES_AHEAD: usize = 2;

/// Format of tensors on the wire and on this rank.
#[derive(Clone, Debug)]
pub(super) struct TransferFormat {
    /// Without autodiff.
    pub device: Device,
    /// dtype of all tensors on the wire; `None` for that inside the model.
    pub dtype: Option<FloatDType>,
}

impl TransferFormat {
    fn sent_dtype(&self, local: FloatDType) -> FloatDType {
        self.dtype.unwrap_or(local)
    }

    /// Number and type of the elements of a message.
    fn message(&self, tensor: &BoundaryTensor) -> (DType, usize) {
        let elements: usize = tensor.shape.iter().product();
        match self.sent_dtype(tensor.dtype) {
            dtype @ FloatDType::F16 => (element_type(dtype), 2 * elements),
            dtype => (element_type(dtype), elements),
        }
    }

    fn encode(&self, tensor: Tensor<3>) -> HostBuffer {
        let wire = self.sent_dtype(tensor.dtype().into());
        let data = tensor.cast(wire).into_data();
        match element_type(wire) {
            DType::F64 => elements::<f64>(data),
            DType::Bf16 => elements::<bf16>(data),
            DType::U8 => data.as_bytes().to_vec().into(),
            _ => elements::<f32>(data),
        }
    }

    fn decode(&self, buffer: HostBuffer, tensor: &BoundaryTensor) -> Tensor<3> {
        let shape = tensor.shape;
        let data = match buffer {
            HostBuffer::F32(values) => TensorData::new(values, shape),
            HostBuffer::Bf16(values) => TensorData::new(values, shape),
            HostBuffer::F64(values) => TensorData::new(values, shape),
            HostBuffer::U8(bytes) => TensorData::from_bytes_vec(bytes, shape, burn::tensor::DType::F16),
            other => panic!("no activation is sent as {}", other.dtype()),
        };
        let wire = burn::tensor::DType::from(self.sent_dtype(tensor.dtype));
        Tensor::<3>::from_data(data, (&self.device, wire)).cast(tensor.dtype)
    }
}

/// The elements of messages of tensors of this dtype; float16, which collectives have not, is sent
/// as bytes.
fn element_type(dtype: FloatDType) -> DType {
    match dtype {
        FloatDType::F64 => DType::F64,
        FloatDType::BF16 => DType::Bf16,
        FloatDType::F16 => DType::U8,
        _ => DType::F32,
    }
}

fn elements<T: Element + burn::tensor::Element>(data: TensorData) -> HostBuffer {
    data.try_into_vec::<T>().expect("the tensor was cast to this dtype").into()
}

/// A send in flight.
enum PendingSend {
    OnHost(Request),
    OnDevice(Request<()>),
}

impl PendingSend {
    fn test(&mut self) -> Result<bool, CommError> {
        match self {
            Self::OnHost(request) => request.test(),
            Self::OnDevice(request) => request.test(),
        }
    }

    fn wait(self) -> Result<(), CommError> {
        match self {
            Self::OnHost(request) => request.wait().map(drop),
            Self::OnDevice(request) => request.wait(),
        }
    }
}

/// A boundary on its way, and which way.
type Transfer = (Direction, Message);

/// The tensors that a transfer brings, in the order in which they are sent.
type Declared<'a> = &'a dyn Fn(Transfer) -> Vec<BoundaryTensor>;

/// The transfers of one rank in one pass.
pub(super) struct Transfers<'a> {
    group: &'a Group,
    format: &'a TransferFormat,
    /// Receives of the pass that are not posted yet, in the order in which they are waited for.
    later: VecDeque<Transfer>,
    /// Receives that are posted, in that order: each tensor of a boundary is a message of its own.
    posted: VecDeque<(Transfer, Vec<(BoundaryTensor, PendingTransfer)>)>,
    /// Sends that may not be complete.
    sending: VecDeque<PendingSend>,
}

impl<'a> Transfers<'a> {
    pub fn new(group: &'a Group, format: &'a TransferFormat, actions: &[Action]) -> Self {
        let later = actions.iter().filter(|action| !action.is_send()).filter_map(Action::message).collect();
        Self { group, format, later, posted: VecDeque::new(), sending: VecDeque::new() }
    }

    /// Keeps [`RECEIVES_AHEAD`] boundaries posted.
    pub fn post(&mut self, declared: Declared) -> Result<(), CommError> {
        while self.posted.len() < RECEIVES_AHEAD
            && let Some(transfer) = self.later.pop_front()
        {
            let (direction, message) = transfer;
            let request = |tensor: BoundaryTensor| {
                let tag = message.tag(direction);
                let transfer = match TensorExchange::for_device(self.group, &self.format.device) {
                    Some(way) => {
                        let (dtype, len) = (self.format.sent_dtype(tensor.dtype), tensor.shape.iter().product());
                        PendingTransfer::OnDevice(way.start_recv(dtype, len, message.peer, tag)?)
                    }
                    None => {
                        let (dtype, len) = self.format.message(&tensor);
                        PendingTransfer::OnHost(self.group.start_recv(dtype, len, message.peer, tag)?)
                    }
                };
                Ok::<_, CommError>((tensor, transfer))
            };
            let requests = declared(transfer).into_iter().map(request).collect::<Result<_, _>>()?;
            self.posted.push_back((transfer, requests));
        }
        Ok(())
    }

    /// Waits for the next receive of the pass. Panics if `expected` is not the receive that comes
    /// next in the actions.
    pub fn receive(&mut self, expected: Transfer, declared: Declared) -> Result<Boundary, CommError> {
        let (transfer, requests) = self.posted.pop_front().expect("receives are posted before they are waited for");
        assert_eq!(transfer, expected, "receives are waited for in the order of the actions");
        let wait = |(tensor, transfer): (BoundaryTensor, PendingTransfer)| {
            let value = match transfer.wait()? {
                TransferBuffer::OnHost(values) => self.format.decode(values, &tensor),
                TransferBuffer::OnDevice(values) => values.reshape(tensor.shape).cast(tensor.dtype),
            };
            Ok::<_, CommError>((tensor, value))
        };
        let values = requests.into_iter().map(wait).collect::<Result<Vec<_>, _>>()?;
        self.post(declared)?;
        Ok(values.into_iter().fold(Boundary::default(), |boundary, (tensor, value)| boundary.with(tensor.name, value)))
    }

    /// Starts to send the tensors of a boundary, one after the other.
    pub fn send(&mut self, (direction, message): Transfer, boundary: Boundary) -> Result<(), CommError> {
        for tensor in boundary.into_tensors() {
            let tag = message.tag(direction);
            self.sending.push_back(match TensorExchange::for_device(self.group, &self.format.device) {
                Some(way) => {
                    let len = tensor.dims().iter().product::<usize>();
                    let wire = self.format.sent_dtype(tensor.dtype().into());
                    let flat: Tensor<1> = tensor.without_autodiff().cast(wire).reshape([len]);
                    PendingSend::OnDevice(way.start_send(flat, message.peer, tag)?)
                }
                None => {
                    let buffer = self.format.encode(tensor);
                    PendingSend::OnHost(self.group.start_send(buffer, message.peer, tag)?)
                }
            });
        }
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
        self.sending.drain(..).try_for_each(PendingSend::wait)
    }
}
