//! Sharding of one dimension of a tensor over ranks, and the copies between a whole tensor and its
//! parts in rank order. No communication here.

use std::ops::Range;

use bridge_dist::comm::HostBuffer;

/// Index ranges of a dimension that each rank of a group holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Rank `r` has the `r`-th of equal parts.
    Contiguous,
    /// Twice as many equal chunks as there are ranks: rank `r` has chunk `r` and chunk `2 ranks - 1
    /// - r`. Under a causal mask this balances the attention work.
    Zigzag,
}

impl Cut {
    /// The ranges of `0..size` that `rank` of `ranks` holds, in local order.
    ///
    /// # Panics
    /// If `size` does not divide into equal parts: `ranks` of them, or `2 ranks` for a zigzag.
    pub fn parts(self, size: usize, rank: usize, ranks: usize) -> Vec<Range<usize>> {
        let chunks = match self {
            Self::Contiguous => ranks,
            Self::Zigzag => 2 * ranks,
        };
        assert!(size.is_multiple_of(chunks), "a dimension of {size} does not divide into {chunks} equal parts");
        let chunk = size / chunks;
        let range = |index: usize| index * chunk..(index + 1) * chunk;
        match self {
            Self::Contiguous => vec![range(rank)],
            Self::Zigzag => vec![range(rank), range(2 * ranks - 1 - rank)],
        }
    }
}

/// A tensor viewed as `[outer, size, inner]`, whose middle dimension is sharded over `ranks` ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub outer: usize,
    /// Size of the whole dimension.
    pub size: usize,
    pub inner: usize,
    pub cut: Cut,
    pub ranks: usize,
}

impl Block {
    /// True if the whole is the concatenation of the parts, so that nothing has to be moved.
    fn is_in_order(&self) -> bool {
        self.outer == 1 && self.cut == Cut::Contiguous
    }

    /// Elements of one rank's part.
    fn part_len(&self) -> usize {
        self.outer * self.size / self.ranks * self.inner
    }

    /// Calls `copy` with each run of elements: its range in the whole, and where it starts in the
    /// parts in rank order.
    fn for_each_run(&self, mut copy: impl FnMut(Range<usize>, usize)) {
        let mut place = 0;
        for rank in 0..self.ranks {
            place = self.for_each_run_of(rank, place, &mut copy);
        }
    }

    fn for_each_run_of(&self, rank: usize, mut place: usize, copy: &mut impl FnMut(Range<usize>, usize)) -> usize {
        let parts = self.cut.parts(self.size, rank, self.ranks);
        for outer in 0..self.outer {
            for part in &parts {
                let start = (outer * self.size + part.start) * self.inner;
                let len = part.len() * self.inner;
                copy(start..start + len, place);
                place += len;
            }
        }
        place
    }
}

/// The parts of all ranks, one after the other, from the whole tensor.
pub(super) fn parts_from_whole(whole: HostBuffer, block: &Block) -> HostBuffer {
    if block.is_in_order() {
        return whole;
    }
    let mut parts = HostBuffer::zeros(whole.dtype(), whole.len());
    block.for_each_run(|range, place| {
        parts.view_mut().slice(place..place + range.len()).copy_from(whole.view().slice(range));
    });
    parts
}

/// The whole tensor from the parts of all ranks, one after the other.
pub(super) fn whole_from_parts(parts: HostBuffer, block: &Block) -> HostBuffer {
    if block.is_in_order() {
        return parts;
    }
    let mut whole = HostBuffer::zeros(parts.dtype(), parts.len());
    block.for_each_run(|range, place| {
        whole.view_mut().slice(range.clone()).copy_from(parts.view().slice(place..place + range.len()));
    });
    whole
}

/// The part of one rank from the whole tensor.
pub(super) fn part_of_whole(whole: &HostBuffer, block: &Block, rank: usize) -> HostBuffer {
    let mut part = HostBuffer::zeros(whole.dtype(), block.part_len());
    block.for_each_run_of(rank, 0, &mut |range, place| {
        part.view_mut().slice(place..place + range.len()).copy_from(whole.view().slice(range));
    });
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_tile_the_dimension() {
        for cut in [Cut::Contiguous, Cut::Zigzag] {
            for ranks in 1..5 {
                let size = 6 * ranks;
                let mut seen: Vec<usize> = (0..ranks).flat_map(|rank| cut.parts(size, rank, ranks)).flatten().collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..size).collect::<Vec<_>>(), "{cut:?} over {ranks}");
            }
        }
        assert_eq!(Cut::Zigzag.parts(12, 1, 3), [2..4, 8..10]);
    }

    #[test]
    fn whole_and_parts_are_inverse() {
        for cut in [Cut::Contiguous, Cut::Zigzag] {
            let block = Block { outer: 3, size: 12, inner: 5, cut, ranks: 2 };
            let whole = HostBuffer::from((0..180).collect::<Vec<i32>>());
            let parts = parts_from_whole(whole.clone(), &block);
            assert_ne!(parts, whole);
            let one = part_of_whole(&whole, &block, 1);
            assert_eq!(one.view().as_slice::<i32>(), parts.view().slice(90..180).as_slice::<i32>());
            assert_eq!(whole_from_parts(parts, &block), whole);
        }
    }
}
