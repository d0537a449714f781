//! A background thread that runs one rank's non-blocking collectives of one group in the order they were started.
//!
//! The collectives proper are the blocking ones of an implementation, run on a lane (or communicator) of their own;
//! so they move while the rank computes, and they never interleave with blocking collectives of the same group.

use std::sync::mpsc;
use std::thread;

use super::buffer::HostBuffer;
use super::error::{CommError, CommErrorKind};
use super::request::{Pending, Request};

type Outcome = Result<HostBuffer, CommError>;
type Job<S> = Box<dyn FnOnce(&mut S) -> Outcome + Send>;

/// The thread, and the queue to it. Dropping it lets the thread finish its queue and end.
pub(crate) struct Worker<S> {
    queue: mpsc::Sender<(Job<S>, mpsc::Sender<Outcome>)>,
    /// Joined by implementations whose resources must not outlive their owner.
    #[cfg_attr(not(any(feature = "mpi", feature = "nccl")), allow(dead_code))]
    thread: thread::JoinHandle<()>,
}

impl<S: Send + 'static> Worker<S> {
    /// Starts the thread, which owns `state`, the implementation's lane.
    pub fn spawn(name: String, mut state: S) -> std::io::Result<Self> {
        let (queue, jobs) = mpsc::channel::<(Job<S>, mpsc::Sender<Outcome>)>();
        let thread = thread::Builder::new().name(name).spawn(move || {
            for (job, reply) in jobs {
                // Nobody listens when the request was dropped; the operation was still needed by other ranks.
                let _ = reply.send(job(&mut state));
            }
        })?;
        Ok(Self { queue, thread })
    }

    /// Runs `job` after those submitted before. `lost` is the error if the thread has died.
    pub fn submit(
        &self,
        job: impl FnOnce(&mut S) -> Outcome + Send + 'static,
        lost: impl FnOnce(CommErrorKind) -> CommError,
    ) -> Result<Request, CommError> {
        let lost = lost(CommErrorKind::Transport {
            library: "the background thread",
            message: "it ended before the operation was complete".to_owned(),
        });
        let (reply, outcome) = mpsc::channel();
        match self.queue.send((Box::new(job), reply)) {
            Ok(()) => Ok(Request::new(InBackground { outcome, arrived: None, lost })),
            Err(_) => Err(lost),
        }
    }

    /// Waits until all jobs are done and the thread has ended.
    #[cfg_attr(not(any(feature = "mpi", feature = "nccl")), allow(dead_code))]
    pub fn finish(self) {
        drop(self.queue);
        // A panic of the thread has been reported by the request it was working on.
        let _ = self.thread.join();
    }
}

struct InBackground {
    outcome: mpsc::Receiver<Outcome>,
    arrived: Option<Outcome>,
    lost: CommError,
}

impl Pending for InBackground {
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

    fn wait(self: Box<Self>) -> Outcome {
        match self.arrived {
            Some(outcome) => outcome,
            None => self.outcome.recv().unwrap_or(Err(self.lost)),
        }
    }
}
