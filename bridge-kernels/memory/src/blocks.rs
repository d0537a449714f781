//! Free blocks of a region: a good fit in constant time, neighbours joined when they are freed.
//!
//! Blocks are runs of granules, named by the number of their first one. Free blocks hang in bins by
//! size, eight bins for each power of two (two-level segregated fit, Masmano and others 2004). All
//! bookkeeping is in a table beside the region, so that unused memory is never touched.

/// No granule.
const NONE: u32 = u32::MAX;
/// Bins for each power of two, as a power of two.
const SPLIT: u32 = 3;
/// Bins: sizes fit 32 bits.
const BINS: usize = ((33 - SPLIT) << SPLIT) as usize;
/// Maximum number of free blocks tried in a request's own bin, where a block may be too small.
const LOOKS: usize = 16;

/// State of one granule. Only the first and the last granule of a block are kept up to date.
#[derive(Clone, Copy, Default)]
pub(super) struct Granule {
    /// First of a block: its size.
    size: u32,
    /// First of a block: whether it is used.
    used: bool,
    /// First of a free block: its neighbours in the bin.
    previous: u32,
    next: u32,
    /// Last of a block: the first.
    first: u32,
}

/// The state of a region.
pub(super) struct Blocks<'a> {
    granules: &'a mut [Granule],
    heads: [u32; BINS],
    /// One bit a bin: whether it has blocks.
    occupied: [u64; BINS.div_ceil(64)],
    /// Granules from here on have never been handed out.
    untouched: u32,
}

/// A block that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// First granule of the block.
    pub first: u32,
    /// True if no part of the block was ever handed out before.
    pub fresh: bool,
}

/// The bin that holds blocks of `size`.
fn bin(size: u32) -> usize {
    if size < 1 << SPLIT {
        return size as usize;
    }
    let log = size.ilog2();
    let part = (size >> (log - SPLIT)) & ((1 << SPLIT) - 1);
    (((log - SPLIT + 1) << SPLIT) + part) as usize
}

impl<'a> Blocks<'a> {
    /// One free block over all of `granules`, whose contents do not matter. At least one, fewer
    /// than `u32::MAX`.
    pub fn new(granules: &'a mut [Granule]) -> Self {
        let count = granules.len() as u32;
        let mut blocks = Self { granules, heads: [NONE; BINS], occupied: [0; BINS.div_ceil(64)], untouched: 0 };
        blocks.insert(0, count);
        blocks
    }

    /// Size of the block that starts at `first`.
    pub fn size(&self, first: u32) -> u32 {
        self.granules[first as usize].size
    }

    /// Granules that have been handed out at one time or another, with those before them.
    pub fn untouched(&self) -> u32 {
        self.untouched
    }

    /// A block of `size` granules, at least one; `None` if no free block is as large.
    pub fn take(&mut self, size: u32) -> Option<Taken> {
        let first = self.find(size)?;
        self.remove(first);
        let rest = self.size(first) - size;
        if rest > 0 {
            self.insert(first + size, rest);
        }
        self.granules[first as usize].size = size;
        self.granules[first as usize].used = true;
        self.granules[(first + size - 1) as usize].first = first;
        let fresh = first >= self.untouched;
        self.untouched = self.untouched.max(first + size);
        Some(Taken { first, fresh })
    }

    /// Frees the block that starts at `first` and joins it with free neighbours.
    pub fn give(&mut self, first: u32) {
        let (mut first, mut end) = (first, first + self.size(first));
        if first > 0 {
            let before = self.granules[(first - 1) as usize].first;
            if !self.granules[before as usize].used {
                self.remove(before);
                first = before;
            }
        }
        if (end as usize) < self.granules.len() && !self.granules[end as usize].used {
            self.remove(end);
            end += self.size(end);
        }
        self.insert(first, end - first);
    }

    /// A free block of at least `size` granules.
    fn find(&self, size: u32) -> Option<u32> {
        // Steps of training ask for the same sizes over and over: the block freed last in the bin
        // is often exact.
        let own = bin(size);
        let (mut block, mut best) = (self.heads[own], NONE);
        for _ in 0..LOOKS {
            if block == NONE {
                break;
            }
            if self.size(block) >= size && (best == NONE || self.size(block) < self.size(best)) {
                best = block;
            }
            block = self.granules[block as usize].next;
        }
        if best != NONE {
            return Some(best);
        }
        // Every block of a later bin is larger.
        let from = own + 1;
        (from / 64..self.occupied.len()).find_map(|word| {
            let skipped = if word == from / 64 { from % 64 } else { 0 };
            let bits = self.occupied[word] >> skipped << skipped;
            (bits != 0).then(|| self.heads[word * 64 + bits.trailing_zeros() as usize])
        })
    }

    fn insert(&mut self, first: u32, size: u32) {
        let bin = bin(size);
        let next = self.heads[bin];
        self.granules[first as usize] = Granule { size, used: false, previous: NONE, next, first: NONE };
        self.granules[(first + size - 1) as usize].first = first;
        if next != NONE {
            self.granules[next as usize].previous = first;
        }
        self.heads[bin] = first;
        self.occupied[bin / 64] |= 1 << (bin % 64);
    }

    fn remove(&mut self, first: u32) {
        let Granule { size, previous, next, .. } = self.granules[first as usize];
        let bin = bin(size);
        match previous {
            NONE => self.heads[bin] = next,
            previous => self.granules[previous as usize].next = next,
        }
        if next != NONE {
            self.granules[next as usize].previous = previous;
        }
        if self.heads[bin] == NONE {
            self.occupied[bin / 64] &= !(1 << (bin % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_in_order_of_size() {
        for size in 1..5000_u32 {
            assert!(bin(size) <= bin(size + 1), "{size}");
            assert!(bin(size + 1) - bin(size) <= 1, "{size}");
        }
        assert!(bin(u32::MAX) < BINS);
        assert_eq!(bin(1 << 20), bin((1 << 20) + (1 << 17) - 1));
        assert_ne!(bin(1 << 20), bin((1 << 20) + (1 << 17)));
    }

    #[test]
    fn blocks_never_overlap_and_join_again() {
        const COUNT: usize = 700;
        let mut granules = vec![Granule::default(); COUNT];
        let mut blocks = Blocks::new(&mut granules);
        let mut owner = [0_u32; COUNT];
        let mut live: Vec<Taken> = Vec::new();
        let (mut refused, mut reused) = (0, 0);
        // Xorshift32 (Marsaglia 2003).
        let words = std::iter::successors(Some(2_463_534_242_u32), |x| {
            let x = x ^ x << 13;
            let x = x ^ x >> 17;
            Some(x ^ x << 5)
        });
        for (id, word) in (1..4000).zip(words) {
            let size = 1 + word % 60;
            if word >> 31 == 0 || live.is_empty() {
                let Some(taken) = blocks.take(size) else {
                    refused += 1;
                    continue;
                };
                let range = taken.first as usize..(taken.first + size) as usize;
                assert!(owner[range.clone()].iter().all(|o| *o == 0 || *o == NONE), "granules handed out twice");
                assert_eq!(taken.fresh, owner[range.clone()].iter().all(|o| *o == 0), "fresh means never used");
                reused += u32::from(!taken.fresh);
                owner[range].fill(id);
                live.push(taken);
            } else {
                let taken = live.swap_remove((word >> 8) as usize % live.len());
                let range = taken.first as usize..(taken.first + blocks.size(taken.first)) as usize;
                assert!(owner[range.clone()].iter().all(|o| *o == owner[range.start]), "a block was split while used");
                owner[range].fill(NONE);
                blocks.give(taken.first);
            }
        }
        assert!(refused > 0 && reused > 0, "the test fills the region and takes blocks again");
        live.iter().for_each(|taken| blocks.give(taken.first));
        assert_eq!(blocks.take(COUNT as u32), Some(Taken { first: 0, fresh: false }), "all joined to one");
        assert_eq!(blocks.take(1), None);
    }

    #[test]
    fn the_same_sizes_come_back_to_the_same_places() {
        let mut granules = vec![Granule::default(); 1000];
        let mut blocks = Blocks::new(&mut granules);
        let sizes = [17, 100, 33, 5, 64];
        let first: Vec<u32> = sizes.iter().map(|s| blocks.take(*s).unwrap().first).collect();
        let touched = blocks.untouched;
        for _ in 0..10 {
            first.iter().for_each(|f| blocks.give(*f));
            sizes.iter().for_each(|s| assert!(!blocks.take(*s).unwrap().fresh));
        }
        assert_eq!(blocks.untouched, touched, "no further memory is touched");
    }
}
