//! The receiver's end of a link: arrived messages and waiting receives.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::{Port, Way, timed_out};
use crate::nccl::member::Member;
use bridge_dist::comm::device::DevicePart;
use bridge_dist::comm::transport::{GroupMember, Pending, Signature, lock};
use bridge_dist::comm::{CommError, CommErrorKind, DType, Group};

/// Time after the end of a link in which receives that were dropped still take their messages:
/// until then the other rank waits for an answer.
const GRACE: Duration = Duration::from_secs(1);

/// A message that has arrived.
pub(super) struct Message {
    pub dtype: DType,
    pub len: u64,
    /// `None` if it has no elements.
    pub part: Option<DevicePart>,
}

pub(super) type Outcome = Result<Message, CommError>;

/// The receiver's thread of a link. Dropping it ends the thread.
pub(super) struct Incoming {
    pub inbox: Arc<Inbox>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Incoming {
    pub fn start<W: Way>(name: String, port: Port<W>) -> std::io::Result<Self> {
        let inbox = Arc::new(Inbox::default());
        let own = Arc::clone(&inbox);
        let thread = thread::Builder::new().name(name).spawn(move || port.receive_all(&own))?;
        Ok(Self { inbox, thread: Some(thread) })
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        lock(&self.inbox.state).closed = Some(Instant::now());
        self.inbox.changed.notify_all();
        // A panic of the thread has been printed already.
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Messages that a link has received, and the receives that wait for messages.
#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<Mail>,
    changed: Condvar,
}

#[derive(Default)]
struct Mail {
    /// Receives without a message, in the order in which they were started.
    wanted: VecDeque<Wanted>,
    /// Messages that came before their receive, by tag.
    early: HashMap<u32, VecDeque<Message>>,
    /// End of the link.
    closed: Option<Instant>,
}

struct Wanted {
    signature: Signature,
    tag: u32,
    like: DevicePart,
    outcome: mpsc::Sender<Outcome>,
}

impl Inbox {
    /// Registers a receive for the next message with this tag.
    pub fn expect(&self, signature: Signature, tag: u32, like: DevicePart) -> mpsc::Receiver<Outcome> {
        let (sender, outcome) = mpsc::channel();
        let mut mail = lock(&self.state);
        match mail.early.get_mut(&tag).and_then(VecDeque::pop_front) {
            // The channel's receiver exists, so sending cannot fail.
            Some(message) => drop(sender.send(Ok(message))),
            // The sender is dropped where the thread has ended.
            None if mail.closed.is_some() => {}
            None => mail.wanted.push_back(Wanted { signature, tag, like, outcome: sender }),
        }
        self.changed.notify_all();
        outcome
    }

    /// True if the link has ended, and messages had time to come.
    pub fn is_over(&self) -> bool {
        lock(&self.state).closed.is_some_and(|closed| closed.elapsed() > GRACE)
    }

    /// Waits until a message is wanted. Returns false if the link has ended and none is.
    pub fn is_wanted(&self) -> bool {
        let mut mail = lock(&self.state);
        while mail.wanted.is_empty() && mail.closed.is_none() {
            mail = self.changed.wait(mail).unwrap_or_else(PoisonError::into_inner);
        }
        !mail.wanted.is_empty()
    }

    /// Part that the oldest receive without a message expects.
    pub fn wanted(&self) -> Option<DevicePart> {
        lock(&self.state).wanted.front().map(|wanted| wanted.like.clone())
    }

    pub fn deliver(&self, tag: u32, message: Message) {
        let mut mail = lock(&self.state);
        match mail.wanted.iter().position(|wanted| wanted.tag == tag) {
            // A receive that was dropped takes its message with it.
            Some(index) => drop(mail.wanted.remove(index).map(|wanted| wanted.outcome.send(Ok(message)))),
            None => mail.early.entry(tag).or_default().push_back(message),
        }
    }

    /// Ends the link: all that wait get an error.
    pub fn fail(&self, member: &Member, kind: CommErrorKind) {
        let mut mail = lock(&self.state);
        mail.closed = Some(Instant::now());
        for Wanted { signature, outcome, .. } in mail.wanted.drain(..) {
            // A receive that was dropped needs no error.
            let _ = outcome.send(Err(member.fail(&signature, kind.clone())));
        }
    }
}

/// A receive of device memory.
pub(super) struct Expected {
    pub member: Member,
    pub control: Group,
    pub signature: Signature,
    /// Memory with the type of the message.
    pub like: DevicePart,
    pub peer: usize,
    pub outcome: mpsc::Receiver<Outcome>,
    pub arrived: Option<DevicePart>,
}

impl Expected {
    fn checked(&self, outcome: Outcome) -> Result<DevicePart, CommError> {
        let Message { dtype, len, part } = outcome?;
        if (self.signature.dtype, self.signature.len) == (Some(dtype), Some(len)) {
            return Ok(part.unwrap_or_else(|| DevicePart { memory: self.like.memory.empty(0), ..self.like }));
        }
        let found = format!("a message of {len} x {dtype} on the device");
        let kind = CommErrorKind::Mismatch { peer: self.peer, expected: self.signature.to_string(), found };
        Err(self.member.fail(&self.signature, kind))
    }

    /// The error of a receive whose thread has ended.
    fn lost(&self) -> CommError {
        match self.member.check_world(&self.signature) {
            Err(error) => error,
            Ok(()) => {
                let message = "it ended before the operation was complete".to_owned();
                let kind = CommErrorKind::Transport { library: "the background thread", message };
                self.member.rank_context().error(&self.signature, kind)
            }
        }
    }
}

impl Pending<DevicePart> for Expected {
    fn test(&mut self) -> Result<bool, CommError> {
        if self.arrived.is_none() {
            self.arrived = match self.outcome.try_recv() {
                Ok(outcome) => Some(self.checked(outcome)?),
                Err(mpsc::TryRecvError::Empty) => None,
                Err(mpsc::TryRecvError::Disconnected) => return Err(self.lost()),
            };
        }
        Ok(self.arrived.is_some())
    }

    fn wait(mut self: Box<Self>) -> Result<DevicePart, CommError> {
        if let Some(part) = self.arrived.take() {
            return Ok(part);
        }
        let limit = self.control.timeout();
        match self.outcome.recv_timeout(limit) {
            Ok(outcome) => self.checked(outcome),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(self.lost()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                Err(self.member.fail(&self.signature, *timed_out(limit, self.peer)))
            }
        }
    }
}
