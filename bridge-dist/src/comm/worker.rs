//! A background thread that runs one rank's non-blocking collectives of one group in the order they
//! were started.
//!
//! It runs the blocking collectives of an implementation on a separate lane (or communicator), so
//! that data moves while the rank computes, and never interleaves with blocking collectives of the
//! same group. An implementation has a [`Background`], gives it [`Collectives`], and is a
//! [`GroupMember`].

use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;

use super::buffer::{Buffer, BufferMut, HostBuffer, ReduceOp};
use super::error::{CommError, CommErrorKind};
use super::lock::lock;
use super::request::{Pending, Request};
use super::signature::{OpKind, RankContext, Signature};

type Outcome<T = HostBuffer> = Result<T, CommError>;
type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// The blocking collectives that have a non-blocking form.
pub trait Collectives: Send + 'static {
    /// Reduces `data` in place.
    ///
    /// # Errors
    /// Errors of the implementation.
    fn all_reduce(&mut self, data: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError>;
    /// Reduces `input` and returns this rank's part.
    ///
    /// # Errors
    /// Errors of the implementation.
    fn reduce_scatter(&mut self, input: Buffer<'_>, output: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError>;
    /// Gathers the parts of all ranks.
    ///
    /// # Errors
    /// Errors of the implementation.
    fn all_gather(&mut self, input: Buffer<'_>, output: BufferMut<'_>) -> Result<(), CommError>;
}

/// A rank as a member of a group.
pub trait GroupMember {
    /// Rank and group, for errors.
    fn rank_context(&self) -> RankContext<'_>;
    /// Error that failed the world, if it has failed.
    fn failure(&self) -> Option<Arc<CommError>>;
    /// Fails the world with this error, and returns it.
    fn fail(&self, signature: &Signature, kind: CommErrorKind) -> CommError;

    /// An error if the world has failed.
    fn check_world(&self, signature: &Signature) -> Result<(), CommError> {
        match self.failure() {
            Some(cause) => Err(self.rank_context().error(signature, CommErrorKind::Aborted { cause })),
            None => Ok(()),
        }
    }
}

/// The methods of a [`Communicator`](super::Communicator) that is a member of a group, with a lane
/// for blocking collectives behind a lock, and another one in the background.
#[macro_export]
macro_rules! delegate_to_lanes {
    ($member:ident: $Member:ty) => {
        fn rank(&self) -> usize {
            self.$member.rank_context().rank
        }

        fn size(&self) -> usize {
            self.$member.rank_context().world_ranks.len()
        }

        fn name(&self) -> &str {
            self.$member.rank_context().group
        }

        fn world_ranks(&self) -> Arc<[usize]> {
            Arc::clone(self.$member.rank_context().world_ranks)
        }

        fn all_reduce(&self, data: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
            lock(&self.blocking).all_reduce(data, op)
        }

        fn reduce_scatter(&self, input: Buffer<'_>, output: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
            lock(&self.blocking).reduce_scatter(input, output, op)
        }

        fn all_gather(&self, input: Buffer<'_>, output: BufferMut<'_>) -> Result<(), CommError> {
            lock(&self.blocking).all_gather(input, output)
        }

        fn broadcast(&self, data: BufferMut<'_>, root: usize) -> Result<(), CommError> {
            lock(&self.blocking).broadcast(data, root)
        }

        fn all_to_all(&self, input: Buffer<'_>, output: BufferMut<'_>) -> Result<(), CommError> {
            lock(&self.blocking).all_to_all(input, output)
        }

        fn all_to_all_uneven(&self, exchange: UnevenExchange<'_>) -> Result<(), CommError> {
            lock(&self.blocking).all_to_all_uneven(exchange)
        }

        fn barrier(&self) -> Result<(), CommError> {
            lock(&self.blocking).barrier()
        }

        fn start_all_reduce(&self, data: HostBuffer, op: ReduceOp) -> Result<Request, CommError> {
            self.background.all_reduce::<$Member>(&self.$member, data, op)
        }

        fn start_reduce_scatter(&self, input: HostBuffer, op: ReduceOp) -> Result<Request, CommError> {
            self.background.reduce_scatter::<$Member>(&self.$member, input, op)
        }

        fn start_all_gather(&self, input: HostBuffer) -> Result<Request, CommError> {
            self.background.all_gather::<$Member>(&self.$member, input)
        }
    };
}

pub use crate::delegate_to_lanes;

/// The non-blocking collectives of one rank of a group. The thread starts with the first of them;
/// many groups never use any.
pub struct Background<L> {
    /// The lane, until the thread takes it. The lock serializes the start and so the order of the
    /// first operations.
    idle: Mutex<Option<L>>,
    worker: OnceLock<Worker<L>>,
}

impl<L: Collectives> Background<L> {
    /// A worker that will run on `lane`, once it has an operation.
    pub fn new(lane: L) -> Self {
        Self { idle: Mutex::new(Some(lane)), worker: OnceLock::new() }
    }

    /// Starts an all-reduce.
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    pub fn all_reduce<P: GroupMember>(
        &self,
        member: &P,
        mut data: HostBuffer,
        op: ReduceOp,
    ) -> Result<Request, CommError> {
        let signature = Signature::reducing(OpKind::AllReduce, data.dtype(), data.len(), op);
        member.rank_context().check_reduce(&signature)?;
        self.start(member, &signature, move |lane| {
            lane.all_reduce(data.view_mut(), op)?;
            Ok(data)
        })
    }

    /// Starts a reduce-scatter.
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    pub fn reduce_scatter<P: GroupMember>(
        &self,
        member: &P,
        input: HostBuffer,
        op: ReduceOp,
    ) -> Result<Request, CommError> {
        let context = member.rank_context();
        let mut output = HostBuffer::zeros(input.dtype(), input.len() / context.world_ranks.len());
        let signature = context.reduce_scatter(&input.view(), &output.view_mut(), op)?;
        self.start(member, &signature, move |lane| {
            lane.reduce_scatter(input.view(), output.view_mut(), op)?;
            Ok(output)
        })
    }

    /// Starts an all-gather.
    ///
    /// # Errors
    /// Errors found before anything is sent; others come from the request.
    pub fn all_gather<P: GroupMember>(&self, member: &P, input: HostBuffer) -> Result<Request, CommError> {
        let signature = Signature::data(OpKind::AllGather, input.dtype(), input.len());
        let size = member.rank_context().world_ranks.len();
        self.start(member, &signature, move |lane| {
            let mut output = HostBuffer::zeros(input.dtype(), input.len() * size);
            lane.all_gather(input.view(), output.view_mut())?;
            Ok(output)
        })
    }

    /// Runs `job` on the thread, after the jobs that were started before.
    pub fn start<T: Send + 'static>(
        &self,
        member: &impl GroupMember,
        signature: &Signature,
        job: impl FnOnce(&mut L) -> Outcome<T> + Send + 'static,
    ) -> Result<Request<T>, CommError> {
        member.check_world(signature)?;
        let worker = self.worker(member, signature)?;
        worker.submit(job, |kind| member.rank_context().error(signature, kind))
    }

    fn worker(&self, member: &impl GroupMember, signature: &Signature) -> Result<&Worker<L>, CommError> {
        let mut idle = lock(&self.idle);
        let transport = |library, message| CommErrorKind::Transport { library, message };
        if let Some(lane) = idle.take() {
            let RankContext { rank, group, .. } = member.rank_context();
            let worker = Worker::spawn(format!("{group}-{rank}"), lane).map_err(|error| {
                let library = "the operating system, starting a background thread,";
                member.fail(signature, transport(library, error.to_string()))
            })?;
            return Ok(self.worker.get_or_init(|| worker));
        }
        self.worker.get().ok_or_else(|| {
            let message = "it could not be started".to_owned();
            member.rank_context().error(signature, transport("the background thread", message))
        })
    }

    /// Waits until everything that was started is done, and the thread has ended.
    pub fn finish(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.finish();
        }
    }
}

/// The thread, and the queue to it. Dropping it lets the thread finish its queue and end.
pub struct Worker<S> {
    queue: mpsc::Sender<Job<S>>,
    /// Joined by implementations whose resources must not outlive their owner.
    thread: thread::JoinHandle<()>,
}

impl<S: Send + 'static> Worker<S> {
    /// Starts the thread, which owns `state`, the implementation's lane.
    pub fn spawn(name: String, mut state: S) -> std::io::Result<Self> {
        let (queue, jobs) = mpsc::channel::<Job<S>>();
        let thread = thread::Builder::new().name(name).spawn(move || {
            for job in jobs {
                job(&mut state);
            }
        })?;
        Ok(Self { queue, thread })
    }

    /// Runs `job` after those submitted before. `lost` is the error if the thread has died.
    pub fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut S) -> Outcome<T> + Send + 'static,
        lost: impl FnOnce(CommErrorKind) -> CommError,
    ) -> Result<Request<T>, CommError> {
        let lost = lost(CommErrorKind::Transport {
            library: "the background thread",
            message: "it ended before the operation was complete".to_owned(),
        });
        let (reply, outcome) = mpsc::channel();
        let job = move |state: &mut S| {
            // If the request was dropped, the result is dropped; other ranks still need the
            // operation.
            let _ = reply.send(job(state));
        };
        match self.queue.send(Box::new(job)) {
            Ok(()) => Ok(Request::new(InBackground { outcome, arrived: None, lost })),
            Err(_) => Err(lost),
        }
    }

    /// Waits until all jobs are done and the thread has ended.
    pub fn finish(self) {
        drop(self.queue);
        // A panic of the thread has been reported by the request it was working on.
        let _ = self.thread.join();
    }
}

struct InBackground<T> {
    outcome: mpsc::Receiver<Outcome<T>>,
    arrived: Option<Outcome<T>>,
    lost: CommError,
}

impl<T: Send> Pending<T> for InBackground<T> {
    fn test(&mut self) -> Result<bool, CommError> {
        if self.arrived.is_none() {
            self.arrived = match self.outcome.try_recv() {
                Ok(outcome) => Some(outcome),
                Err(mpsc::TryRecvError::Empty) => None,
                Err(mpsc::TryRecvError::Disconnected) => Some(Err(self.lost.clone())),
            };
        }
        match &self.arrived {
            Some(Err(error)) => Err(error.clone()),
            arrived => Ok(arrived.is_some()),
        }
    }

    fn wait(self: Box<Self>) -> Outcome<T> {
        match self.arrived {
            Some(outcome) => outcome,
            None => self.outcome.recv().unwrap_or(Err(self.lost)),
        }
    }
}
