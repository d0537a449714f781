//! A communicator behind an artificial link of limited rate: measures on one machine how much
//! communication is hidden behind computation.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::layer::{Call, Layer, Operation};
use super::lock::lock;
use super::request::{Pending, Request};
use super::{CommError, Communicator, Group};

/// The link of one rank: transfers of all its groups are serialized.
#[derive(Debug)]
struct Link {
    bytes_per_second: f64,
    state: Mutex<LinkState>,
}

#[derive(Debug)]
struct LinkState {
    free_at: Instant,
    busy: Duration,
}

impl Link {
    /// Puts a transfer on the link and returns when it will be complete.
    fn send(&self, bytes: f64) -> Instant {
        let time = Duration::from_secs_f64(bytes / self.bytes_per_second);
        let mut state = lock(&self.state);
        state.free_at = state.free_at.max(Instant::now()) + time;
        state.busy += time;
        state.free_at
    }
}

/// Longest delay that is expected when the system wakes a thread.
const LATE: Duration = Duration::from_micros(100);

fn sleep_until(when: Instant) {
    std::thread::sleep(when.saturating_duration_since(Instant::now() + LATE));
    while Instant::now() < when {
        std::thread::yield_now();
    }
}

/// Another communicator, limited to a rate.
///
/// The cost of a collective is that of a ring: of `n` bytes on `r` ranks, an all-reduce moves `2 n
/// (r - 1) / r` through each link, a reduce-scatter or all-gather half of that. Non-blocking
/// operations use the link while the rank computes. Groups made by [`split`](Communicator::split)
/// share the link of their rank.
#[derive(Debug)]
pub struct ThrottledCommunicator {
    inner: Group,
    link: Arc<Link>,
}

impl ThrottledCommunicator {
    /// Limits `inner` to `bytes_per_second`.
    ///
    /// # Panics
    /// If the rate is not positive.
    pub fn new(inner: Group, bytes_per_second: f64) -> Self {
        assert!(bytes_per_second > 0.0, "a link of {bytes_per_second} bytes per second moves nothing");
        let state = Mutex::new(LinkState { free_at: Instant::now(), busy: Duration::ZERO });
        Self { inner, link: Arc::new(Link { bytes_per_second, state }) }
    }

    /// Time that the link of this rank has been busy so far.
    pub fn busy(&self) -> Duration {
        lock(&self.link.state).busy
    }

    /// Bytes that a call moves through the link of this rank; `None` for a call that only waits for
    /// other links.
    fn bytes(&self, call: &Call) -> Option<f64> {
        let (bytes, ranks) = (call.bytes() as f64, self.inner.size() as f64);
        let ring = bytes * (ranks - 1.0) / ranks;
        match call.operation {
            Operation::AllReduce => Some(2.0 * ring),
            Operation::AllGather => Some(ranks * ring),
            Operation::ReduceScatter => Some(ring),
            Operation::AllToAll if call.is_even => Some(ring),
            Operation::AllToAll | Operation::Broadcast | Operation::Send => Some(bytes),
            Operation::Recv | Operation::Barrier => None,
        }
    }
}

/// A request that is complete only when the link has also moved its bytes.
struct Delayed<T> {
    request: Request<T>,
    until: Instant,
}

impl<T: Send + 'static> Pending<T> for Delayed<T> {
    fn test(&mut self) -> Result<bool, CommError> {
        Ok(self.request.test()? && Instant::now() >= self.until)
    }

    fn wait(self: Box<Self>) -> Result<T, CommError> {
        let result = self.request.wait()?;
        sleep_until(self.until);
        Ok(result)
    }
}

impl Layer for ThrottledCommunicator {
    fn inner(&self) -> &dyn Communicator {
        &*self.inner
    }

    fn over(&self, inner: Group) -> Group {
        Arc::new(Self { inner, link: Arc::clone(&self.link) })
    }

    fn blocking<T>(&self, call: &Call, run: impl FnOnce() -> Result<T, CommError>) -> Result<T, CommError> {
        if let Some(bytes) = self.bytes(call) {
            sleep_until(self.link.send(bytes));
        }
        run()
    }

    fn started<T: Send + 'static>(
        &self,
        call: &Call,
        start: impl FnOnce() -> Result<Request<T>, CommError>,
    ) -> Result<Request<T>, CommError> {
        let request = start()?;
        Ok(match self.bytes(call) {
            Some(bytes) => Request::new(Delayed { request, until: self.link.send(bytes) }),
            None => request,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::ReduceOp;
    use crate::comm::thread::run_ranks;

    #[test]
    fn transfers_take_the_time_of_a_ring_and_hide_behind_work() {
        let seconds = run_ranks(2, Duration::from_secs(60), |world| {
            let link = ThrottledCommunicator::new(world, 1e6);
            let started = Instant::now();
            let first = link.start_all_reduce(vec![1.0_f32; 7_500].into(), ReduceOp::Sum)?;
            let second = link.start_all_gather(vec![2.0_f32; 5_000].into())?;
            std::thread::sleep(Duration::from_millis(60));
            let sum = first.wait()?.into_vec::<f32>().expect("float32");
            let all = second.wait()?.into_vec::<f32>().expect("float32");
            assert!(sum.len() == 7_500 && sum.iter().all(|v| *v == 2.0));
            assert!(all.len() == 10_000 && all.iter().all(|v| *v == 2.0));
            assert_eq!(link.busy(), Duration::from_millis(50));
            let hidden = started.elapsed();
            link.all_reduce((&mut vec![0.0_f32; 10_000]).into(), ReduceOp::Sum)?;
            assert!(started.elapsed() - hidden >= Duration::from_millis(40));
            Ok::<_, CommError>(hidden.as_secs_f64())
        })
        .unwrap();
        assert!(seconds.iter().all(|seconds| *seconds >= 0.06), "{seconds:?}");
    }
}
