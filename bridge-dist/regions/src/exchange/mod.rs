//! Collectives of Burn tensors that stay on their device, if the communicator supports this
//! ([`Communicator::device`]). Cargo feature `burn`.
//!
//! Communicators move parts; sums are made here, on the device, from the parts of all ranks in rank
//! order, with the arithmetic of host memory: float32 for 16 bits and one rounding at the end. So
//! results have the same bits as through host memory. A reduction moves as many bytes as a ring:
//! each rank receives its part from all other ranks and sums it; an all-reduce then gathers the
//! parts.
//!
//! # Order on the device
//! On a CubeCL device each thread has a stream of its own. A kernel that reads memory of another
//! stream waits, on the device, for all work launched on that stream so far. CubeCL skips this wait
//! if another kernel waited for the stream between the reservation of the memory and the launch
//! that fills it. So memory that goes from one thread to another comes with a mark: memory that was
//! reserved after that launch. The receiver reads the mark first. A thread never writes memory of
//! another thread: results are new memory, and handles are held until the operations that read them
//! have been launched, so that no operation runs in place. Other ranks read a copy that its own
//! rank does not write either.
//!
//! [`Communicator::device`]: bridge_dist::comm::Communicator::device

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType as TensorDType, Device, FloatDType, Tensor};

use bridge_dist::comm::device::{DeviceCall, DeviceExchange, DevicePart, DeviceWork, Extent};
use bridge_dist::comm::{CommError, DType, Group, HostBuffer, ReduceOp, Request};

mod memory;
#[cfg(test)]
mod tests;
mod work;

pub use memory::{TensorMemory, copied};
use memory::{arrived, mark, read};
use work::Line;

/// The exchange of a group's ranks for tensors of one device.
///
/// Operations take tensors without a graph. `start_*` operations run concurrently with the rank's
/// computation; their inputs must not be changed until they are complete.
#[derive(Clone, Debug)]
pub struct TensorExchange<'a> {
    group: &'a Group,
    exchange: &'a dyn DeviceExchange,
    device: Device,
}

/// Element type under which elements of a tensor are communicated. Panics if the tensor is not of
/// floats.
fn wire(dtype: TensorDType) -> DType {
    match dtype {
        TensorDType::F32 => DType::F32,
        // The communicator does not sum elements, so all 16-bit types are the same to it.
        TensorDType::BF16 | TensorDType::F16 => DType::Bf16,
        TensorDType::F64 => DType::F64,
        other => panic!("no tensor of {other:?} is exchanged"),
    }
}

impl<'a> TensorExchange<'a> {
    /// The group's way for tensors on `device`; `None` if they go through host memory, or if the
    /// group has one rank. The same on all ranks.
    pub fn for_device(group: &'a Group, device: &Device) -> Option<Self> {
        let exchange = group.device().filter(|_| group.size() > 1)?;
        let device = device.clone().without_autodiff();
        let probe = TensorMemory::new(mark(&device), DType::F32, None);
        exchange.accepts(&probe).then_some(Self { group, exchange, device })
    }

    fn run(
        &self,
        call: &DeviceCall,
        work: impl FnOnce(&mut Line<'_>) -> Result<Tensor<1>, CommError> + Send + 'static,
    ) -> Result<Tensor<1>, CommError> {
        let work: DeviceWork = Box::new(|line| work(&mut Line(line)).map(|made| TensorMemory::part(made, None)));
        Ok(read(&self.exchange.run(call, work)?))
    }

    fn start(
        &self,
        call: &DeviceCall,
        work: impl FnOnce(&mut Line<'_>) -> Result<Tensor<1>, CommError> + Send + 'static,
    ) -> Result<TensorRequest, CommError> {
        let given = mark(&self.device);
        let device = self.device.clone();
        let work: DeviceWork = Box::new(move |line| {
            memory::follow(&given);
            let made = work(&mut Line(line))?;
            Ok(TensorMemory::part(made, Some(mark(&device))))
        });
        let request = self.exchange.start(call, work)?;
        Ok(TensorRequest(request))
    }

    /// The sum or average over the ranks.
    ///
    /// # Errors
    /// See [`CommErrorKind`](bridge_dist::comm::CommErrorKind); another reduction is an invalid
    /// argument.
    pub fn all_reduce(&self, x: Tensor<1>, op: ReduceOp) -> Result<Tensor<1>, CommError> {
        let extent = TensorMemory::extent(&x);
        let call = DeviceCall::all_reduce(&**self.group, extent, op)?;
        self.run(&call, move |line| line.all_reduce(x, op))
    }

    /// Starts an [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    pub fn start_all_reduce(&self, x: Tensor<1>, op: ReduceOp) -> Result<TensorRequest, CommError> {
        let extent = TensorMemory::extent(&x);
        let call = DeviceCall::all_reduce(&**self.group, extent, op)?;
        self.start(&call, move |line| line.all_reduce(x, op))
    }

    /// The `rank`-th of as many equal parts as there are ranks, of the sum or average over the
    /// ranks.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); also if the elements do not divide.
    pub fn reduce_scatter(&self, x: Tensor<1>, op: ReduceOp) -> Result<Tensor<1>, CommError> {
        let call = self.reduce_scatter_call(&x, op)?;
        let parts = self.equal_parts(&x);
        self.run(&call, move |line| line.reduce_scatter(parts, op))
    }

    /// Starts a [`reduce_scatter`](Self::reduce_scatter).
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    pub fn start_reduce_scatter(&self, x: Tensor<1>, op: ReduceOp) -> Result<TensorRequest, CommError> {
        let call = self.reduce_scatter_call(&x, op)?;
        let parts = self.equal_parts(&x);
        self.start(&call, move |line| line.reduce_scatter(parts, op))
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), of parts that are tensors of their own, all
    /// equally long.
    pub(crate) fn reduce_parts(&self, parts: Vec<Tensor<1>>, op: ReduceOp) -> Result<Tensor<1>, CommError> {
        let mut extent = TensorMemory::extent(&parts[0]);
        extent.len *= parts.len();
        let call = DeviceCall::reduce_scatter(&**self.group, extent, op)?;
        self.run(&call, move |line| line.reduce_scatter(parts, op))
    }

    fn reduce_scatter_call(&self, x: &Tensor<1>, op: ReduceOp) -> Result<DeviceCall, CommError> {
        DeviceCall::reduce_scatter(&**self.group, TensorMemory::extent(x), op)
    }

    fn equal_parts(&self, x: &Tensor<1>) -> Vec<Tensor<1>> {
        let part = x.dims()[0] / self.group.size();
        (0..self.group.size()).map(|rank| part_of(x, &(rank * part..(rank + 1) * part))).collect()
    }

    /// The tensors of all ranks, one after the other. All are equally long.
    ///
    /// # Errors
    /// See [`CommErrorKind`](bridge_dist::comm::CommErrorKind).
    pub fn all_gather(&self, x: Tensor<1>) -> Result<Tensor<1>, CommError> {
        self.gather_parts(x, joined)
    }

    /// Starts an [`all_gather`](Self::all_gather).
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    pub fn start_all_gather(&self, x: Tensor<1>) -> Result<TensorRequest, CommError> {
        let call = DeviceCall::all_gather(TensorMemory::extent(&x));
        self.start(&call, move |line| line.all_gather(x, joined))
    }

    /// As [`start_all_gather`](Self::start_all_gather), of bytes, four in each element of float32.
    /// No arithmetic is applied to them.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// If the elements are of another type.
    pub fn start_all_gather_bytes(&self, words: Tensor<1>) -> Result<TensorRequest, CommError> {
        let Extent { dtype, len } = TensorMemory::extent(&words);
        assert_eq!(dtype, DType::F32, "bytes come in words");
        let call = DeviceCall::all_gather(Extent { dtype: DType::U8, len: len * dtype.size() });
        self.start(&call, move |line| line.all_gather(words, joined))
    }

    /// Gathers the tensors of all ranks and returns the result of `put_together`, which must not
    /// return its inputs unchanged.
    pub(crate) fn gather_parts(
        &self,
        x: Tensor<1>,
        put_together: impl FnOnce(Vec<Tensor<1>>) -> Tensor<1> + Send + 'static,
    ) -> Result<Tensor<1>, CommError> {
        let call = DeviceCall::all_gather(TensorMemory::extent(&x));
        self.run(&call, move |line| line.all_gather(x, put_together))
    }

    /// The tensor of `root`; those of other ranks say its length and type.
    ///
    /// # Errors
    /// See [`CommErrorKind`](bridge_dist::comm::CommErrorKind).
    pub fn broadcast(&self, x: Tensor<1>, root: usize) -> Result<Tensor<1>, CommError> {
        let call = DeviceCall::broadcast(&**self.group, TensorMemory::extent(&x), root)?;
        self.run(&call, move |line| line.broadcast(x, root))
    }

    /// Sends `send[j]` elements of `x` to rank `j`, one after the other; the result has
    /// `receive[i]` elements of rank `i`, likewise.
    ///
    /// # Errors
    /// See [`CommErrorKind`](bridge_dist::comm::CommErrorKind); counts must fit the tensor, and
    /// each other across ranks.
    pub fn all_to_all_uneven(&self, x: Tensor<1>, send: &[usize], receive: &[usize]) -> Result<Tensor<1>, CommError> {
        let input = TensorMemory::extent(&x);
        let output = Extent { len: receive.iter().sum(), ..input };
        let call = DeviceCall::all_to_all_uneven(&**self.group, input, send, output, receive)?;
        let (mut end, receive) = (0, receive.to_vec());
        let parts = send.iter().map(|count| {
            end += count;
            part_of(&x, &(end - count..end))
        });
        let parts = parts.collect();
        self.run(&call, move |line| line.all_to_all(parts, &receive))
    }

    /// Starts to send a tensor to another rank.
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    pub fn start_send(&self, x: Tensor<1>, to: usize, tag: u32) -> Result<Request<()>, CommError> {
        let part = match self.exchange.shares_memory() {
            true => TensorMemory::marked(copied(x)),
            false => TensorMemory::part(x, None),
        };
        self.exchange.start_send(message(part), to, tag)
    }

    /// Starts to receive `len` elements of type `dtype`.
    ///
    /// # Errors
    /// Errors found before anything is received; others come from the request.
    pub fn start_recv(&self, dtype: FloatDType, len: usize, from: usize, tag: u32) -> Result<TensorRequest, CommError> {
        let like = TensorMemory::part(Tensor::empty([0], (&self.device, dtype.into())), None);
        let like = message(DevicePart { len, ..like });
        self.exchange.start_recv(like, from, tag).map(TensorRequest)
    }
}

/// A part as messages name it: those of float16 are bytes, as in host memory.
fn message(part: DevicePart) -> DevicePart {
    let memory = TensorMemory::behind(&part);
    if memory.tensor().dtype() != TensorDType::F16 {
        return part;
    }
    let bytes = Arc::new(memory.clone().named(DType::U8));
    DevicePart { dtype: DType::U8, len: part.len * 2, memory: bytes }
}

/// Some elements of a flat tensor; a view where the device can have one.
fn part_of(x: &Tensor<1>, range: &Range<usize>) -> Tensor<1> {
    match range.len() {
        // No kernel is launched for nothing.
        0 => Tensor::empty([0], (&x.device(), x.dtype())),
        len if len == x.dims()[0] => x.clone(),
        _ => x.clone().slice(range.clone()),
    }
}

/// The tensors of all ranks, one after the other, in new memory.
fn joined(parts: Vec<Tensor<1>>) -> Tensor<1> {
    let mut filled: Vec<Tensor<1>> = parts.iter().filter(|part| part.dims()[0] > 0).cloned().collect();
    match filled.len() {
        0 => parts.into_iter().next().expect("a group has ranks"),
        1 => copied(filled.remove(0)),
        _ => Tensor::cat(filled, 0),
    }
}

/// A tensor on its way.
#[must_use = "the result of the operation is returned by `wait`"]
#[derive(Debug)]
pub struct TensorRequest(Request<DevicePart>);

impl TensorRequest {
    /// True if [`wait`](Self::wait) returns at once. Work of the device may be pending even then.
    ///
    /// # Errors
    /// If the operation has failed; `wait` then returns an error too.
    pub fn test(&mut self) -> Result<bool, CommError> {
        self.0.test()
    }

    /// Blocks until the tensor may be used in operations of this thread, and returns a copy in
    /// memory of this thread's stream. So the order with other streams is handled once, and not in
    /// each operation that reads a part of the tensor.
    ///
    /// # Errors
    /// Errors of the blocking form.
    pub fn wait(self) -> Result<Tensor<1>, CommError> {
        let part = self.0.wait()?;
        Ok(copied(arrived(&part)))
    }
}

/// A transfer in flight, through host memory or on a device.
#[must_use = "the result of the operation is returned by `wait`"]
#[derive(Debug)]
pub enum PendingTransfer {
    /// A transfer of host memory.
    OnHost(Request),
    /// A transfer of a tensor.
    OnDevice(TensorRequest),
}

impl PendingTransfer {
    /// As [`TensorRequest::test`].
    ///
    /// # Errors
    /// If the operation has failed; `wait` then returns an error too.
    pub fn test(&mut self) -> Result<bool, CommError> {
        match self {
            Self::OnHost(request) => request.test(),
            Self::OnDevice(request) => request.test(),
        }
    }

    /// Blocks until the operation is complete, and returns its result.
    ///
    /// # Errors
    /// Errors of the blocking form.
    pub fn wait(self) -> Result<TransferBuffer, CommError> {
        Ok(match self {
            Self::OnHost(request) => TransferBuffer::OnHost(request.wait()?),
            Self::OnDevice(request) => TransferBuffer::OnDevice(request.wait()?),
        })
    }
}

/// Elements that are sent or were received.
#[expect(clippy::large_enum_variant, reason = "passed on at once, never stored")]
#[derive(Debug)]
pub enum TransferBuffer {
    /// Elements in host memory.
    OnHost(HostBuffer),
    /// Elements on a device.
    OnDevice(Tensor<1>),
}
