//! The thread that sends what a spool has, and gives up only at the end of the run.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::service::{Item, Known, SendError, Sent, Service};
use super::spool::{self, Spool};
use crate::logging::sink::{Deferred, SinkError};

/// Pauses after failures, from the first to the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// Time limit at the end of a run for items that are not sent yet.
const AT_THE_END: Duration = Duration::from_secs(10);

/// A run's connection to a tracker.
pub(in crate::logging) struct Tracker {
    name: &'static str,
    spool: Arc<Spool>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Items were added since the thread looked.
    has_more: bool,
    /// When to give up; the run is over.
    until: Option<Instant>,
    /// True if the end does not wait.
    gives_up: bool,
    /// Message that the run should print once.
    trouble: Option<String>,
    /// Items that the server refused, and lines that were damaged.
    refused: usize,
    /// True if everything is sent.
    is_empty: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tracker {
    /// Opens the spool of `run` in `log_dir` and begins to send what it has. `target` is kept for
    /// sending later.
    pub fn open(
        name: &'static str,
        log_dir: &Path,
        run: &str,
        target: serde_json::Value,
        service: Box<dyn Service>,
    ) -> io::Result<Self> {
        let place = spool::place(log_dir, name);
        let (mut known, remark) = match spool::read_known(&place) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                spool::set_aside(&place)?;
                let remark = format!("{}: the record of this run is damaged ({error}) and set aside", place.display());
                (Known::default(), Some(remark))
            }
            known => (known?, None),
        };
        if known.run != run && place.exists() {
            let left = Spool::open(&place)?;
            // What another run in this folder has not sent stays that run's.
            if !left.read(left.start(&known)?)?.is_empty() {
                spool::set_aside(&place)?;
            }
        }
        let spool = Arc::new(Spool::open(&place)?);
        if known.run != run {
            known = Known { run: run.to_owned(), ..Known::default() };
            spool.clear(&mut known)?;
        }
        known.target = target;
        known.sent = spool.start(&known)?;
        spool.write_known(&known)?;
        let shared = Arc::new(Shared::default());
        shared.state().trouble = remark;
        let (of_thread, items) = (Arc::clone(&shared), Arc::clone(&spool));
        let work = move || Sender { service, spool: items, known, shared: of_thread }.run();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Self { name, spool, shared, thread: Some(thread) })
    }

    /// Adds an item.
    ///
    /// # Errors
    /// The disk's, and once what keeps earlier items from being sent.
    pub fn add(&self, item: &Item) -> Result<(), SinkError> {
        self.spool.append(item)?;
        let mut state = self.shared.state();
        state.has_more = true;
        self.shared.changed.notify_all();
        let trouble = state.trouble.take();
        trouble.map_or(Ok(()), |why| {
            Err(Box::new(Deferred(format!("{why}; figures are kept and sent later"))) as SinkError)
        })
    }

    /// Waits some seconds for what is not sent yet. What is left, or was refused, is what the run
    /// has to say.
    pub fn close(&mut self) -> Option<String> {
        let thread = self.thread.take()?;
        let mut state = self.shared.state();
        let patience = if state.gives_up { Duration::ZERO } else { AT_THE_END };
        state.until = Some(Instant::now() + patience);
        drop(state);
        self.shared.changed.notify_all();
        let died = thread.join().is_err();
        let state = self.shared.state();
        let name = self.name;
        match (state.is_empty && !died, state.refused) {
            (true, 0) => None,
            (true, refused) => Some(format!("{name}: {refused} items were refused")),
            (false, _) => {
                let why = state.trouble.as_deref().map_or(String::new(), |trouble| format!(" ({trouble})"));
                Some(format!("{name}: not all figures are sent{why}; `bridge runs send` sends the rest"))
            }
        }
    }
}

#[cfg(test)]
impl Tracker {
    /// Lets the end come at once.
    pub fn give_up(&self) {
        self.shared.state().gives_up = true;
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        self.close();
    }
}

struct Sender {
    service: Box<dyn Service>,
    spool: Arc<Spool>,
    known: Known,
    shared: Arc<Shared>,
}

/// Result of one pass over the spool.
enum Look {
    /// Number of items that were handled, number of those that were refused, and the reason of the
    /// first refusal.
    Done(usize, usize, Option<String>),
    /// There is nothing to send.
    Empty,
    /// It has to be tried again.
    Failed(String),
}

impl Sender {
    fn run(mut self) {
        let mut pause = PAUSES.0;
        let mut is_told = false;
        loop {
            let until = self.shared.state().until;
            match self.look() {
                Look::Done(_, 0, _) => {
                    (pause, is_told) = (PAUSES.0, false);
                    self.shared.state().trouble = None;
                }
                Look::Done(_, refused, why) => {
                    let mut state = self.shared.state();
                    state.refused += refused;
                    // Of many in a row the first one.
                    if !is_told {
                        (state.trouble, is_told) = (why, true);
                    }
                }
                Look::Empty if until.is_some() => {
                    let _ = self.spool.clear(&mut self.known);
                    let mut state = self.shared.state();
                    (state.is_empty, state.trouble) = (true, None);
                    return;
                }
                Look::Empty => self.wait(None),
                Look::Failed(why) => {
                    let mut state = self.shared.state();
                    if until.is_some_and(|until| Instant::now() + pause >= until) {
                        state.trouble = Some(why);
                        return;
                    }
                    if !is_told {
                        (state.trouble, is_told) = (Some(why), true);
                    }
                    drop(state);
                    self.wait(Some(pause));
                    pause = (2 * pause).min(PAUSES.1);
                }
            }
        }
    }

    /// Sleeps for `pause`, or until there is more; at the end of the run no longer.
    fn wait(&self, pause: Option<Duration>) {
        let state = self.shared.state();
        let was_open = state.until.is_none();
        let limit = pause.unwrap_or(PAUSES.1);
        let goes_on = |state: &mut State| {
            let is_over = state.until.is_some() && was_open;
            !(is_over || pause.is_none() && state.has_more)
        };
        let waited = self.shared.changed.wait_timeout_while(state, limit, goes_on);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_more = false;
    }

    fn look(&mut self) -> Look {
        self.shared.state().has_more = false;
        match send_some(self.service.as_mut(), &self.spool, &mut self.known) {
            Ok(look) => look,
            Err(error) => Look::Failed(error.to_string()),
        }
    }
}

/// Sends what is next, if there is anything.
fn send_some(service: &mut dyn Service, spool: &Spool, known: &mut Known) -> io::Result<Look> {
    let (lines, ends): (Vec<Option<Item>>, Vec<u64>) = spool.read(known.sent)?.into_iter().unzip();
    if lines.is_empty() {
        return Ok(Look::Empty);
    }
    let items: Vec<Item> = lines.into_iter().map_while(|item| item).collect();
    let (sent, refused) = match items.as_slice() {
        [] => (1, Some("a line of the spool is damaged".into())),
        items => match service.send(known, items) {
            Ok(sent) => (sent.clamp(1, items.len()), None),
            Err(SendError::Later(why)) => return Ok(Look::Failed(why)),
            Err(SendError::Never(why)) => (1, Some(why)),
        },
    };
    known.sent = ends[sent - 1];
    spool.write_known(known)?;
    Ok(Look::Done(sent, usize::from(refused.is_some()), refused))
}

/// Sends all that a spool has, once.
pub(super) fn send_all(
    tracker: &'static str,
    mut service: Box<dyn Service>,
    spool: &Spool,
    mut known: Known,
) -> io::Result<Sent> {
    let mut result = Sent { tracker, sent: 0, refused: (0, None), left: None };
    known.sent = spool.start(&known)?;
    loop {
        match send_some(service.as_mut(), spool, &mut known)? {
            Look::Done(items, refused, why) => {
                result.sent += items - refused;
                result.refused.0 += refused;
                result.refused.1 = result.refused.1.take().or(why);
            }
            Look::Empty => {
                spool.clear(&mut known)?;
                return Ok(result);
            }
            Look::Failed(why) => {
                result.left = Some(why);
                return Ok(result);
            }
        }
    }
}
