//! Saving in the background, one checkpoint at a time. How a checkpoint is written belongs to the
//! writer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use bridge_dist::comm::thread::panic_message;

use super::error::CheckpointError;
use super::sharded::ShardedWriter;
use super::snapshot::Snapshot;
use super::writer::SaveReport;

type Outcome = Result<SaveReport, CheckpointError>;
type Task = Box<dyn FnOnce(&ShardedWriter) -> Outcome + Send>;

/// One long-lived thread that writes checkpoints while training continues. At most one save is in
/// flight; submitting another waits for it. Dropping the saver waits as well, so that the process
/// does not end in the middle of a save.
///
/// A background error is returned by the next call. Call [`finish`](Self::finish) before the saver
/// goes out of scope: otherwise its error is only printed on stderr.
#[derive(Debug)]
pub struct AsyncSaver {
    /// `None` once the thread has been told to end.
    tasks: Option<Sender<Task>>,
    outcomes: Receiver<Outcome>,
    in_flight: Option<u64>,
    thread: Option<JoinHandle<()>>,
}

impl AsyncSaver {
    /// Starts the thread that saves through `writer`.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub fn new(writer: ShardedWriter) -> Result<Self, CheckpointError> {
        let (tasks, inbox) = channel::<Task>();
        let (outbox, outcomes) = channel();
        let root = writer.root().to_owned();
        let work = move || {
            for task in inbox {
                if outbox.send(task(&writer)).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("checkpoint-saver".to_owned())
            .spawn(work)
            .map_err(CheckpointError::io("start a thread that saves to", &root))?;
        Ok(Self { tasks: Some(tasks), outcomes, in_flight: None, thread: Some(thread) })
    }

    /// Submits a snapshot, after waiting for the save in flight. Returns the report of that save,
    /// if it was not collected before.
    ///
    /// # Errors
    /// If the save in flight failed; `snapshot` is not saved then. Call [`finish`](Self::finish)
    /// first to handle the two separately.
    pub fn submit(&mut self, snapshot: Snapshot) -> Result<Option<SaveReport>, CheckpointError> {
        let iteration = snapshot.run.train_state.step;
        self.submit_task(iteration, move |writer| writer.save(&snapshot))
    }

    pub(super) fn submit_task(
        &mut self,
        iteration: u64,
        task: impl FnOnce(&ShardedWriter) -> Outcome + Send + 'static,
    ) -> Result<Option<SaveReport>, CheckpointError> {
        let earlier = self.finish()?;
        let guarded = move |writer: &ShardedWriter| {
            catch_unwind(AssertUnwindSafe(|| task(writer))).unwrap_or_else(|panic| {
                Err(CheckpointError::SaverPanicked { iteration, message: panic_message(&*panic) })
            })
        };
        let accepted = self.tasks.as_ref().is_some_and(|tasks| tasks.send(Box::new(guarded)).is_ok());
        if !accepted {
            return Err(thread_is_gone(iteration));
        }
        self.in_flight = Some(iteration);
        Ok(earlier)
    }

    /// Collects the outcome of a save that has ended; `None` if one is in progress, or if no save
    /// was started.
    ///
    /// # Errors
    /// If the save failed.
    pub fn poll(&mut self) -> Result<Option<SaveReport>, CheckpointError> {
        let Some(iteration) = self.in_flight else { return Ok(None) };
        let outcome = match self.outcomes.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return Ok(None),
            Err(TryRecvError::Disconnected) => Err(thread_is_gone(iteration)),
        };
        self.in_flight = None;
        outcome.map(Some)
    }

    /// Waits for the save in flight and collects its outcome; `None` without one.
    ///
    /// # Errors
    /// If the save failed.
    pub fn finish(&mut self) -> Result<Option<SaveReport>, CheckpointError> {
        let Some(iteration) = self.in_flight.take() else { return Ok(None) };
        self.outcomes.recv().unwrap_or_else(|_| Err(thread_is_gone(iteration))).map(Some)
    }
}

impl Drop for AsyncSaver {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            // A destructor cannot return an error, so this is the last chance to report it.
            eprintln!("a checkpoint was lost in the background: {error}");
        }
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // Panics of the thread have been caught and reported as outcomes.
            let _ = thread.join();
        }
    }
}

fn thread_is_gone(iteration: u64) -> CheckpointError {
    CheckpointError::SaverPanicked { iteration, message: "its thread has ended".to_owned() }
}
