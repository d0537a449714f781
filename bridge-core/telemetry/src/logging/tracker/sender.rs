//! The thread that sends the items of a spool, and gives up only at the end of the run.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// Message that the run should print once.
    trouble: Arc<Mutex<Option<String>>>,
    news: SyncSender<News>,
    /// Time limit at the end of the run.
    pub(super) patience: Duration,
    /// Ends with the number of items that were refused, if all others are sent.
    thread: Option<JoinHandle<Option<usize>>>,
}

/// News for the thread: items were added, or the run is over and the thread gives up at that time.
enum News {
    Items,
    Over(Instant),
}

impl Tracker {
    /// Opens the spool of `run` in `log_dir` and begins to send its items. `target` is kept for
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
            // Unsent items of another run in this folder are kept for that run.
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
        let trouble = Arc::new(Mutex::new(remark));
        let (news, received) = sync_channel(1);
        let (told, items) = (Arc::clone(&trouble), Arc::clone(&spool));
        let work = move || Sender { service, spool: items, known, trouble: told, news: received }.run();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Self { name, spool, trouble, news, patience: AT_THE_END, thread: Some(thread) })
    }

    /// Adds an item. Errors are the disk's, and once what keeps earlier items from being sent.
    pub fn add(&self, item: &Item) -> Result<(), SinkError> {
        self.spool.append(item)?;
        // Where news wait already, the thread will see this item too.
        let _ = self.news.try_send(News::Items);
        lock(&self.trouble).take().map_or(Ok(()), |why| {
            Err(Box::new(Deferred(format!("{why}; figures are kept and sent later"))) as SinkError)
        })
    }

    /// Waits some seconds for unsent items. Returns a message if items are left or were refused.
    pub fn close(&mut self) -> Option<String> {
        let thread = self.thread.take()?;
        // A thread that died has nobody listening.
        let _ = self.news.send(News::Over(Instant::now() + self.patience));
        let name = self.name;
        match thread.join().ok().flatten() {
            Some(0) => None,
            Some(refused) => Some(format!("{name}: {refused} items were refused")),
            None => {
                let trouble = lock(&self.trouble).take();
                let why = trouble.map_or(String::new(), |trouble| format!(" ({trouble})"));
                Some(format!("{name}: not all figures are sent{why}; `bridge runs send` sends the rest"))
            }
        }
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        self.close();
    }
}

fn lock(trouble: &Mutex<Option<String>>) -> MutexGuard<'_, Option<String>> {
    trouble.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Sender {
    service: Box<dyn Service>,
    spool: Arc<Spool>,
    known: Known,
    trouble: Arc<Mutex<Option<String>>>,
    news: Receiver<News>,
}

/// Result of one pass over the spool.
enum Look {
    /// Number of items that were handled, number of those that were refused, and the reason of the
    /// first refusal.
    Done(usize, usize, Option<String>),
    /// There is nothing to send.
    Empty,
    /// Sending failed and is tried again.
    Failed(String),
}

impl Sender {
    /// Sends items until the run is over. Returns the number of refused items if no item is left.
    fn run(mut self) -> Option<usize> {
        let (mut pause, mut is_told, mut refused, mut until) = (PAUSES.0, false, 0, None);
        loop {
            let look = send_some(self.service.as_mut(), &self.spool, &mut self.known);
            match look.unwrap_or_else(|error| Look::Failed(error.to_string())) {
                Look::Done(_, 0, _) => {
                    (pause, is_told) = (PAUSES.0, false);
                    *lock(&self.trouble) = None;
                }
                Look::Done(_, more, why) => {
                    refused += more;
                    // Of many in a row the first one.
                    if !std::mem::replace(&mut is_told, true) {
                        *lock(&self.trouble) = why;
                    }
                }
                Look::Empty if until.is_some() => {
                    let _ = self.spool.clear(&mut self.known);
                    return Some(refused);
                }
                Look::Empty => until = over(self.news.recv().ok()),
                Look::Failed(why) => {
                    let gives_up = until.is_some_and(|until| Instant::now() + pause >= until);
                    if gives_up || !std::mem::replace(&mut is_told, true) {
                        *lock(&self.trouble) = Some(why);
                    }
                    match until {
                        _ if gives_up => return None,
                        Some(_) => std::thread::sleep(pause),
                        None => until = self.wait(pause),
                    }
                    pause = (2 * pause).min(PAUSES.1);
                }
            }
        }
    }

    /// Sleeps for `pause`, or until the run is over.
    fn wait(&self, pause: Duration) -> Option<Instant> {
        let end = Instant::now() + pause;
        loop {
            match self.news.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(News::Items) => {}
                Err(RecvTimeoutError::Timeout) => return None,
                news => return over(news.ok()),
            }
        }
    }
}

/// When the thread gives up, if the run is over. A run that dropped its tracker is.
fn over(news: Option<News>) -> Option<Instant> {
    match news {
        Some(News::Items) => None,
        Some(News::Over(until)) => Some(until),
        None => Some(Instant::now()),
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
