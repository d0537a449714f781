//! Free memory of the system's allocator.

/// Gives memory that was freed back to the system: the allocator of the GNU C library keeps what small blocks had, page by page between others, for small
/// blocks to come. Worth its milliseconds after a phase with many of them. Elsewhere it does nothing.
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: it takes the allocator's own locks, and releases pages in which no block is.
    unsafe {
        libc::malloc_trim(0);
    }
}
