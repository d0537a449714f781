//! The reserved address range behind [`super::LargeBlocks`], and the lock on its bookkeeping.

use std::alloc::Layout;
use std::ops::Range;
use std::ptr::{self, null_mut};
use std::sync::{Mutex, MutexGuard, OnceLock};

use super::blocks::{Blocks, Granule, Taken};
use super::usage::COUNTERS;

/// Bytes of a granule, the unit and the alignment of blocks.
const GRANULE: usize = 1 << 14;
/// Bytes of a huge page.
const HUGE_PAGE: usize = 1 << 21;
/// The smallest range worth having.
const SMALLEST_RANGE: usize = 1 << 28;

/// A range of addresses, reserved when the first block is taken.
pub(super) struct Region {
    /// Address range, read without the lock to find out if a block belongs to the region. Unset
    /// until the range is reserved.
    addresses: OnceLock<Range<usize>>,
    state: Mutex<State>,
}

#[expect(clippy::large_enum_variant, reason = "a program has one, and an allocator cannot box")]
enum State {
    Unreserved,
    Refused,
    Reserved(Blocks<'static>),
}

impl Region {
    pub const fn new() -> Self {
        Self { addresses: OnceLock::new(), state: Mutex::new(State::Unreserved) }
    }

    /// A block for `layout`, with true if it is known to hold zeros; `None` if the region is full
    /// or the alignment is unusual.
    pub fn take(&self, layout: Layout) -> Option<(*mut u8, bool)> {
        if layout.align() > GRANULE {
            return None;
        }
        let size = u32::try_from(layout.size().div_ceil(GRANULE)).ok()?;
        let mut state = self.lock();
        if let State::Unreserved = *state {
            *state = self.reserve().map_or(State::Refused, State::Reserved);
        }
        let State::Reserved(blocks) = &mut *state else { return None };
        let Taken { first, fresh } = blocks.take(size)?;
        COUNTERS.took(size as usize * GRANULE, blocks.untouched() as usize * GRANULE);
        let address = self.addresses.get()?.start + first as usize * GRANULE;
        Some((ptr::with_exposed_provenance_mut(address), fresh))
    }

    /// Takes a block back; false if it is not of this region.
    pub fn give(&self, block: *mut u8) -> bool {
        let Some(first) = self.granule(block) else { return false };
        if let State::Reserved(blocks) = &mut *self.lock() {
            COUNTERS.gave(blocks.size(first) as usize * GRANULE);
            blocks.give(first);
        }
        true
    }

    /// Bytes that a block of this region has, `None` for one of another origin.
    pub fn room(&self, block: *mut u8) -> Option<usize> {
        let first = self.granule(block)?;
        match &*self.lock() {
            State::Reserved(blocks) => Some(blocks.size(first) as usize * GRANULE),
            State::Unreserved | State::Refused => None,
        }
    }

    /// Number of a block's first granule.
    fn granule(&self, block: *mut u8) -> Option<u32> {
        let range = self.addresses.get().filter(|range| range.contains(&block.addr()))?;
        Some(((block.addr() - range.start) / GRANULE) as u32)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Code that holds the lock does not panic. If it did, the table would still be usable.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Reserves as many addresses as the machine has memory, or as many as the system grants. No
    /// memory is committed yet.
    fn reserve(&self) -> Option<Blocks<'static>> {
        // SAFETY: no arguments that could be wrong.
        let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        let memory = usize::try_from(pages).ok()?.checked_mul(usize::try_from(page).ok()?)?;
        let whole = memory.min((u32::MAX as usize - 1).saturating_mul(GRANULE)) / HUGE_PAGE * HUGE_PAGE;
        let mut size = whole;
        while size >= SMALLEST_RANGE {
            if let Some(start) = map(size + HUGE_PAGE) {
                if size < whole {
                    // The process has a limit: stacks of threads and small blocks need room beside
                    // the range.
                    let granted = size + HUGE_PAGE;
                    size = size / 2 / HUGE_PAGE * HUGE_PAGE;
                    let rest = size + HUGE_PAGE;
                    // SAFETY: the end of the mapping that was just made, at a multiple of a page;
                    // nothing uses it.
                    unsafe { libc::munmap(start.add(rest).cast(), granted - rest) };
                }
                let count = size / GRANULE;
                let table = map(count * size_of::<Granule>())?.cast::<Granule>();
                let aligned = start.addr().next_multiple_of(HUGE_PAGE);
                start.expose_provenance();
                // SAFETY: the range is our own. Where huge pages are not to be had the advice does
                // nothing.
                unsafe { libc::madvise(start.with_addr(aligned).cast(), size, libc::MADV_HUGEPAGE) };
                self.addresses.set(aligned..aligned + size).ok()?;
                // SAFETY: fresh zeroed memory for `count` granules, aligned to a page, never
                // unmapped; all-zero is a valid `Granule`.
                return Some(Blocks::new(unsafe { std::slice::from_raw_parts_mut(table, count) }));
            }
            size = size / 2 / HUGE_PAGE * HUGE_PAGE;
        }
        None
    }
}

/// Zeroed memory that is occupied when it is touched.
fn map(size: usize) -> Option<*mut u8> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping at an address of the system's choice.
    let start = unsafe { libc::mmap(null_mut(), size, protection, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(start.cast())
}
