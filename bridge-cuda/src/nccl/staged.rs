//! A communicator made of a bootstrap group, for agreement and messages, and a carrier, for data.
//! Knows nothing of CUDA.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::agree::Agreement;
use super::carrier::{Carrier, CarrierError, Fabric};
use super::lane::Lane;
use super::member::{Member, World};
use bridge_dist::comm::device::DeviceExchange;
use bridge_dist::comm::single::SingleCommunicator;
use bridge_dist::comm::transport::{
    Background, Collectives, GroupMember, OpKind, Pending, Signature, delegate_to_lanes, lock,
};
use bridge_dist::comm::{
    Buffer, BufferMut, CommError, Communicator, DType, Group, HostBuffer, ReduceOp, Request, UnevenExchange,
};

/// The bootstrap groups of one group: one per lane, because the lanes run concurrently.
#[derive(Debug)]
pub(super) struct Controls {
    /// Group for blocking collectives, and for messages of host memory.
    pub blocking: Group,
    /// For non-blocking collectives, and for the headers of messages of device memory.
    pub background: Group,
}

impl Controls {
    /// All ranks of `parent` call this together. `None` joins no group.
    pub fn split(parent: &Group, color: Option<usize>, key: usize, name: &str) -> Result<Option<Self>, CommError> {
        let blocking = parent.split(color, key, name)?;
        let background = parent.split(color, key, name)?;
        Ok(blocking.zip(background).map(|(blocking, background)| Self { blocking, background }))
    }
}

/// One rank of a group whose data moves on `F`'s carriers.
pub(super) struct Staged<F: Fabric> {
    pub member: Member,
    pub controls: Controls,
    pub fabric: F,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only tensors have them"))]
    pub messages: F::Messages,
    pub blocking: Mutex<Lane<F::Carrier>>,
    pub background: Background<LateLane<F>>,
}

impl<F: Fabric> Staged<F> {
    /// All ranks of the group call this together.
    pub fn connect(world: Arc<World>, fabric: F, controls: Controls, name: &str) -> Result<Self, CommError> {
        let control = &controls.blocking;
        let member = Member { world, rank: control.rank(), world_ranks: control.world_ranks(), name: name.into() };
        let lane = connect(&member, &fabric, control, &Signature::bare(OpKind::Split))?;
        let (late_member, late_fabric) = (member.clone(), fabric.clone());
        let late = LateLane {
            member: late_member,
            control: Arc::clone(&controls.background),
            fabric: late_fabric,
            lane: None,
        };
        let messages = fabric.messages(&member, &controls.background);
        Ok(Self { member, controls, fabric, messages, blocking: Mutex::new(lane), background: Background::new(late) })
    }

    /// Like [`Communicator::split`], but a group of one has a carrier too.
    pub fn split_staged(&self, color: Option<usize>, key: usize, name: &str) -> Result<Option<Self>, CommError> {
        match self.split_controls(color, key, name)? {
            Some(controls) => {
                Self::connect(Arc::clone(&self.member.world), self.fabric.clone(), controls, name).map(Some)
            }
            None => Ok(None),
        }
    }

    fn split_controls(&self, color: Option<usize>, key: usize, name: &str) -> Result<Option<Controls>, CommError> {
        let signature = Signature::bare(OpKind::Split);
        let lane = lock(&self.blocking);
        lane.agreement.agree(&signature)?;
        // The other ranks have entered the call by now, so an invalid colour concerns all of them.
        Controls::split(&self.controls.blocking, color, key, name)
            .map_err(|error| self.member.fail(&signature, *error.kind))
    }

    fn message(&self, signature: Signature, request: Request) -> Request {
        Request::new(Message { request, member: self.member.clone(), signature })
    }
}

impl<F: Fabric> Drop for Staged<F> {
    fn drop(&mut self) {
        self.background.finish();
        if self.member.world.failure().is_some() {
            // The other ranks may never finalize it.
            lock(&self.blocking).carrier.abort();
        }
    }
}

impl<F: Fabric> std::fmt::Debug for Staged<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({} {}/{})", self.member.name, self.member.rank, self.member.size())
    }
}

fn connect<F: Fabric>(
    member: &Member,
    fabric: &F,
    control: &Group,
    signature: &Signature,
) -> Result<Lane<F::Carrier>, CommError> {
    let agreement = Agreement { member: member.clone(), control: Arc::clone(control) };
    match fabric.connect(control) {
        Ok(carrier) => Ok(Lane::new(agreement, carrier, fabric.piece_bytes())),
        Err(CarrierError::Stalled(waited)) => Err(agreement.roll_call(signature, waited)),
        Err(CarrierError::Failed(kind)) => Err(member.fail(signature, kind)),
    }
}

/// A lane whose carrier is created with its first operation, which all ranks start together; many
/// groups never need one.
pub(super) struct LateLane<F: Fabric> {
    member: Member,
    control: Group,
    pub fabric: F,
    lane: Option<Lane<F::Carrier>>,
}

impl<F: Fabric> LateLane<F> {
    pub fn lane(&mut self, signature: &Signature) -> Result<&mut Lane<F::Carrier>, CommError> {
        let lane = match self.lane.take() {
            Some(lane) => lane,
            None => {
                self.member.check_world(signature)?;
                connect(&self.member, &self.fabric, &self.control, signature)?
            }
        };
        Ok(self.lane.insert(lane))
    }
}

impl<F: Fabric> Collectives for LateLane<F> {
    fn all_reduce(&mut self, data: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        self.lane(&Signature::reducing(OpKind::AllReduce, data.dtype(), data.len(), op))?.all_reduce(data, op)
    }

    fn reduce_scatter(&mut self, input: Buffer<'_>, output: BufferMut<'_>, op: ReduceOp) -> Result<(), CommError> {
        let signature = self.member.rank_context().reduce_scatter(&input, &output, op)?;
        self.lane(&signature)?.reduce_scatter(input, output, op)
    }

    fn all_gather(&mut self, input: Buffer<'_>, output: BufferMut<'_>) -> Result<(), CommError> {
        self.lane(&Signature::data(OpKind::AllGather, input.dtype(), input.len()))?.all_gather(input, output)
    }
}

impl<F: Fabric> Drop for LateLane<F> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.as_mut().filter(|_| self.member.world.failure().is_some()) {
            lane.carrier.abort();
        }
    }
}

/// A message of the bootstrap group whose errors are reported as this group's.
struct Message {
    request: Request,
    member: Member,
    signature: Signature,
}

impl Pending for Message {
    fn test(&mut self) -> Result<bool, CommError> {
        self.request.test().map_err(|error| self.member.adopt(&self.signature, error))
    }

    fn wait(self: Box<Self>) -> Result<HostBuffer, CommError> {
        self.request.wait().map_err(|error| self.member.adopt(&self.signature, error))
    }
}

impl<F: Fabric> Communicator for Staged<F> {
    delegate_to_lanes!(member: Member);

    fn timeout(&self) -> Duration {
        self.controls.blocking.timeout()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.controls.blocking.set_timeout(timeout);
    }

    fn send(&self, data: Buffer<'_>, to: usize, tag: u32) -> Result<(), CommError> {
        let signature = self.member.rank_context().message(OpKind::Send, (data.dtype(), data.len()), to, tag)?;
        self.member.check_world(&signature)?;
        self.controls.blocking.send(data, to, tag).map_err(|error| self.member.adopt(&signature, error))
    }

    fn recv(&self, data: BufferMut<'_>, from: usize, tag: u32) -> Result<(), CommError> {
        let signature = self.member.rank_context().message(OpKind::Recv, (data.dtype(), data.len()), from, tag)?;
        self.member.check_world(&signature)?;
        self.controls.blocking.recv(data, from, tag).map_err(|error| self.member.adopt(&signature, error))
    }

    fn split(&self, color: Option<usize>, key: usize, name: &str) -> Result<Option<Group>, CommError> {
        match self.split_controls(color, key, name)? {
            Some(controls) if controls.blocking.size() == 1 => {
                Ok(Some(Arc::new(SingleCommunicator::from_world_rank(name, self.member.world_rank()))))
            }
            Some(controls) => {
                let world = Arc::clone(&self.member.world);
                Ok(Some(Arc::new(Self::connect(world, self.fabric.clone(), controls, name)?)))
            }
            None => Ok(None),
        }
    }

    fn start_send(&self, data: HostBuffer, to: usize, tag: u32) -> Result<Request, CommError> {
        let signature = self.member.rank_context().message(OpKind::Send, (data.dtype(), data.len()), to, tag)?;
        self.member.check_world(&signature)?;
        let started = self.controls.blocking.start_send(data, to, tag);
        started.map(|request| self.message(signature, request)).map_err(|error| self.member.adopt(&signature, error))
    }

    fn start_recv(&self, dtype: DType, len: usize, from: usize, tag: u32) -> Result<Request, CommError> {
        let signature = self.member.rank_context().message(OpKind::Recv, (dtype, len), from, tag)?;
        self.member.check_world(&signature)?;
        let started = self.controls.blocking.start_recv(dtype, len, from, tag);
        started.map(|request| self.message(signature, request)).map_err(|error| self.member.adopt(&signature, error))
    }

    fn device(&self) -> Option<&dyn DeviceExchange> {
        F::exchange(self)
    }
}
