//! Communicators that wrap another one: a [`Layer`] adds its work around the operations, which are
//! forwarded here.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::device::{DeviceCall, DeviceExchange, DeviceMemory, DevicePart, DeviceWork};
use super::{Buffer, BufferMut, CommError, Communicator, DType, Group, HostBuffer, ReduceOp, Request, UnevenExchange};

/// An operation of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// `all_reduce`.
    AllReduce,
    /// `reduce_scatter`.
    ReduceScatter,
    /// `all_gather`.
    AllGather,
    /// `broadcast`.
    Broadcast,
    /// `all_to_all` and `all_to_all_uneven`.
    AllToAll,
    /// `send`.
    Send,
    /// `recv`.
    Recv,
    /// `barrier`.
    Barrier,
}

impl Operation {
    /// The method's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Barrier => "barrier",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call of an operation, blocking or not.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The operation.
    pub operation: Operation,
    /// Element type.
    pub dtype: DType,
    /// Elements of the input, or of the only buffer; 0 for a barrier.
    pub elements: usize,
    /// The root of a broadcast.
    pub root: Option<usize>,
    /// False if each pair of ranks exchanges a different length.
    pub is_even: bool,
}

impl Call {
    pub(super) fn new(operation: Operation, dtype: DType, elements: usize) -> Self {
        Self { operation, dtype, elements, root: None, is_even: true }
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        self.elements * self.dtype.size()
    }
}

/// A communicator that adds work around the operations of another one, to which it forwards them.
pub trait Layer: fmt::Debug + Send + Sync {
    /// The wrapped communicator.
    fn inner(&self) -> &dyn Communicator;

    /// This layer around a group that was split from the wrapped communicator.
    fn over(&self, inner: Group) -> Group;

    /// Runs a blocking operation.
    ///
    /// # Errors
    /// Errors of `run`.
    fn blocking<T>(&self, _call: &Call, run: impl FnOnce() -> Result<T, CommError>) -> Result<T, CommError> {
        run()
    }

    /// Starts a non-blocking operation.
    ///
    /// # Errors
    /// Errors of `start`.
    fn started<T: Send + 'static>(
        &self,
        _call: &Call,
        start: impl FnOnce() -> Result<Request<T>, CommError>,
    ) -> Result<Request<T>, CommError> {
        start()
    }
}

impl<L: Layer> Communicator for L {
    fn rank(&self) -> usize {
        self.inner().rank()
    }

    fn size(&self) -> usize {
        self.inner().size()
    }

    fn name(&self) -> &str {
        self.inner().name()
    }

    fn world_ranks(&self) -> Arc<[usize]> {
        self.inner().world_ranks()
    }

    fn timeout(&self) -> Duration {
        self.inner().timeout()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.inner().set_timeout(timeout);
    }

    fn all_reduce(&self, data: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let call = Call::new(Operation::AllReduce, data.dtype(), data.len());
        self.blocking(&call, || self.inner().all_reduce(data, op))
    }

    fn reduce_scatter(&self, input: Buffer<'_>, output: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let call = Call::new(Operation::ReduceScatter, input.dtype(), input.len());
        self.blocking(&call, || self.inner().reduce_scatter(input, output, op))
    }

    fn all_gather(&self, input: Buffer<'_>, output: BufferMut<'_>) -> Result<(), CommError> {
        let call = Call::new(Operation::AllGather, input.dtype(), input.len());
        self.blocking(&call, || self.inner().all_gather(input, output))
    }

    fn broadcast(&self, data: BufferMut<'_>, root: usize) -> Result<(), CommError> {
        let call = Call { root: Some(root), ..Call::new(Operation::Broadcast, data.dtype(), data.len()) };
        self.blocking(&call, || self.inner().broadcast(data, root))
    }

    fn all_to_all(&self, input: Buffer<'_>, output: BufferMut<'_>) -> Result<(), CommError> {
        let call = Call::new(Operation::AllToAll, input.dtype(), input.len());
        self.blocking(&call, || self.inner().all_to_all(input, output))
    }

    fn all_to_all_uneven(&self, exchange: UnevenExchange<'_>) -> Result<(), CommError> {
        let call =
            Call { is_even: false, ..Call::new(Operation::AllToAll, exchange.input.dtype(), exchange.input.len()) };
        self.blocking(&call, || self.inner().all_to_all_uneven(exchange))
    }

    fn send(&self, data: Buffer<'_>, to: usize, tag: u32) -> Result<(), CommError> {
        let call = Call::new(Operation::Send, data.dtype(), data.len());
        self.blocking(&call, || self.inner().send(data, to, tag))
    }

    fn recv(&self, data: BufferMut<'_>, from: usize, tag: u32) -> Result<(), CommError> {
        let call = Call::new(Operation::Recv, data.dtype(), data.len());
        self.blocking(&call, || self.inner().recv(data, from, tag))
    }

    fn barrier(&self) -> Result<(), CommError> {
        self.blocking(&Call::new(Operation::Barrier, DType::U8, 0), || self.inner().barrier())
    }

    fn split(&self, color: Option<usize>, key: usize, name: &str) -> Result<Option<Group>, CommError> {
        Ok(self.inner().split(color, key, name)?.map(|inner| self.over(inner)))
    }

    fn start_all_reduce(&self, data: HostBuffer, op: ReduceOp) -> Result<Request, CommError> {
        let call = Call::new(Operation::AllReduce, data.dtype(), data.len());
        self.started(&call, || self.inner().start_all_reduce(data, op))
    }

    fn start_reduce_scatter(&self, input: HostBuffer, op: ReduceOp) -> Result<Request, CommError> {
        let call = Call::new(Operation::ReduceScatter, input.dtype(), input.len());
        self.started(&call, || self.inner().start_reduce_scatter(input, op))
    }

    fn start_all_gather(&self, input: HostBuffer) -> Result<Request, CommError> {
        let call = Call::new(Operation::AllGather, input.dtype(), input.len());
        self.started(&call, || self.inner().start_all_gather(input))
    }

    fn start_send(&self, data: HostBuffer, to: usize, tag: u32) -> Result<Request, CommError> {
        let call = Call::new(Operation::Send, data.dtype(), data.len());
        self.started(&call, || self.inner().start_send(data, to, tag))
    }

    fn start_recv(&self, dtype: DType, len: usize, from: usize, tag: u32) -> Result<Request, CommError> {
        let call = Call::new(Operation::Recv, dtype, len);
        self.started(&call, || self.inner().start_recv(dtype, len, from, tag))
    }

    fn device(&self) -> Option<&dyn DeviceExchange> {
        self.inner().device().map(|_| self as &dyn DeviceExchange)
    }
}

/// Device exchange of a layer, which exists only if the wrapped communicator has one.
fn device_of(inner: &dyn Communicator) -> &dyn DeviceExchange {
    inner.device().expect("a layer offers what it wraps")
}

impl<L: Layer> DeviceExchange for L {
    fn accepts(&self, memory: &dyn DeviceMemory) -> bool {
        device_of(self.inner()).accepts(memory)
    }

    fn shares_memory(&self) -> bool {
        device_of(self.inner()).shares_memory()
    }

    fn run(&self, call: &DeviceCall, work: DeviceWork) -> Result<DevicePart, CommError> {
        self.blocking(&call.call, || device_of(self.inner()).run(call, work))
    }

    fn start(&self, call: &DeviceCall, work: DeviceWork) -> Result<Request<DevicePart>, CommError> {
        self.started(&call.call, || device_of(self.inner()).start(call, work))
    }

    fn start_send(&self, part: DevicePart, to: usize, tag: u32) -> Result<Request<()>, CommError> {
        let call = Call::new(Operation::Send, part.dtype, part.len);
        self.started(&call, || device_of(self.inner()).start_send(part, to, tag))
    }

    fn start_recv(&self, like: DevicePart, from: usize, tag: u32) -> Result<Request<DevicePart>, CommError> {
        let call = Call::new(Operation::Recv, like.dtype, like.len);
        self.started(&call, || device_of(self.inner()).start_recv(like, from, tag))
    }
}
