//! State that all groups of one world of threads share: the time limit, the first failure, and each
//! rank's last operation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::comm::error::CommError;
use crate::comm::lock::lock;
use crate::comm::signature::Signature;
use crate::comm::time_limit::TimeLimit;

/// Interval at which a waiting rank checks for a failure of the world. Data never waits for this:
/// arrivals wake waiters.
pub(super) const POLL: Duration = Duration::from_millis(10);

/// Component that reports a rank's panic to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Supervision {
    /// The launcher, which knows the message.
    Launcher,
    /// The communicator, when it is dropped by unwinding.
    Communicator,
}

/// Devices that hold the ranks' tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    /// In host memory, or each on a device of its own.
    Apart,
    /// All on one device, so that ranks can read each other's memory of it.
    Shared,
}

#[derive(Debug)]
pub(super) struct World {
    time_limit: TimeLimit,
    pub supervision: Supervision,
    pub devices: Devices,
    failed: AtomicBool,
    failure: Mutex<Option<Arc<CommError>>>,
    activities: Vec<Mutex<Option<Activity>>>,
}

#[derive(Debug, Clone)]
struct Activity {
    signature: Signature,
    group: Arc<str>,
}

impl World {
    pub fn new(size: usize, timeout: Duration, supervision: Supervision, devices: Devices) -> Self {
        Self {
            time_limit: TimeLimit::new(timeout),
            supervision,
            devices,
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            activities: (0..size).map(|_| Mutex::new(None)).collect(),
        }
    }

    /// Time limit of operations that wait for other ranks.
    pub fn timeout(&self) -> Duration {
        self.time_limit.get()
    }

    pub fn set_timeout(&self, timeout: Duration) {
        self.time_limit.set(timeout);
    }

    /// Records a failure; only the first one counts.
    pub fn fail(&self, error: &CommError) {
        lock(&self.failure).get_or_insert_with(|| Arc::new(error.clone()));
        self.failed.store(true, Ordering::Release);
    }

    pub fn failure(&self) -> Option<Arc<CommError>> {
        if self.failed.load(Ordering::Acquire) { lock(&self.failure).clone() } else { None }
    }

    /// Records the operation that a rank (of the world) is about to start.
    pub fn note(&self, rank: usize, signature: Signature, group: &Arc<str>) {
        *lock(&self.activities[rank]) = Some(Activity { signature, group: Arc::clone(group) });
    }

    /// The last known operation of a rank (of the world).
    pub fn last_operation(&self, rank: usize) -> String {
        match &*lock(&self.activities[rank]) {
            Some(activity) => format!("{} of group `{}`", activity.signature, activity.group),
            None => "no operation".to_owned(),
        }
    }
}
