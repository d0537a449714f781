//! Messages of device memory. NCCL has no tags, and orders all messages of two ranks on one
//! communicator. So each direction between two ranks is a separate link: a communicator of these
//! two with a stream, and a thread at either end. This module does not use CUDA.
//!
//! The sender's thread announces a message by a header on the bootstrap group, and calls NCCL when
//! the receiver's thread has answered. So no device waits for a peer that may be missing, and a
//! missing rank is found on the host. The receiver takes messages in the order of the headers, with
//! any tag, while it waits for any message: a message that arrives before its receive has started
//! is kept. So no schedule can deadlock because of the order of messages with different tags, or of
//! the two directions.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::agree::{decode, garbled};
use super::carrier::CarrierError;
use super::member::Member;
use bridge_dist::comm::device::DevicePart;
use bridge_dist::comm::thread::panic_message;
use bridge_dist::comm::transport::{GroupMember, OpKind, Pace, Signature, Worker, lock};
use bridge_dist::comm::{CommError, CommErrorKind, DType, Group, HostBuffer, Request};

mod inbox;
#[cfg(test)]
mod tests;

use inbox::{Expected, Inbox, Incoming, Message};

/// Tags of headers and answers on the control group, which [`handshake`](super::handshake) uses,
/// too.
const HEADER: u32 = 2;
const ANSWER: u32 = 3;
/// Tag of the data that a [`Way`] exchanges to connect a link.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only CUDA devices need it"))]
pub(super) const CONNECT: u32 = 4;

/// Why a message failed.
type Failure = Box<CommErrorKind>;

/// One end of a link.
#[derive(Clone)]
pub(super) struct End {
    pub member: Member,
    /// The group of headers.
    pub control: Group,
    /// The rank at the other end.
    pub peer: usize,
    /// True at the sender's end.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only CUDA devices need it"))]
    pub sends: bool,
}

/// Carrier of a link's data once both ends are ready. Both ends call it in the same order.
pub(super) trait Channel: Send {
    /// Memory whose values are there, or will be when the device comes to it.
    type Opened: Send;

    fn send(&mut self, signature: &Signature, data: Self::Opened) -> Result<(), CarrierError>;

    /// `sent` is the sender's signature; the memory is to lie where that of `like` does.
    fn receive(&mut self, sent: &Signature, like: &DevicePart) -> Result<DevicePart, CarrierError>;

    /// Aborts the transfer in progress. The channel is not used afterwards.
    fn abort(&mut self);
}

/// Makes channels.
pub(super) trait Way: Clone + Send + Sync + 'static {
    type Channel: Channel + 'static;

    /// Opens a part, on the thread that has made it.
    fn open(&self, part: &DevicePart) -> Result<<Self::Channel as Channel>::Opened, CarrierError>;

    /// Both ends call this together, before their first data.
    fn connect(&self, end: &End) -> Result<Self::Channel, CarrierError>;
}

/// All links of a rank in one group; each is made with its first message.
pub(super) struct Links<W: Way> {
    member: Member,
    control: Group,
    way: W,
    outgoing: Mutex<BTreeMap<usize, Worker<Port<W>>>>,
    incoming: Mutex<BTreeMap<usize, Incoming>>,
}

impl<W: Way> Links<W> {
    pub fn new(member: &Member, control: &Group, way: W) -> Self {
        let (member, control) = (member.clone(), Arc::clone(control));
        Self { member, control, way, outgoing: Mutex::default(), incoming: Mutex::default() }
    }

    fn port(&self, peer: usize, sends: bool) -> Port<W> {
        let end = End { member: self.member.clone(), control: Arc::clone(&self.control), peer, sends };
        Port { end, way: self.way.clone(), channel: None }
    }

    pub fn start_send(&self, part: &DevicePart, to: usize, tag: u32) -> Result<Request<()>, CommError> {
        let context = self.member.rank_context();
        let signature = context.message(OpKind::Send, (part.dtype, part.len), to, tag)?.on_device();
        self.member.check_world(&signature)?;
        let failed = |kind: Failure| self.member.fail(&signature, *kind);
        let opened = match part.len {
            0 => None,
            _ => Some(self.way.open(part).map_err(|error| failed(failure(error, to)))?),
        };
        let mut outgoing = lock(&self.outgoing);
        let worker = match outgoing.remove(&to) {
            Some(worker) => worker,
            None => {
                Worker::spawn(self.thread_name("to", to), self.port(to, true)).map_err(|e| failed(no_thread(&e)))?
            }
        };
        let lost = |kind| context.error(&signature, kind);
        let request = worker.submit(move |port: &mut Port<W>| port.send(&signature, opened), lost);
        outgoing.insert(to, worker);
        request
    }

    pub fn start_recv(&self, like: DevicePart, from: usize, tag: u32) -> Result<Request<DevicePart>, CommError> {
        let what = (like.dtype, like.len);
        let signature = self.member.rank_context().message(OpKind::Recv, what, from, tag)?.on_device();
        self.member.check_world(&signature)?;
        let mut incoming = lock(&self.incoming);
        let link = match incoming.remove(&from) {
            Some(link) => link,
            None => Incoming::start(self.thread_name("from", from), self.port(from, false))
                .map_err(|error| self.member.fail(&signature, *no_thread(&error)))?,
        };
        let outcome = link.inbox.expect(signature, tag, like.clone());
        incoming.insert(from, link);
        let (member, control) = (self.member.clone(), Arc::clone(&self.control));
        Ok(Request::new(Expected { member, control, signature, like, peer: from, outcome, arrived: None }))
    }

    fn thread_name(&self, direction: &str, peer: usize) -> String {
        format!("{}-{}-{direction}-{peer}", self.member.name, self.member.rank)
    }
}

impl<W: Way> Drop for Links<W> {
    /// Waits for started sends; messages that have not been received are lost.
    fn drop(&mut self) {
        for (_, worker) in std::mem::take(&mut *lock(&self.outgoing)) {
            worker.finish();
        }
        lock(&self.incoming).clear();
    }
}

fn no_thread(error: &std::io::Error) -> Failure {
    let library = "the operating system, starting a background thread,";
    Box::new(CommErrorKind::Transport { library, message: error.to_string() })
}

fn failure(error: CarrierError, peer: usize) -> Failure {
    match error {
        // Only the two ranks take part, so missing ranks cannot be found by a collective.
        CarrierError::Stalled(waited) => timed_out(waited, peer),
        CarrierError::Failed(kind) => Box::new(kind),
    }
}

fn timed_out(waited: Duration, peer: usize) -> Failure {
    Box::new(CommErrorKind::Timeout { waited, missing: vec![(peer, String::new())] })
}

/// An end of a link with the channel that moves its data, owned by the link's thread.
struct Port<W: Way> {
    end: End,
    way: W,
    channel: Option<W::Channel>,
}

impl<W: Way> Port<W> {
    fn channel(&mut self) -> Result<&mut W::Channel, Failure> {
        let channel = match self.channel.take() {
            Some(channel) => channel,
            None => self.way.connect(&self.end).map_err(|error| failure(error, self.end.peer))?,
        };
        Ok(self.channel.insert(channel))
    }

    fn send(&mut self, signature: &Signature, data: Option<<W::Channel as Channel>::Opened>) -> Result<(), CommError> {
        self.end.member.check_world(signature)?;
        self.try_to_send(signature, data).map_err(|kind| self.end.member.fail(signature, *kind))
    }

    fn try_to_send(
        &mut self,
        signature: &Signature,
        data: Option<<W::Channel as Channel>::Opened>,
    ) -> Result<(), Failure> {
        let End { control, peer, .. } = self.end.clone();
        let header =
            control.start_send(signature.encode().to_vec().into(), peer, HEADER).map_err(|error| error.kind)?;
        let answer = control.start_recv(DType::U8, 1, peer, ANSWER).map_err(|error| error.kind)?;
        let (begun, limit) = (Instant::now(), control.timeout());
        let answered = self.end.poll(answer, || begun.elapsed() >= limit)?;
        answered.ok_or_else(|| timed_out(limit, peer))?;
        header.wait().map_err(|error| error.kind)?;
        match data {
            Some(data) => self.channel()?.send(signature, data).map_err(|error| failure(error, peer)),
            None => Ok(()),
        }
    }

    /// The next message and its tag; `None` if no receive waits any more.
    fn receive(&mut self, inbox: &Inbox) -> Result<Option<(u32, Message)>, Failure> {
        let End { control, peer, .. } = self.end.clone();
        let header = control.start_recv(DType::U8, Signature::ENCODED, peer, HEADER).map_err(|error| error.kind)?;
        let Some(header) = self.end.poll(header, || inbox.is_over())? else { return Ok(None) };
        let Some(like) = inbox.wanted() else { return Ok(None) };
        let sent = decode(header.view().bytes()).ok_or_else(|| Box::new(garbled()))?;
        let (Some(tag), Some(dtype), Some(len)) = (sent.tag, sent.dtype, sent.len) else {
            return Err(Box::new(garbled()));
        };
        control.start_send(vec![1_u8].into(), peer, ANSWER).and_then(Request::wait).map_err(|error| error.kind)?;
        let part = match len {
            0 => None,
            _ => Some(self.channel()?.receive(&sent, &like).map_err(|error| failure(error, peer))?),
        };
        Ok(Some((tag, Message { dtype, len, part })))
    }

    /// Receives messages while a receive is waiting.
    fn receive_all(mut self, inbox: &Inbox) {
        while inbox.is_wanted() {
            let received = catch_unwind(AssertUnwindSafe(|| self.receive(inbox)))
                .unwrap_or_else(|panic| Err(Box::new(CommErrorKind::Panicked { message: panic_message(&*panic) })));
            match received {
                Ok(Some((tag, message))) => inbox.deliver(tag, message),
                Ok(None) => return,
                Err(kind) => return inbox.fail(&self.end.member, *kind),
            }
        }
    }
}

impl<W: Way> Drop for Port<W> {
    fn drop(&mut self) {
        if let Some(channel) = self.channel.as_mut().filter(|_| self.end.member.world.failure().is_some()) {
            // The other rank may never finalize it.
            channel.abort();
        }
    }
}

impl End {
    /// Waits for a request and returns its buffer; `None` if `gives_up` returns true before it is
    /// complete.
    fn poll(&self, mut request: Request, gives_up: impl Fn() -> bool) -> Result<Option<HostBuffer>, Failure> {
        let mut pace = Pace::default();
        while !request.test().map_err(|error| error.kind)? {
            if let Some(cause) = self.member.world.failure() {
                return Err(Box::new(CommErrorKind::Aborted { cause }));
            }
            if gives_up() {
                return Ok(None);
            }
            pace.pause();
        }
        request.wait().map(Some).map_err(|error| error.kind)
    }
}
