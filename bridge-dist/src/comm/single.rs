//! A group of one rank: every collective is a no-op or one copy. Arguments are checked as in larger
//! groups.

use std::sync::Arc;
use std::time::Duration;

use super::buffer::{Buffer, BufferMut, DType, HostBuffer, ReduceOp};
use super::error::CommError;
use super::request::Request;
use super::signature::{OpKind, RankContext, Signature, UnevenExchange};
use super::{Communicator, Group};

/// The only rank of its group.
#[derive(Clone, Debug)]
pub struct SingleCommunicator {
    name: String,
    world_ranks: Arc<[usize]>,
}

impl SingleCommunicator {
    /// A group of one with a name for messages.
    pub fn new(name: impl Into<String>) -> Self {
        Self::from_world_rank(name, 0)
    }

    /// A group of one: rank `world_rank` of a larger world.
    pub fn from_world_rank(name: impl Into<String>, world_rank: usize) -> Self {
        Self { name: name.into(), world_ranks: [world_rank].into() }
    }

    fn rank_context(&self) -> RankContext<'_> {
        RankContext { rank: 0, world_ranks: &self.world_ranks, group: &self.name }
    }
}

impl Communicator for SingleCommunicator {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn world_ranks(&self) -> Arc<[usize]> {
        Arc::clone(&self.world_ranks)
    }

    fn timeout(&self) -> Duration {
        Duration::MAX
    }

    /// Never waits, so this has no effect on operations.
    fn set_timeout(&self, _timeout: Duration) {}

    fn all_reduce(&self, data: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let signature = Signature::reducing(OpKind::AllReduce, data.dtype(), data.len(), op);
        self.rank_context().check_reduce(&signature)
    }

    fn reduce_scatter(&self, input: Buffer<'_>, mut output: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        self.rank_context().reduce_scatter(&input, &output, op)?;
        output.copy_from(input);
        Ok(())
    }

    fn all_gather(&self, input: Buffer<'_>, mut output: BufferMut<'_>) -> Result<(), CommError> {
        self.rank_context().all_gather(&input, &output)?;
        output.copy_from(input);
        Ok(())
    }

    fn broadcast(&self, data: BufferMut<'_>, root: usize) -> Result<(), CommError> {
        self.rank_context().broadcast(&data, root).map(drop)
    }

    fn all_to_all(&self, input: Buffer<'_>, mut output: BufferMut<'_>) -> Result<(), CommError> {
        self.rank_context().all_to_all(&input, &output)?;
        output.copy_from(input);
        Ok(())
    }

    fn all_to_all_uneven(&self, mut exchange: UnevenExchange<'_>) -> Result<(), CommError> {
        self.rank_context().all_to_all_uneven(&exchange)?;
        exchange.output.copy_from(exchange.input);
        Ok(())
    }

    /// Always an error: there is no other rank.
    fn send(&self, data: Buffer<'_>, to: usize, tag: u32) -> Result<(), CommError> {
        let what = (data.dtype(), data.len());
        self.rank_context().message(OpKind::Send, what, to, tag).map(drop)
    }

    /// Always an error: there is no other rank.
    fn recv(&self, data: BufferMut<'_>, from: usize, tag: u32) -> Result<(), CommError> {
        let what = (data.dtype(), data.len());
        self.rank_context().message(OpKind::Recv, what, from, tag).map(drop)
    }

    fn barrier(&self) -> Result<(), CommError> {
        Ok(())
    }

    fn split(&self, color: Option<usize>, _key: usize, name: &str) -> Result<Option<Group>, CommError> {
        Ok(color.map(|_| Arc::new(Self::from_world_rank(name, self.world_ranks[0])) as Group))
    }

    fn start_all_reduce(&self, mut data: HostBuffer, op: ReduceOp) -> Result<Request, CommError> {
        self.all_reduce(data.view_mut(), op)?;
        Ok(Request::ready(data))
    }

    fn start_reduce_scatter(&self, input: HostBuffer, op: ReduceOp) -> Result<Request, CommError> {
        let signature = Signature::reducing(OpKind::ReduceScatter, input.dtype(), input.len(), op);
        self.rank_context().check_reduce(&signature)?;
        Ok(Request::ready(input))
    }

    fn start_all_gather(&self, input: HostBuffer) -> Result<Request, CommError> {
        Ok(Request::ready(input))
    }

    /// Always an error: there is no other rank.
    fn start_send(&self, data: HostBuffer, to: usize, tag: u32) -> Result<Request, CommError> {
        self.send(data.view(), to, tag)?;
        Ok(Request::ready(data))
    }

    /// Always an error: there is no other rank.
    fn start_recv(&self, dtype: DType, len: usize, from: usize, tag: u32) -> Result<Request, CommError> {
        self.rank_context().message(OpKind::Recv, (dtype, len), from, tag)?;
        Ok(Request::ready(HostBuffer::zeros(dtype, len)))
    }
}
