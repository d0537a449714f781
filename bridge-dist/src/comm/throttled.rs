//! A communicator behind an artificial link of limited rate: measures on one machine how much communication is hidden behind computation.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::buffer::{Buffer, BufferMut, DType, HostBuffer, ReduceOp};
use super::error::CommError;
use super::request::{Pending, Request};
use super::signature::UnevenExchange;
use super::{Communicator, Group};

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
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.free_at = state.free_at.max(Instant::now()) + time;
        state.busy += time;
        state.free_at
    }

    fn wait_for(&self, bytes: f64) {
        sleep_until(self.send(bytes));
    }
}

/// How late the system may wake a thread.
const LATE: Duration = Duration::from_micros(100);

fn sleep_until(when: Instant) {
    std::thread::sleep(when.saturating_duration_since(Instant::now() + LATE));
    while Instant::now() < when {
        std::thread::yield_now();
    }
}

/// Another communicator, limited to a rate.
///
/// The cost of a collective is that of a ring: of `n` bytes on `r` ranks, an all-reduce moves `2 n (r - 1) / r` through each link, a
/// reduce-scatter or all-gather half of that. Non-blocking operations use the link while the rank computes. Groups made by
/// [`split`](Communicator::split) share the link of their rank.
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

    /// How long the link of this rank has been busy so far.
    pub fn busy(&self) -> Duration {
        self.link.state.lock().unwrap_or_else(PoisonError::into_inner).busy
    }

    /// Bytes that a ring moves for one pass over `bytes`.
    fn ring(&self, bytes: usize) -> f64 {
        let ranks = self.size() as f64;
        bytes as f64 * (ranks - 1.0) / ranks
    }

    fn delayed(&self, request: Request, bytes: f64) -> Request {
        Request::new(Delayed { request, until: self.link.send(bytes) })
    }
}

/// A request that is complete only when the link has also moved its bytes.
struct Delayed {
    request: Request,
    until: Instant,
}

impl Pending for Delayed {
    fn test(&mut self) -> Result<bool, CommError> {
        Ok(self.request.test()? && Instant::now() >= self.until)
    }

    fn wait(self: Box<Self>) -> Result<HostBuffer, CommError> {
        let result = self.request.wait()?;
        sleep_until(self.until);
        Ok(result)
    }
}

fn bytes_of(buffer: &HostBuffer) -> usize {
    buffer.len() * buffer.dtype().size()
}

impl Communicator for ThrottledCommunicator {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn world_ranks(&self) -> Arc<[usize]> {
        self.inner.world_ranks()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.inner.set_timeout(timeout);
    }

    fn all_reduce(&self, data: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        self.link.wait_for(2.0 * self.ring(data.view().bytes().len()));
        self.inner.all_reduce(data, op)
    }

    fn reduce_scatter(&self, input: Buffer<'_>, output: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        self.link.wait_for(self.ring(input.bytes().len()));
        self.inner.reduce_scatter(input, output, op)
    }

    fn all_gather(&self, input: Buffer<'_>, output: BufferMut<'_>) -> Result<(), CommError> {
        self.link.wait_for(self.ring(output.view().bytes().len()));
        self.inner.all_gather(input, output)
    }

    fn broadcast(&self, data: BufferMut<'_>, root: usize) -> Result<(), CommError> {
        self.link.wait_for(data.view().bytes().len() as f64);
        self.inner.broadcast(data, root)
    }

    fn all_to_all(&self, input: Buffer<'_>, output: BufferMut<'_>) -> Result<(), CommError> {
        self.link.wait_for(self.ring(input.bytes().len()));
        self.inner.all_to_all(input, output)
    }

    fn all_to_all_uneven(&self, exchange: UnevenExchange<'_>) -> Result<(), CommError> {
        self.link.wait_for(exchange.input.bytes().len() as f64);
        self.inner.all_to_all_uneven(exchange)
    }

    fn send(&self, data: Buffer<'_>, to: usize, tag: u32) -> Result<(), CommError> {
        self.link.wait_for(data.bytes().len() as f64);
        self.inner.send(data, to, tag)
    }

    fn recv(&self, data: BufferMut<'_>, from: usize, tag: u32) -> Result<(), CommError> {
        // The sender's link is the one that counts.
        self.inner.recv(data, from, tag)
    }

    fn barrier(&self) -> Result<(), CommError> {
        self.inner.barrier()
    }

    fn split(&self, color: Option<usize>, key: usize, name: &str) -> Result<Option<Group>, CommError> {
        let made = self.inner.split(color, key, name)?;
        Ok(made.map(|inner| Arc::new(Self { inner, link: Arc::clone(&self.link) }) as Group))
    }

    fn start_all_reduce(&self, data: HostBuffer, op: ReduceOp) -> Result<Request, CommError> {
        let bytes = 2.0 * self.ring(bytes_of(&data));
        Ok(self.delayed(self.inner.start_all_reduce(data, op)?, bytes))
    }

    fn start_reduce_scatter(&self, input: HostBuffer, op: ReduceOp) -> Result<Request, CommError> {
        let bytes = self.ring(bytes_of(&input));
        Ok(self.delayed(self.inner.start_reduce_scatter(input, op)?, bytes))
    }

    fn start_all_gather(&self, input: HostBuffer) -> Result<Request, CommError> {
        let bytes = self.ring(bytes_of(&input) * self.size());
        Ok(self.delayed(self.inner.start_all_gather(input)?, bytes))
    }

    fn start_send(&self, data: HostBuffer, to: usize, tag: u32) -> Result<Request, CommError> {
        let bytes = bytes_of(&data) as f64;
        Ok(self.delayed(self.inner.start_send(data, to, tag)?, bytes))
    }

    fn start_recv(&self, dtype: DType, len: usize, from: usize, tag: u32) -> Result<Request, CommError> {
        self.inner.start_recv(dtype, len, from, tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::thread::run_ranks;

    #[test]
    fn transfers_take_the_time_of_a_ring_and_hide_behind_work() {
        let seconds = run_ranks(2, Duration::from_secs(10), |world| {
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
