//! History of large blocks: while it is recorded, each block is recorded with its owner, the
//! activity of the rank that allocated it.
//!
//! The history belongs to the process, as the allocator does. Ranks that are threads of one process
//! have a [`RankSlot`] each. [`RankSlot::owner`] sets the activity of a rank for all threads that
//! are attached to its slot, those of its pool included. Blocks of threads without a slot have one
//! owner more. If nothing is recorded, a large block costs one check of a flag.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

mod report;

use super::usage::usage;
pub use report::{OwnerTotal, Window, WindowBlock, WindowEvent};

/// Number of ranks that are distinguished; further ranks share the last entry.
const SLOTS: usize = 64;
/// Events of a window that are kept: 32 bytes each.
const MOST_EVENTS: usize = 1 << 20;
/// Blocks that a report of failure names.
const NAMED: usize = 12;

static IS_ON: AtomicBool = AtomicBool::new(false);
static NEXT_SLOT: AtomicU8 = AtomicU8::new(1);
/// Activity of each rank, as an index of [`State::owners`].
static DOING: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];
static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    static SLOT: Cell<u8> = const { Cell::new(0) };
    /// True while this thread is in the recorder: its allocations are not recorded meanwhile.
    static IS_NOTING: Cell<bool> = const { Cell::new(false) };
}

/// A block in use.
#[derive(Clone, Copy, Debug)]
struct Live {
    bytes: usize,
    owner: u32,
    slot: u8,
}

/// A block that was handed out, or taken back.
#[derive(Clone, Copy, Debug)]
struct Event {
    address: usize,
    at: Instant,
    /// `None` where it was taken back.
    taken: Option<Live>,
}

struct State {
    owners: Vec<String>,
    numbers: HashMap<String, u32>,
    live: HashMap<usize, Live>,
    /// While a window is open: blocks in use when it was opened, its start, and the events since.
    window: Option<(HashMap<usize, Live>, Instant, Vec<Event>)>,
    /// Windows that are open, one for each rank that asked.
    openings: usize,
    /// File for the report of a failed allocation.
    report: Option<std::path::PathBuf>,
}

/// Owner of blocks of threads that have set none.
const NOBODY: &str = "other threads";

impl State {
    fn new() -> Self {
        Self {
            owners: vec![NOBODY.to_owned()],
            numbers: HashMap::from([(NOBODY.to_owned(), 0)]),
            live: HashMap::new(),
            window: None,
            openings: 0,
            report: None,
        }
    }

    fn number(&mut self, owner: &str) -> u32 {
        if let Some(number) = self.numbers.get(owner) {
            return *number;
        }
        let number = self.owners.len() as u32;
        self.owners.push(owner.to_owned());
        self.numbers.insert(owner.to_owned(), number);
        number
    }

    fn note(&mut self, address: usize, taken: Option<Live>) {
        match taken {
            Some(live) => self.live.insert(address, live),
            None => self.live.remove(&address),
        };
        if let Some((_, _, events)) = &mut self.window
            && events.len() < MOST_EVENTS
        {
            events.push(Event { address, at: Instant::now(), taken });
        }
    }
}

/// Calls `work` with the state; allocations of the thread are not recorded meanwhile.
fn with_state<T>(work: impl FnOnce(&mut State) -> T) -> Option<T> {
    if IS_NOTING.replace(true) {
        return None;
    }
    let done = STATE.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(work);
    IS_NOTING.set(false);
    done
}

/// True if blocks are recorded.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Records blocks from now on. A failed allocation is reported in the file of the first caller.
pub fn start(report: Option<std::path::PathBuf>) {
    let was = IS_NOTING.replace(true);
    {
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        let state = state.get_or_insert_with(State::new);
        state.report = state.report.take().or(report);
    }
    IS_NOTING.set(was);
    IS_ON.store(true, Ordering::Relaxed);
}

/// Stops the recording and drops the recorded entries.
pub fn stop() {
    IS_ON.store(false, Ordering::Relaxed);
    let was = IS_NOTING.replace(true);
    drop(STATE.lock().unwrap_or_else(PoisonError::into_inner).take());
    IS_NOTING.set(was);
}

/// A block was handed out.
#[inline]
pub(super) fn took(block: *mut u8, bytes: usize) {
    if is_on() && !block.is_null() {
        note(block.addr(), Some(bytes));
    }
}

/// A block is about to be taken back.
#[inline]
pub(super) fn gives(block: *mut u8) {
    if is_on() {
        note(block.addr(), None);
    }
}

#[cold]
fn note(address: usize, bytes: Option<usize>) {
    // A terminating thread has no slot any more.
    let slot = SLOT.try_with(Cell::get).unwrap_or(0);
    let owner = DOING[usize::from(slot)].load(Ordering::Relaxed);
    with_state(|state| state.note(address, bytes.map(|bytes| Live { bytes, owner, slot })));
}

/// The place of a rank among those of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankSlot(u8);

impl RankSlot {
    /// A slot that no other rank has, while there are some left.
    #[expect(clippy::new_without_default, reason = "two are not equal")]
    pub fn new() -> Self {
        let last = SLOTS as u8 - 1;
        let following = |next| (next < last).then_some(next + 1);
        let next = NEXT_SLOT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, following);
        Self(next.unwrap_or(last))
    }

    /// Attaches this thread: its allocations are the rank's.
    pub fn attach_thread(self) {
        SLOT.set(self.0);
    }

    /// Sets the activity of this thread's rank until the result is dropped. Does nothing if blocks
    /// are not recorded.
    pub fn owner(what: impl FnOnce() -> String) -> Doing {
        if !is_on() {
            return Doing(None);
        }
        let slot = SLOT.get();
        if slot == 0 {
            return Doing(None);
        }
        let number = with_state(|state| state.number(&what()));
        Doing(number.map(|number| (slot, DOING[usize::from(slot)].swap(number, Ordering::Relaxed))))
    }

    /// Sets the activity of this thread's rank from now on.
    pub fn set_owner(what: impl FnOnce() -> String) {
        if is_on()
            && SLOT.get() > 0
            && let Some(number) = with_state(|state| state.number(&what()))
        {
            DOING[usize::from(SLOT.get())].store(number, Ordering::Relaxed);
        }
    }

    /// Gives other owners to the blocks that contain one of these addresses. Returns the number of
    /// blocks that were found.
    pub fn rename(blocks: &[(usize, String)]) -> usize {
        let renamed = with_state(|state| {
            let mut starts: Vec<(usize, usize)> = state.live.iter().map(|(start, live)| (*start, live.bytes)).collect();
            starts.sort_unstable();
            let mut found = 0;
            for (address, name) in blocks {
                let Some((start, bytes)) = starts[..starts.partition_point(|(start, _)| start <= address)].last()
                else {
                    continue;
                };
                if address - start < *bytes {
                    let owner = state.number(name);
                    state.live.get_mut(start).expect("it is of the list").owner = owner;
                    found += 1;
                }
            }
            found
        });
        renamed.unwrap_or(0)
    }

    /// Opens a window for the rank of this thread: events are kept until [`Self::end_window`].
    pub fn begin_window() {
        with_state(|state| {
            state.openings += 1;
            if state.window.is_none() {
                state.window = Some((state.live.clone(), Instant::now(), Vec::new()));
            }
        });
    }

    /// Events of the blocks of this thread's rank since the window was opened; `None` without a
    /// window.
    pub fn end_window() -> Option<Window> {
        let slot = SLOT.get();
        with_state(|state| {
            let (start, began, events) = state.window.as_ref()?;
            let window = report::window(start, *began, events, &state.owners, slot, events.len() == MOST_EVENTS);
            state.openings -= 1;
            if state.openings == 0 {
                state.window = None;
            }
            Some(window)
        })?
    }
}

/// Activity of a rank, until it is dropped.
#[derive(Debug)]
#[must_use = "it ends when this is dropped"]
pub struct Doing(Option<(u8, u32)>);

impl Drop for Doing {
    fn drop(&mut self) {
        if let Some((slot, before)) = self.0 {
            DOING[usize::from(slot)].store(before, Ordering::Relaxed);
        }
    }
}

/// Reports that a block of `bytes` cannot be allocated, with the owners of all live blocks, on
/// standard error and in the file of [`start`].
pub(super) fn failed(bytes: usize) {
    let used = usage().map_or(0, |usage| usage.used_bytes);
    let told = with_state(|state| report::failure(bytes, &state.live, &state.owners, state.report.take(), NAMED));
    if told.is_none() {
        eprintln!(
            "out of memory: {bytes} bytes cannot be had; {used} bytes are in use in large blocks (profiling.record_memory_history = true says \
             by whom)"
        );
    }
}

#[cfg(test)]
mod tests;
