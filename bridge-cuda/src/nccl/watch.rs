//! Watchdog thread of operations in flight. It keeps their memory until they are complete. If an
//! operation does not complete, it aborts the communicator and fails the rank's world, so that
//! neither the device nor its readers hang.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bridge_kernels::foreign::{Event, ForeignError, Pinned};

use super::carrier::CarrierError;
use super::cuda::HEALTH_CHECK;
use super::member::Member;
use super::patience::wait_for;
use super::raw::{GOODBYE, RawComm};
use bridge_dist::comm::CommErrorKind;
use bridge_dist::comm::transport::{GroupMember, Signature, lock};

/// An operation on the device.
pub(super) struct InFlight {
    pub signature: Signature,
    /// Passed when the operation may begin.
    pub ready: Event,
    /// Passed when it is over.
    pub done: Arc<Event>,
    /// Memory that the operation reads and writes, which is held until it ends.
    pub _memory: Pinned,
    /// Time limit of the operation once it may begin.
    pub timeout: Duration,
}

/// The queue to the thread. Dropping it waits until all is over, for as long as an operation may
/// take; then the communicator is aborted, and a thread whose device does not come free is left
/// alone with the memory that may still be written.
pub(super) struct Watch {
    queue: Option<mpsc::Sender<InFlight>>,
    thread: Option<thread::JoinHandle<()>>,
    raw: Arc<Mutex<RawComm>>,
    /// The longest that an operation may take.
    longest: Cell<Duration>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // The thread itself ends operations that have begun and take too long. This limit is
            // for operations that cannot begin, and for devices that hang.
            let limit = self.longest.get() + GOODBYE;
            wait_for(thread, limit, || lock(&self.raw).abort(), GOODBYE);
        }
    }
}

impl Watch {
    /// Starts the thread for one communicator.
    pub fn start(member: Member, raw: Arc<Mutex<RawComm>>) -> Result<Self, CarrierError> {
        let (queue, arriving) = mpsc::channel();
        let name = format!("{}-{}-watch", member.name, member.rank);
        let own = Arc::clone(&raw);
        let started = thread::Builder::new().name(name).spawn(move || watch(&member, &own, &arriving));
        let thread = started.map_err(|error| {
            CarrierError::library("the operating system, starting a background thread,", error.to_string())
        })?;
        Ok(Self { queue: Some(queue), thread: Some(thread), raw, longest: Cell::new(Duration::ZERO) })
    }

    /// Watches an operation until it is complete. Operations of one communicator complete in the
    /// order of these calls.
    pub fn see(&self, operation: InFlight) -> Result<(), CarrierError> {
        self.longest.set(self.longest.get().max(operation.timeout));
        let sent = self.queue.as_ref().map(|queue| queue.send(operation));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(CarrierError::library("the background thread", "it ended before the operation was complete")),
        }
    }
}

fn watch(member: &Member, raw: &Mutex<RawComm>, arriving: &mpsc::Receiver<InFlight>) {
    let mut under_way = VecDeque::new();
    let mut oldest_since = None;
    loop {
        match under_way.front() {
            None => match arriving.recv() {
                Ok(operation) => under_way.push_back(operation),
                Err(_) => return,
            },
            Some(oldest) => match state(oldest, member, raw, &mut oldest_since) {
                Ok(true) => {
                    under_way.pop_front();
                    oldest_since = None;
                }
                Ok(false) => thread::sleep(Duration::from_millis(1)),
                Err(kind) => {
                    lock(raw).abort();
                    member.fail(&oldest.signature, kind);
                    // The device finishes aborted operations; afterwards their memory is not used
                    // any more.
                    under_way.retain(|operation| matches!(operation.done.has_passed(), Ok(false)));
                    thread::sleep(HEALTH_CHECK);
                }
            },
        }
        under_way.extend(arriving.try_iter());
    }
}

/// True if an operation is over; an error if it cannot complete.
fn state(
    operation: &InFlight,
    member: &Member,
    raw: &Mutex<RawComm>,
    since: &mut Option<(Instant, Instant)>,
) -> Result<bool, CommErrorKind> {
    let failed = |error: ForeignError| CommErrorKind::Transport { library: "CUDA", message: error.to_string() };
    if operation.done.has_passed().map_err(failed)? {
        return Ok(true);
    }
    if let Some(cause) = member.world.failure() {
        return Err(CommErrorKind::Aborted { cause });
    }
    if !operation.ready.has_passed().map_err(failed)? {
        return Ok(false);
    }
    let now = Instant::now();
    let (begun, checked) = since.get_or_insert((now, now));
    if now.duration_since(*begun) >= operation.timeout {
        let message = format!("no data moved for {:?} after all ranks had agreed", operation.timeout);
        return Err(CommErrorKind::Transport { library: "NCCL", message });
    }
    if now.duration_since(*checked) >= HEALTH_CHECK {
        *checked = now;
        // If the lock is held, the holder is calling NCCL, and notices failures itself.
        if let Ok(mut raw) = raw.try_lock() {
            raw.check_health().map_err(|error| match error {
                CarrierError::Failed(kind) => kind,
                CarrierError::Stalled(waited) => {
                    CommErrorKind::Transport { library: "NCCL", message: format!("no answer for {waited:?}") }
                }
            })?;
        }
    }
    Ok(false)
}
