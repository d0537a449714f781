//! Ranks with one NVIDIA GPU each, whose data moves by NCCL: over NVLink within a node, over
//! InfiniBand or sockets between nodes. Needs the cargo feature `nccl`; the CUDA driver and NCCL
//! 2.14 or newer are loaded at run time.
//!
//! # Notes
//! - A world is created from another communicator, the *bootstrap* group:
//!   [`NcclCommunicator::connect`] joins its ranks, with one device each. Use MPI processes on a
//!   cluster, or threads for the devices of one node:
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use bridge_cuda::nccl::{NcclCommunicator, device_count};
//! use bridge_dist::comm::thread::{BoxError, run_ranks};
//! use bridge_dist::comm::{Communicator, ReduceOp};
//!
//! run_ranks(device_count()?, Duration::from_secs(60), |bootstrap| {
//!     let comm = NcclCommunicator::connect(&bootstrap, bootstrap.rank())?;
//!     let mut memory = comm.stream().alloc_zeros::<f32>(1000)?;
//!     let device = comm.device();
//!     let mut gradient = device.write(&mut memory)?;
//!     device.all_reduce(&mut gradient, ReduceOp::Sum)?;
//!     Ok::<_, BoxError>(())
//! })?;
//! # Ok::<(), BoxError>(())
//! ```
//!
//! - [`NcclCommunicator::device`] has the collectives on device memory. They are NCCL's own, so
//!   sums are equal on all ranks, but in an order that NCCL chooses (see [`DeviceCollectives`]).
//! - The [`Communicator`] methods take host memory and keep that contract to the bit: data goes to
//!   the device, is moved by NCCL, and is reduced on the host in rank order. The device memory for
//!   this is reused between calls, at most 128 MiB for each of a group's two lanes.
//! - With the feature `cuda`, tensors on the communicator's device stay there
//!   ([`Communicator::device`]): parts are moved by NCCL between buffers of the tensor library and
//!   added up on the device in rank order, so results have the bits of host memory. An operation is
//!   put on a stream of the communicator and ordered with those of the tensors by events; the host
//!   waits for none. Ranks compare signatures before, as they do for host memory. A thread watches
//!   the operations in flight: where data does not move for the time limit, or NCCL or another
//!   operation has failed, it ends the communicator, so that the device is free and the next call
//!   of the rank reports the failure.
//! - Messages of tensors, with the same features, stay on the device too: each direction between
//!   two ranks is a communicator and a stream of its own, made with its first message, with a
//!   thread at either end. The threads announce messages to each other over the bootstrap group,
//!   and call NCCL when both are ready.
//! - Messages of host memory go over the bootstrap group: NCCL has no tags, and a transfer through
//!   two devices gains nothing.
//! - Before data moves, ranks compare signatures over the bootstrap group. So a mismatch or a
//!   missing rank is the same error as with MPI, at the cost of one small all_gather on that group
//!   per operation.
//! - Stalled data is detected after the time limit (NCCL is polled, never waited in). The
//!   communicator is then aborted, and a collective on the bootstrap group, which may take the time
//!   limit again, finds the missing ranks.
//! - Its groups are split from the bootstrap group, which remains free for other uses. An
//!   `MpiWorld` must outlive the communicator.
//! - Each group has an NCCL communicator for blocking operations and, from the first `start_*` on,
//!   another one for non-blocking ones. Both may run at the same time; the device needs room for
//!   the few blocks of both.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use bridge_dist::comm::transport::lock;
use bridge_dist::comm::{CommError, Communicator, Group, Layer};

mod agree;
mod carrier;
mod cuda;
mod device;
mod error;
mod handshake;
mod lane;
mod library;
#[cfg(any(feature = "cuda", test))]
mod links;
mod member;
#[cfg(feature = "cuda")]
mod messages;
#[cfg(any(feature = "cuda", test))]
mod patience;
mod raw;
mod staged;
mod staging;
#[cfg(feature = "cuda")]
mod tensors;
#[cfg(test)]
mod tests;
#[cfg(feature = "cuda")]
mod watch;

use cuda::CudaFabric;
use member::World;
use staged::{Controls, Staged};

pub use device::{DeviceBuffer, DeviceBufferMut, DeviceCollectives};
pub use error::NcclInitError;
pub use library::device_count;

/// One rank of a group whose data moves by NCCL.
///
/// Dropping it ends its NCCL communicators, and waits for its non-blocking collectives.
pub struct NcclCommunicator {
    staged: Staged<CudaFabric>,
    stream: Arc<CudaStream>,
}

impl NcclCommunicator {
    /// Joins the ranks of `bootstrap`, this one with CUDA device `ordinal`. All ranks call this
    /// together; the time limit is that of `bootstrap`.
    ///
    /// # Errors
    /// If NCCL cannot be started on this rank, or on another one ([`NcclInitError::Peer`]): then no
    /// rank has joined.
    pub fn connect(bootstrap: &Group, ordinal: usize) -> Result<Self, NcclInitError> {
        let opened = CudaFabric::open(ordinal);
        let controls = Controls::split(bootstrap, Some(0), bootstrap.rank(), bootstrap.name())?
            .expect("ranks that give a colour get a group");
        let fabric = everyone(&controls.blocking, opened)?;
        let staged = Staged::connect(Arc::new(World::default()), fabric, controls, bootstrap.name())?;
        Ok(Self::new(staged))
    }

    fn new(staged: Staged<CudaFabric>) -> Self {
        let stream = Arc::clone(&lock(&staged.blocking).carrier.wire.stream);
        Self { staged, stream }
    }

    /// The collectives of device memory.
    pub fn device(&self) -> DeviceCollectives<'_> {
        DeviceCollectives::new(&self.staged, &self.stream)
    }

    /// The device's context. Memory for [`device`](Self::device) is allocated in it.
    pub fn context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    /// The stream that blocking operations are on.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Like [`Communicator::split`], for groups that use device memory: a group of one rank is an
    /// NCCL communicator too.
    ///
    /// # Errors
    /// See [`CommErrorKind`](bridge_dist::comm::CommErrorKind).
    pub fn split_devices(&self, color: Option<usize>, key: usize, name: &str) -> Result<Option<Self>, CommError> {
        Ok(self.staged.split_staged(color, key, name)?.map(Self::new))
    }
}

/// The value, if every rank has one; otherwise an error on every rank.
fn everyone<T>(control: &Group, mine: Result<T, NcclInitError>) -> Result<T, NcclInitError> {
    /// Room for a message; zero bytes mean success.
    const ROOM: usize = 512;
    let mut report = [0u8; ROOM];
    if let Err(error) = &mine {
        let text = error.to_string();
        let end = text.floor_char_boundary(ROOM);
        report[..end].copy_from_slice(&text.as_bytes()[..end]);
    }
    let mut reports = vec![0u8; ROOM * control.size()];
    control.all_gather((&report).into(), (&mut reports).into())?;
    let value = mine?;
    match reports.chunks_exact(ROOM).enumerate().find(|(_, report)| report[0] != 0) {
        Some((rank, report)) => {
            let message = String::from_utf8_lossy(report).trim_end_matches('\0').to_owned();
            Err(NcclInitError::Peer { rank, message })
        }
        None => Ok(value),
    }
}

impl std::fmt::Debug for NcclCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "NcclCommunicator({} {}/{}, device {})",
            self.name(),
            self.rank(),
            self.size(),
            self.context().ordinal()
        )
    }
}

impl Layer for NcclCommunicator {
    fn inner(&self) -> &dyn Communicator {
        &self.staged
    }

    /// Groups of this communicator use NCCL already.
    fn over(&self, inner: Group) -> Group {
        inner
    }
}
