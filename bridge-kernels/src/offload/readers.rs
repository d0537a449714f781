//! The threads that read tensors to the host, and bring them back ahead of time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;

/// Threads: one tensor can be on its way while the memory of another is released.
pub const THREADS: usize = 2;
/// Tensors that wait for a thread.
const WAITING: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

/// Download threads, which end when the last sender of jobs is dropped.
pub(super) struct Readers(SyncSender<Job>);

impl Readers {
    /// Starts the threads. Panics if the system has no more threads.
    pub fn start() -> Self {
        let (sender, jobs) = sync_channel(WAITING);
        let jobs: Arc<Mutex<Receiver<Job>>> = Arc::new(Mutex::new(jobs));
        for _ in 0..THREADS {
            let jobs = Arc::clone(&jobs);
            let work = move || {
                while let Some(job) = next(&jobs) {
                    // The failure is reported where the tensor is requested.
                    drop(catch_unwind(AssertUnwindSafe(job)));
                }
            };
            thread::Builder::new().name("offload".into()).spawn(work).expect("the system has a thread more");
        }
        Self(sender)
    }

    /// Runs a job when its turn comes; waits while too many are before it.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        assert!(self.0.send(Box::new(job)).is_ok(), "threads end after the last sender");
    }

    /// Runs a job, unless too many are before it.
    pub fn try_run(&self, job: impl FnOnce() + Send + 'static) {
        // A full queue is not an error: the job is dropped.
        drop(self.0.try_send(Box::new(job)));
    }

    /// Waits for all jobs so far.
    pub fn settle(&self) {
        // The jobs of two callers, in turn, would each hold a thread and wait for the other's.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        // Jobs begin in their order: when each thread has come to the barrier, all earlier jobs are
        // done.
        let all = Arc::new(Barrier::new(THREADS + 1));
        for _ in 0..THREADS {
            let all = Arc::clone(&all);
            self.run(move || {
                all.wait();
            });
        }
        all.wait();
    }
}

fn next(jobs: &Mutex<Receiver<Job>>) -> Option<Job> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}
