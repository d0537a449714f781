//! Exchanges of memory that stays on its device: the contract between communicators, which move
//! such memory, and a tensor library, which computes with it. No tensor library is known here; the
//! arithmetic is in the crate `bridge-regions`.
//!
//! An operation is a [`DeviceCall`], which layers see as they see the same operation of host
//! memory, and a [`DeviceWork`], which a rank runs at its end of a [`DeviceLine`]. Lines only move
//! parts; the work adds them up.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use super::Communicator;
use super::buffer::{DType, ReduceOp};
use super::error::CommError;
use super::layer::{Call, Operation};
use super::request::Request;
pub use super::signature::Extent;
use super::signature::{OpKind, RankContext, Signature};

/// Memory of a device as a tensor library has it.
pub trait DeviceMemory: Any + Debug + Send + Sync {
    /// New memory of the same kind on the same device for `elements` elements of the part's type.
    /// Its content is undefined.
    fn empty(&self, elements: usize) -> Arc<dyn DeviceMemory>;
}

/// Elements in device memory, side by side.
#[derive(Clone, Debug)]
pub struct DevicePart {
    /// Element type, as ranks agree on it and as it is counted. The library may have another one of
    /// the same width.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
    /// The memory.
    pub memory: Arc<dyn DeviceMemory>,
}

/// One rank's end of a line between all ranks of a group, for one operation on which they have
/// agreed. All ranks call the same methods in the same order.
///
/// A rank may read received memory, but must not write it: other ranks may hold the same memory.
/// After a rank has passed memory to the line, the rank must not write it any more.
pub trait DeviceLine {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// True if ranks read each other's memory directly. A rank must then pass memory that was
    /// allocated for this transfer.
    fn shares_memory(&self) -> bool;

    /// `parts[j]` goes to rank `j`; `receive[i]` elements come from rank `i`. A rank's part for
    /// itself is returned to it.
    ///
    /// # Errors
    /// See [`CommErrorKind`](super::CommErrorKind); lengths must fit each other across ranks.
    fn exchange(&mut self, parts: Vec<DevicePart>, receive: &[usize]) -> Result<Vec<DevicePart>, CommError>;

    /// The parts of all ranks, in rank order. All are equally long.
    ///
    /// # Errors
    /// See [`CommErrorKind`](super::CommErrorKind).
    fn all_gather(&mut self, part: DevicePart) -> Result<Vec<DevicePart>, CommError>;

    /// Returns the part of `root`. The parts of other ranks give its length and type.
    ///
    /// # Errors
    /// See [`CommErrorKind`](super::CommErrorKind).
    fn broadcast(&mut self, part: DevicePart, root: usize) -> Result<DevicePart, CommError>;
}

/// Work of a rank in an operation. It returns memory that no other rank has.
pub type DeviceWork = Box<dyn FnOnce(&mut dyn DeviceLine) -> Result<DevicePart, CommError> + Send>;

/// An operation with the signature on which ranks agree.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCall {
    /// The call, as layers see it.
    pub call: Call,
    /// Signature that ranks compare before data moves.
    pub signature: Signature,
}

impl DeviceCall {
    /// `elements` are those that count as payload.
    fn new(operation: Operation, elements: usize, signature: Signature) -> Self {
        let dtype = signature.dtype.unwrap_or(DType::U8);
        Self { call: Call::new(operation, dtype, elements), signature: signature.on_device() }
    }

    /// Sum or average over the ranks of `group`.
    ///
    /// # Errors
    /// If devices do not have the reduction.
    pub fn all_reduce(group: &dyn Communicator, data: Extent, op: ReduceOp) -> Result<Self, CommError> {
        let signature = Signature::reducing(OpKind::AllReduce, data.dtype, data.len, op).on_device();
        with_context(group, |context| context.check_device_reduce(&signature))?;
        Ok(Self::new(Operation::AllReduce, data.len, signature))
    }

    /// Sum or average over the ranks of `group`, of which each rank gets one of as many equal parts
    /// as there are ranks.
    ///
    /// # Errors
    /// If devices do not have the reduction, or the elements do not divide.
    pub fn reduce_scatter(group: &dyn Communicator, input: Extent, op: ReduceOp) -> Result<Self, CommError> {
        let output = Extent { len: input.len / group.size(), ..input };
        let signature = with_context(group, |context| {
            let signature = context.reduce_scatter(input, output, op)?.on_device();
            context.check_device_reduce(&signature).map(|()| signature)
        })?;
        Ok(Self::new(Operation::ReduceScatter, input.len, signature))
    }

    /// The parts of all ranks, which are equally long.
    pub fn all_gather(part: Extent) -> Self {
        Self::new(Operation::AllGather, part.len, Signature::data(OpKind::AllGather, part.dtype, part.len))
    }

    /// The data of rank `root` on all ranks.
    ///
    /// # Errors
    /// If there is no such rank.
    pub fn broadcast(group: &dyn Communicator, data: Extent, root: usize) -> Result<Self, CommError> {
        let mut made = Self::new(Operation::Broadcast, data.len, with_context(group, |it| it.broadcast(data, root))?);
        made.call.root = Some(root);
        Ok(made)
    }

    /// An exchange with a length for each pair of ranks.
    ///
    /// # Errors
    /// If counts do not fit the buffers.
    pub fn all_to_all_uneven(
        group: &dyn Communicator,
        input: Extent,
        send: &[usize],
        output: Extent,
        receive: &[usize],
    ) -> Result<Self, CommError> {
        let signature = with_context(group, |context| context.uneven(input, send, output, receive))?;
        let mut made = Self::new(Operation::AllToAll, input.len, signature);
        made.call.is_even = false;
        Ok(made)
    }
}

/// Calls `check` with the rank and group that its errors name.
fn with_context<R>(group: &dyn Communicator, check: impl FnOnce(&RankContext<'_>) -> R) -> R {
    check(&RankContext { rank: group.rank(), world_ranks: &group.world_ranks(), group: group.name() })
}

/// Operations of device memory, which a [`Communicator`] may offer. The contract is that of the
/// same operations of host memory: order, results to the bit, errors, counts.
pub trait DeviceExchange: Debug + Send + Sync {
    /// True if the exchange moves such memory. All ranks of a group get the same answer.
    fn accepts(&self, memory: &dyn DeviceMemory) -> bool;

    /// As [`DeviceLine::shares_memory`], for messages.
    fn shares_memory(&self) -> bool;

    /// Runs an operation of all ranks. It may return before the device has done its part.
    ///
    /// # Errors
    /// See [`CommErrorKind`](super::CommErrorKind).
    fn run(&self, call: &DeviceCall, work: DeviceWork) -> Result<DevicePart, CommError>;

    /// Starts an operation of all ranks, which a thread of the communicator runs.
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    fn start(&self, call: &DeviceCall, work: DeviceWork) -> Result<Request<DevicePart>, CommError>;

    /// Starts to send a message; the request is complete when the memory has been handed over. It
    /// must not be written any more.
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    fn start_send(&self, part: DevicePart, to: usize, tag: u32) -> Result<Request<()>, CommError>;

    /// Starts to receive a message; the request returns memory that is only read. `like` gives
    /// type, length and device of the memory.
    ///
    /// # Errors
    /// Errors found before anything is received; others come from the request.
    fn start_recv(&self, like: DevicePart, from: usize, tag: u32) -> Result<Request<DevicePart>, CommError>;
}
