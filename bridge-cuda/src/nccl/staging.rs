//! Offsets of parts in staging memory, and its size. Plain arithmetic.

use std::ops::Range;

/// Parts start at multiples of this, for NCCL's widest loads.
const ALIGNMENT: usize = 256;

/// The minimum staging memory in bytes, so that small calls of different lengths do not reallocate.
const SMALLEST: usize = 64 << 10;

/// The bytes to allocate if `needed` are needed: powers of two, so that slowly growing calls rarely
/// reallocate.
pub(super) fn capacity(needed: usize) -> usize {
    needed.max(SMALLEST).checked_next_power_of_two().unwrap_or(needed)
}

/// Consecutive parts of given lengths, one per rank.
#[derive(Debug)]
pub(super) struct Parts {
    parts: Vec<Range<usize>>,
}

impl Parts {
    pub fn new(lens: impl Iterator<Item = usize>) -> Self {
        let mut end = 0usize;
        let parts = lens.map(|len| {
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + len;
            start..end
        });
        Self { parts: parts.collect() }
    }

    /// The ranks whose parts are not empty, with the ranges of the parts.
    pub fn parts(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        self.parts.iter().cloned().enumerate().filter(|(_, range)| !range.is_empty())
    }

    /// Bytes from the start of the first part to the end of the last.
    pub fn total(&self) -> usize {
        self.parts.last().map_or(0, |range| range.end)
    }

    /// True if there is nothing to move.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Range::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_in_powers_of_two() {
        assert_eq!(capacity(1), 64 << 10);
        assert_eq!(capacity((64 << 10) + 1), 128 << 10);
        assert_eq!(capacity(usize::MAX), usize::MAX);
    }

    #[test]
    fn parts_are_aligned_and_apart() {
        let staged = Parts::new([3, 0, 257, 256, 1].into_iter());
        let parts: Vec<_> = staged.parts().collect();
        assert_eq!(parts, [(0, 0..3), (2, 256..513), (3, 768..1024), (4, 1024..1025)]);
        assert_eq!(staged.total(), 1025);
        assert!(!staged.is_empty());
        let nothing = Parts::new([0, 0].into_iter());
        assert!(nothing.is_empty());
        assert_eq!((nothing.total(), nothing.parts().count()), (0, 0));
    }
}
