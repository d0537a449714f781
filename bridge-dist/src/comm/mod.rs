//! Communication between ranks: the [`Communicator`] contract and its implementations.
//!
//! This module works on host memory and knows nothing about tensors, models or schedules. Memory of
//! devices passes through it unseen ([`device`]).

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

mod buffer;
pub mod call_log;
pub mod counting;
pub mod device;
mod error;
mod gather;
mod layer;
mod lock;
#[cfg(feature = "mpi")]
pub mod mpi;
mod pace;
mod pieces;
mod reduce;
mod request;
mod signature;
pub mod single;
pub mod thread;
pub mod throttled;
mod time_limit;
pub mod timed;
pub mod transport;
mod worker;

pub use buffer::{Buffer, BufferError, BufferMut, DType, Element, HostBuffer, ReduceOp};
pub use error::{CommError, CommErrorKind};
pub use gather::all_gather_bytes;
pub use layer::{Call, Layer, Operation};
pub use reduce::slice_of;
pub use request::Request;
pub use signature::{MAX_TAG, UnevenExchange};

/// A shared handle to a communicator, for several places of one rank's program.
pub type Group = Arc<dyn Communicator>;

/// A group of ranks and its collective and point-to-point operations.
///
/// # Contract
/// - Collectives (everything except messages) are called by all ranks of the group in the same
///   order with the same element type, length, reduction and root. Ranks compare these before data
///   moves, and a difference is a [`Mismatch`](CommErrorKind::Mismatch) on every rank.
/// - Results are bit-identical on all ranks, from run to run, and with every implementation:
///   elements are combined in rank order; bf16 accumulates in float32 and is rounded once. (NCCL's
///   collectives on device memory, which are not part of this trait, guarantee less: see the crate
///   `bridge-cuda`.)
/// - An operation that waits for other ranks for [`timeout`](Self::timeout) (on MPI up to a quarter
///   longer) fails. While data is moving, the limit starts again with each piece that arrives.
/// - Messages between two ranks with the same tag arrive in the order of their `send`s and match
///   the `recv`s in the order these were started. [`send`](Self::send) may return before the
///   message is received; a program must not rely on that.
/// - Non-blocking collectives (`start_*`) must be started in the same order on all ranks of a
///   group. They run in that order, independently of blocking ones, and make progress while the
///   rank computes.
/// - One operation of a kind runs at a time: threads of one rank that share a communicator take
///   turns, in no defined order.
/// - After an error that involves other ranks the world has failed (see [`CommError`]) and should
///   be dropped.
pub trait Communicator: Debug + Send + Sync {
    /// This rank, `0..size`.
    fn rank(&self) -> usize;

    /// Number of ranks of the group.
    fn size(&self) -> usize;

    /// The group's name, for messages.
    fn name(&self) -> &str;

    /// The ranks of the group, in order, as ranks of the world it was split from.
    fn world_ranks(&self) -> Arc<[usize]>;

    /// Time limit of an operation that waits for other ranks.
    fn timeout(&self) -> Duration;

    /// Changes [`timeout`](Self::timeout) for every group of this world. Thread ranks share one
    /// world, so one call is enough; process ranks each call it. Operations in progress may still
    /// use the old limit, and so does NCCL itself in existing groups; the agreement before its data
    /// transfer uses the new one.
    fn set_timeout(&self, timeout: Duration);

    /// Replaces `data` by the reduction over all ranks. Same length on all ranks.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; an average of integers is an invalid argument.
    fn all_reduce(&self, data: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError>;

    /// Reduces over all ranks and leaves the `rank`-th of `size` equal parts in `output`.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; `input` must be `size` times as long as `output`.
    fn reduce_scatter(&self, input: Buffer<'_>, output: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError>;

    /// Concatenates the inputs of all ranks in rank order.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; `output` must be `size` times as long as `input`.
    fn all_gather(&self, input: Buffer<'_>, output: BufferMut<'_>) -> Result<(), CommError>;

    /// Copies `root`'s data to all ranks.
    ///
    /// # Errors
    /// See [`CommErrorKind`].
    fn broadcast(&self, data: BufferMut<'_>, root: usize) -> Result<(), CommError>;

    /// Sends the `j`-th of `size` equal parts of `input` to rank `j`; `output` holds the data from
    /// each rank, in rank order.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; both lengths are equal and divisible by `size`.
    fn all_to_all(&self, input: Buffer<'_>, output: BufferMut<'_>) -> Result<(), CommError>;

    /// [`all_to_all`](Self::all_to_all) with a separate length for each pair of ranks.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; counts must fit the buffers, and each other across ranks.
    fn all_to_all_uneven(&self, exchange: UnevenExchange<'_>) -> Result<(), CommError>;

    /// Sends a message to another rank.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; `to` is another rank, `tag` at most [`MAX_TAG`].
    fn send(&self, data: Buffer<'_>, to: usize, tag: u32) -> Result<(), CommError>;

    /// Receives a message that fills `data` exactly.
    ///
    /// # Errors
    /// See [`CommErrorKind`]; a message of another length or type is a mismatch.
    fn recv(&self, data: BufferMut<'_>, from: usize, tag: u32) -> Result<(), CommError>;

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// See [`CommErrorKind`].
    fn barrier(&self) -> Result<(), CommError>;

    /// Creates new groups: ranks with the same `color` form one, ordered by `key` and then by rank.
    /// A rank with `None` joins no group (and gets `None`), but all ranks must call. A group of one
    /// rank is a [`SingleCommunicator`](single::SingleCommunicator).
    ///
    /// # Errors
    /// See [`CommErrorKind`].
    fn split(&self, color: Option<usize>, key: usize, name: &str) -> Result<Option<Group>, CommError>;

    /// Starts an [`all_reduce`](Self::all_reduce) of `data`; the request returns the result.
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    fn start_all_reduce(&self, data: HostBuffer, op: ReduceOp) -> Result<Request, CommError>;

    /// Starts a [`reduce_scatter`](Self::reduce_scatter); the request returns this rank's part.
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    fn start_reduce_scatter(&self, input: HostBuffer, op: ReduceOp) -> Result<Request, CommError>;

    /// Starts an [`all_gather`](Self::all_gather); the request returns the concatenation.
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    fn start_all_gather(&self, input: HostBuffer) -> Result<Request, CommError>;

    /// Starts a [`send`](Self::send); the request returns `data` when it may be used again.
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    fn start_send(&self, data: HostBuffer, to: usize, tag: u32) -> Result<Request, CommError>;

    /// Starts a [`recv`](Self::recv) of `len` elements; the request returns them.
    ///
    /// # Errors
    /// Errors found before anything is received; others come from the request.
    fn start_recv(&self, dtype: DType, len: usize, from: usize, tag: u32) -> Result<Request, CommError>;

    /// The same operations on memory that stays on its device, if the communicator supports this.
    fn device(&self) -> Option<&dyn device::DeviceExchange> {
        None
    }
}
