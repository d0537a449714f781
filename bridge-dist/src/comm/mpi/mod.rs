//! Ranks as MPI processes, started by `mpirun` or `srun`, for runs on several nodes. Needs the
//! cargo feature `mpi`.
//!
//! # Notes
//! - Start with `mpirun -np N program`. By default Open MPI gives each rank one core; `--bind-to
//!   none` lets a rank use more threads. Where ranks outnumber cores, `--oversubscribe --mca
//!   mpi_yield_when_idle 1` keeps small collectives from taking milliseconds.
//! - [`MpiWorld::init`] installs a panic hook that ends the whole job with exit code 101, because
//!   ranks that wait for a panicked one would otherwise wait until their time limit. It runs for
//!   every panic of the process, caught or not, except those whose payload is a [`CommError`].
//! - After an error the world has failed: communicators then refuse to work, and MPI is not
//!   finalized. Let the process end; `mpirun` ends all other ranks.
//! - A killed process ends the job too: `mpirun` detects it.
//! - A message is at most 2 GiB long; collectives have no such limit.

use std::panic;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::buffer::{Buffer, BufferMut, DType, HostBuffer, ReduceOp};
use super::error::{CommError, CommErrorKind};
use super::lock::lock;
use super::request::Request;
use super::signature::{OpKind, Signature, UnevenExchange};
use super::single::SingleCommunicator;
use super::worker::{Background, Collectives, GroupMember, delegate_to_lanes};
use super::{Communicator, Group};

mod agree;
mod lane;
mod member;
mod message;
mod raw;

use lane::Lane;
pub use member::Waiting;
use member::{Comm, Member, World};
use message::Message;
use raw::{Environment, RawComm, RawError, Started};

/// Exit code of a job that a panic ended; Rust's own exit code after a panic.
const PANIC_EXIT_CODE: i32 = 101;

/// Options for joining the MPI world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpiOptions {
    /// Time limit of an operation that waits for other ranks.
    pub timeout: Duration,
    /// The requested number of ranks. Under the launcher of another MPI library every process is
    /// rank 0 of 1; this detects it. `None` accepts any number.
    pub expected_size: Option<usize>,
}

/// The MPI world could not be joined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MpiInitError {
    /// MPI is already initialized; a process can join only once.
    #[error("MPI is already initialized; a process can join the world only once")]
    Already,
    /// The library does not support calls from several threads.
    #[error("this MPI library does not support MPI_THREAD_MULTIPLE, which background operations need")]
    NoThreads,
    /// The launcher started a different number of ranks than requested.
    #[error(
        "{expected} ranks were requested, but MPI has {found}; start the program with `mpirun -np {expected}` (or srun) of the same MPI \
         library that it was built with"
    )]
    WorldSize {
        /// Requested ranks.
        expected: usize,
        /// Ranks in the world.
        found: usize,
    },
    /// The library reported an error.
    #[error("MPI reported: {0}")]
    Library(String),
}

impl From<RawError> for MpiInitError {
    fn from(error: RawError) -> Self {
        Self::Library(error.0)
    }
}

/// This process's place in the MPI world. MPI is finalized when this, all communicators and all
/// requests are dropped, which must happen on the thread that called [`init`](Self::init).
#[derive(Debug)]
pub struct MpiWorld {
    communicator: Group,
    world: Arc<World>,
}

impl MpiWorld {
    /// Starts MPI. All processes of the job call this.
    ///
    /// # Errors
    /// If MPI is already initialized, cannot be called from several threads, or has a different
    /// size than expected.
    pub fn init(options: MpiOptions) -> Result<Self, MpiInitError> {
        let environment = match Environment::start()? {
            Started::Yes(environment) => environment,
            Started::Already => return Err(MpiInitError::Already),
            Started::NoThreads(environment) => {
                environment.finish();
                return Err(MpiInitError::NoThreads);
            }
        };
        let world = Arc::new(World::new(environment, options.timeout));
        let raw = RawComm::world()?;
        let (rank, found) = (raw.rank()?, raw.size()?);
        let communicator: Group = Arc::new(MpiCommunicator::new(raw, Arc::clone(&world), "world")?);
        if let Some(expected) = options.expected_size.filter(|expected| *expected != found) {
            return Err(MpiInitError::WorldSize { expected, found });
        }
        abort_on_panic(rank);
        Ok(Self { communicator, world })
    }

    /// Operation that this rank waits for, to explain the end of a job.
    pub fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.world))
    }

    /// All ranks.
    pub fn communicator(&self) -> Group {
        Arc::clone(&self.communicator)
    }
}

/// Shows the operations in which a rank waits, from any thread. Holds a weak reference to the
/// world.
#[derive(Clone, Debug)]
pub struct Watch(Weak<World>);

impl Watch {
    /// The operations that have waited for other ranks for a moment, the first one first.
    pub fn waiting(&self) -> Vec<Waiting> {
        self.0.upgrade().map_or_else(Vec::new, |world| world.waiting())
    }
}

/// Other ranks would wait for a rank that unwinds.
fn abort_on_panic(rank: usize) {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        // A communication error that unwinds through code that cannot return errors: the rank will
        // report it and end.
        if info.payload().is::<CommError>() {
            return;
        }
        previous(info);
        eprintln!("rank {rank} panicked; ending the job with exit code {PANIC_EXIT_CODE}");
        raw::abort_job(PANIC_EXIT_CODE);
    }));
}

/// One rank of a group of MPI processes.
///
/// Dropping it waits for its non-blocking collectives.
pub struct MpiCommunicator {
    member: Member,
    blocking: Mutex<Lane>,
    background: Background<Lane>,
}

impl MpiCommunicator {
    /// All ranks of the group call this together.
    fn new(raw: RawComm, world: Arc<World>, name: &str) -> Result<Self, RawError> {
        let rank = raw.rank()?;
        let background = raw.duplicate()?;
        let world_ranks: Arc<[usize]> = raw.world_ranks()?.into();
        let member = |raw| Member {
            comm: Arc::new(Comm::new(raw, Arc::clone(&world))),
            rank,
            world_ranks: Arc::clone(&world_ranks),
            name: name.into(),
        };
        let (member, background) = (member(raw), member(background));
        Ok(Self {
            blocking: Mutex::new(Lane { member: member.clone() }),
            background: Background::new(Lane { member: background }),
            member,
        })
    }

    fn message(&self, kind: OpKind, buffer: (DType, usize), peer: usize, tag: u32) -> Result<Signature, CommError> {
        let signature = self.member.rank_context().message(kind, buffer, peer, tag)?;
        let bytes = buffer.0.size().saturating_mul(buffer.1);
        if bytes > i32::MAX as usize {
            let kind = CommErrorKind::InvalidArgument {
                what: "size of a message in bytes",
                expected: format!("at most {}", i32::MAX),
                found: bytes.to_string(),
            };
            return Err(self.member.rank_context().error(&signature, kind));
        }
        Ok(signature)
    }

    fn start_message_out(&self, data: HostBuffer, to: usize, tag: u32) -> Result<Message, CommError> {
        let signature = self.message(OpKind::Send, (data.dtype(), data.len()), to, tag)?;
        Message::send(self.member.clone(), signature, data, to, tag)
    }

    fn start_message_in(&self, (dtype, len): (DType, usize), from: usize, tag: u32) -> Result<Message, CommError> {
        let signature = self.message(OpKind::Recv, (dtype, len), from, tag)?;
        let place = HostBuffer::zeros(dtype, len);
        Message::receive(self.member.clone(), signature, place, from, tag)
    }
}

impl Drop for MpiCommunicator {
    fn drop(&mut self) {
        self.background.finish();
    }
}

impl std::fmt::Debug for MpiCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MpiCommunicator({} {}/{})", self.name(), self.rank(), self.size())
    }
}

/// A color or key in MPI's type.
fn as_c_int(member: &Member, what: &'static str, value: usize) -> Result<i32, CommError> {
    i32::try_from(value).map_err(|_| {
        let kind = CommErrorKind::InvalidArgument {
            what,
            expected: format!("at most {}", i32::MAX),
            found: value.to_string(),
        };
        member.rank_context().error(&Signature::bare(OpKind::Split), kind)
    })
}

impl Communicator for MpiCommunicator {
    delegate_to_lanes!(member: Member);

    fn timeout(&self) -> Duration {
        self.member.world().timeout()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.member.world().set_timeout(timeout);
    }

    fn send(&self, data: Buffer<'_>, to: usize, tag: u32) -> Result<(), CommError> {
        self.start_message_out(data.into(), to, tag)?.finish().map(drop)
    }

    fn recv(&self, mut data: BufferMut<'_>, from: usize, tag: u32) -> Result<(), CommError> {
        let arrived = self.start_message_in((data.dtype(), data.len()), from, tag)?.finish()?;
        data.copy_from(arrived.view());
        Ok(())
    }

    fn split(&self, color: Option<usize>, key: usize, name: &str) -> Result<Option<Group>, CommError> {
        let signature = Signature::bare(OpKind::Split);
        let color = color.map(|color| as_c_int(&self.member, "colour", color)).transpose()?;
        let key = as_c_int(&self.member, "key", key)?;
        let mut lane = lock(&self.blocking);
        lane.agree(&signature)?;
        let library = |error| self.member.library(&signature, error);
        let Some(mut raw) = self.member.raw().split(color, key).map_err(library)? else { return Ok(None) };
        if raw.size().map_err(library)? == 1 {
            raw.free();
            return Ok(Some(Arc::new(SingleCommunicator::from_world_rank(name, self.member.world_rank()))));
        }
        let world = Arc::clone(&self.member.comm.world);
        let made = Self::new(raw, world, name).map_err(library)?;
        Ok(Some(Arc::new(made)))
    }

    fn start_send(&self, data: HostBuffer, to: usize, tag: u32) -> Result<Request, CommError> {
        self.start_message_out(data, to, tag).map(Request::new)
    }

    fn start_recv(&self, dtype: DType, len: usize, from: usize, tag: u32) -> Result<Request, CommError> {
        self.start_message_in((dtype, len), from, tag).map(Request::new)
    }
}
