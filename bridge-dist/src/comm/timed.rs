//! A communicator that measures how long a rank is in its calls, which is mostly waiting for other
//! ranks, and forwards them to another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::call_log::{CallLog, CallState};
use super::layer::{Call, Layer};
use super::request::Pending;
use super::{CommError, Communicator, Group, Request};

/// Time that a rank has spent in calls of its communicators so far. Clones share the clock.
#[derive(Clone, Debug, Default)]
pub struct CallClock {
    nanoseconds: Arc<AtomicU64>,
    log: Arc<CallLog>,
}

impl CallClock {
    /// Log of the calls.
    pub fn log(&self) -> &Arc<CallLog> {
        &self.log
    }

    /// The time in all calls so far.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    fn time<T>(&self, call: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let result = call();
        // Five centuries of waiting fit.
        self.nanoseconds.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }
}

/// Times the calls of a rank on a group, and on all groups split from it. Non-blocking operations
/// count while they are started and waited for.
#[derive(Debug)]
pub struct TimedCommunicator {
    inner: Group,
    clock: CallClock,
}

impl TimedCommunicator {
    /// Wraps a group. The time in its calls and those of its sub-groups is added to `clock`.
    pub fn new(inner: Group, clock: CallClock) -> Self {
        Self { inner, clock }
    }
}

/// A request whose wait is timed.
struct Timed<T> {
    request: Request<T>,
    clock: CallClock,
    /// Number of the call in the log.
    id: Option<u64>,
}

impl<T: Send + 'static> Pending<T> for Timed<T> {
    fn test(&mut self) -> Result<bool, CommError> {
        self.request.test()
    }

    fn wait(self: Box<Self>) -> Result<T, CommError> {
        let Self { request, clock, id } = *self;
        let waiting = Instant::now();
        let result = clock.time(|| request.wait());
        clock.log.ends(id, Some(waiting), state(&result));
        result
    }
}

impl Layer for TimedCommunicator {
    fn inner(&self) -> &dyn Communicator {
        &*self.inner
    }

    fn over(&self, inner: Group) -> Group {
        Arc::new(Self { inner, clock: self.clock.clone() })
    }

    fn blocking<T>(&self, call: &Call, run: impl FnOnce() -> Result<T, CommError>) -> Result<T, CommError> {
        let id = self.clock.log.begins(call, &*self.inner, false);
        let result = self.clock.time(run);
        self.clock.log.ends(id, None, state(&result));
        result
    }

    fn started<T: Send + 'static>(
        &self,
        call: &Call,
        start: impl FnOnce() -> Result<Request<T>, CommError>,
    ) -> Result<Request<T>, CommError> {
        let id = self.clock.log.begins(call, &*self.inner, true);
        let request = self.clock.time(start).inspect_err(|_| self.clock.log.ends(id, None, CallState::Failed))?;
        Ok(Request::new(Timed { request, clock: self.clock.clone(), id }))
    }
}

fn state<T>(result: &Result<T, CommError>) -> CallState {
    if result.is_ok() { CallState::Done } else { CallState::Failed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::ReduceOp;
    use crate::comm::call_log::Stacks;
    use crate::comm::thread::run_ranks;

    #[test]
    fn calls_are_kept_while_that_is_asked_for() {
        let logs = run_ranks(2, Duration::from_secs(60), |world| {
            let clock = CallClock::default();
            let timed = TimedCommunicator::new(world, clock.clone());
            timed.barrier()?;
            clock.log().keep_last(2, Stacks::Taken);
            for elements in [3, 5, 7] {
                timed.all_reduce((&mut vec![1.0_f32; elements]).into(), ReduceOp::Sum)?;
            }
            let request = timed.start_all_gather(vec![1.0_f32; 11].into())?;
            let active = clock.log().calls();
            request.wait()?;
            let last = clock.log().calls();
            clock.log().keep_all();
            timed.barrier()?;
            let all = clock.log().calls();
            clock.log().keep_last(0, Stacks::Left);
            clock.log().keep_all_no_more();
            assert!(clock.log().calls().is_empty());
            Ok::<_, CommError>((active, last, all))
        })
        .unwrap();
        for (active, last, all) in logs {
            assert_eq!(active.iter().map(|call| (call.sequence, call.bytes)).collect::<Vec<_>>(), [(2, 28), (3, 44)]);
            assert_eq!(active[1].state, CallState::Active);
            assert!(active[1].stack.as_ref().is_some_and(|stack| stack.contains("start_all_gather")), "{active:?}");
            assert_eq!((last[0].state, last[1].state), (CallState::Done, CallState::Done));
            assert!(last[1].is_background && last[1].waited.is_some() && last[1].ended.is_some());
            assert_eq!((all.len(), &*all[2].ranks), (3, &[0, 1][..]));
        }
    }

    /// Times in calls of a rank that waits for another one, and of that one.
    fn times_of_one_who_waits_and_one_who_works(work: Duration) -> Vec<Duration> {
        run_ranks(2, Duration::from_secs(60), |world| {
            let (rank, clock) = (world.rank(), CallClock::default());
            let timed = TimedCommunicator::new(world, clock.clone());
            let half = timed.split(Some(0), rank, "both")?.expect("a group");
            let pause = || {
                if rank == 1 {
                    std::thread::sleep(work)
                }
            };
            pause();
            timed.all_reduce((&mut vec![1.0_f32; 8]).into(), ReduceOp::Sum)?;
            let request = half.start_all_reduce(vec![1.0_f32; 8].into(), ReduceOp::Sum)?;
            // No rank is in a call while the operation makes progress.
            std::thread::sleep(work);
            let sum = request.wait()?.into_vec::<f32>().expect("float32");
            assert_eq!(sum, vec![2.0; 8]);
            pause();
            half.barrier()?;
            Ok::<_, CommError>(clock.total())
        })
        .unwrap()
    }

    #[test]
    fn who_waits_is_in_calls_and_who_works_is_not() {
        const WORK: Duration = Duration::from_millis(80);
        let times: Vec<_> = (0..5).map(|_| times_of_one_who_waits_and_one_who_works(WORK)).collect();
        // A busy machine may hold up either of them, but not each time.
        assert!(times.iter().any(|times| times[0] >= WORK * 3 / 2 && times[1] < WORK), "{times:?}");
    }
}
