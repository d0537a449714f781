//! A global allocator that keeps large buffers.
//!
//! A training step allocates and frees the same large buffers again and again. The system's
//! allocator returns each to the kernel, and a quarter of a step goes into page faults on the way
//! back. [`LargeBlocks`] takes blocks from [`SMALLEST`] bytes on from one region of huge pages
//! (where the system allows them: fewer address translations make matrix products a fifth faster),
//! and everything smaller from the system's allocator.
//!
//! Freed blocks stay with the process and are joined with their neighbours, so that it holds at
//! most the peak of the memory in use, and fragmentation. Install it in a program with
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: bridge_memory::LargeBlocks = bridge_memory::LargeBlocks::new();
//! ```
//!
//! Off Linux, or where the system refuses the region, it is the system's allocator.

#[cfg(target_os = "linux")]
mod blocks;
pub mod history;
#[cfg(target_os = "linux")]
mod region;
mod trim;
mod usage;

use std::alloc::{GlobalAlloc, Layout, System};

#[cfg(target_os = "linux")]
use region::Region;
pub use trim::release_unused_memory;
pub use usage::{Usage, usage};

/// Bytes from which on a block comes from the region.
pub const SMALLEST: usize = 1 << 16;

/// The allocator. Use one in a program, as its `#[global_allocator]`.
pub struct LargeBlocks {
    #[cfg(target_os = "linux")]
    region: Region,
}

impl LargeBlocks {
    /// An allocator that has reserved nothing yet.
    pub const fn new() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            region: Region::new(),
        }
    }
}

impl Default for LargeBlocks {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(not(target_os = "linux"))]
// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for LargeBlocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Records a block from the system's allocator if it is large, and reports a failed allocation.
#[cfg(target_os = "linux")]
fn from_system(block: *mut u8, size: usize) -> *mut u8 {
    if size >= SMALLEST {
        if block.is_null() { history::failed(size) } else { history::took(block, size) }
    }
    block
}

#[cfg(target_os = "linux")]
// SAFETY: blocks of the region are exclusive, aligned and large enough (`Region::take`); a block
// goes back to where its address says it came from, which is true also while another thread
// reserves the region (`OnceLock`). Nothing here panics or unwinds: the region's calls return
// options.
unsafe impl GlobalAlloc for LargeBlocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= SMALLEST
            && let Some((block, _)) = self.region.take(layout)
        {
            history::took(block, layout.size());
            return block;
        }
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        from_system(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if history::is_on() && (layout.size() >= SMALLEST || self.region.room(block).is_some()) {
            history::gives(block);
        }
        if !self.region.give(block) {
            // SAFETY: it is not of the region, so it came from the system.
            unsafe { System.dealloc(block, layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= SMALLEST
            && let Some((block, zeroed)) = self.region.take(layout)
        {
            if !zeroed {
                // SAFETY: the block has at least this many bytes and nobody else has it.
                unsafe { block.write_bytes(0, layout.size()) };
            }
            history::took(block, layout.size());
            return block;
        }
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        from_system(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let room = self.region.room(block);
        if room.is_none() && size < SMALLEST {
            if layout.size() >= SMALLEST {
                history::gives(block);
            }
            // SAFETY: it is not of the region, so it came from the system; otherwise the caller's
            // contract.
            return unsafe { System.realloc(block, layout, size) };
        }
        if room.is_some_and(|room| size <= room && size > room / 2) {
            history::gives(block);
            history::took(block, size);
            return block;
        }
        // SAFETY: the caller promises that `size`, rounded up to the alignment, does not overflow.
        let new_layout = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: `size` is not zero by the caller's contract.
        let new = unsafe { self.alloc(new_layout) };
        if !new.is_null() {
            // SAFETY: both blocks have that many bytes and do not overlap; the old one is not used
            // again.
            unsafe {
                new.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
        }
        new
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 64).unwrap()
    }

    #[test]
    fn large_blocks_are_reused_and_small_ones_left_to_the_system() {
        let allocator = LargeBlocks::new();
        // SAFETY: every block is used within its size and freed once with its layout.
        unsafe {
            let large = allocator.alloc(layout(3 << 20));
            assert!(allocator.region.room(large).is_some());
            large.write_bytes(7, 3 << 20);
            allocator.dealloc(large, layout(3 << 20));
            let again = allocator.alloc(layout(3 << 20));
            assert_eq!(large, again);
            assert_eq!((*again, *again.add((3 << 20) - 1)), (7, 7), "the memory stayed");
            let small = allocator.alloc(layout(100));
            assert!(allocator.region.room(small).is_none());
            allocator.dealloc(small, layout(100));
            allocator.dealloc(again, layout(3 << 20));
        }
    }

    #[test]
    fn zeroed_blocks_are_zero_whether_fresh_or_used() {
        let allocator = LargeBlocks::new();
        // SAFETY: as above.
        unsafe {
            for _ in 0..2 {
                let block = allocator.alloc_zeroed(layout(300_001));
                let bytes = std::slice::from_raw_parts_mut(block, 300_001);
                assert!(bytes.iter().all(|b| *b == 0));
                bytes.fill(1);
                allocator.dealloc(block, layout(300_001));
            }
        }
    }

    #[test]
    fn growing_and_shrinking_keep_the_contents() {
        let allocator = LargeBlocks::new();
        // From the system to the region, further, and back; 65,600 and 65,700 are the same
        // granules.
        let sizes = [1_000, 65_600, 65_700, 1_000_000, 70_000, 500];
        // SAFETY: as above; each block is reallocated with the size it has.
        unsafe {
            let mut block = allocator.alloc(layout(sizes[0]));
            (0..500).for_each(|i| *block.add(i) = i as u8);
            for pair in sizes.windows(2) {
                block = allocator.realloc(block, layout(pair[0]), pair[1]);
                assert!((0..500).all(|i| *block.add(i) == i as u8), "{pair:?}");
            }
            allocator.dealloc(block, layout(500));
        }
    }

    #[test]
    fn threads_share_the_region() {
        let allocator = LargeBlocks::new();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let allocator = &allocator;
                scope.spawn(move || {
                    for round in 0..200_usize {
                        let size = SMALLEST + (round * 7919) % 500_000;
                        // SAFETY: as above.
                        unsafe {
                            let block = allocator.alloc(layout(size));
                            block.write_bytes(thread, size);
                            assert!(std::slice::from_raw_parts(block, size).iter().all(|b| *b == thread));
                            allocator.dealloc(block, layout(size));
                        }
                    }
                });
            }
        });
    }
}
