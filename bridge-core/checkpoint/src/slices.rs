//! Arithmetic of rectangular slices of row-major tensors: tiling, intersection, contiguous runs.
//! Touches no bytes.

use std::ops::Range;

/// A rectangular slice of a tensor: offset and extent per dimension.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slice<'a> {
    pub(super) offset: &'a [usize],
    pub(super) extent: &'a [usize],
}

impl Slice<'_> {
    /// Elements in it.
    fn len(&self) -> usize {
        count(self.extent.iter().copied())
    }

    fn overlaps(&self, other: &Self) -> bool {
        let dims = self.offset.iter().zip(self.extent).zip(other.offset.iter().zip(other.extent));
        dims.into_iter().all(|((a, a_len), (b, b_len))| a.max(b) < &(a + a_len).min(b + b_len))
    }
}

/// Number of elements of a tensor whose size in bytes was checked. In an empty tensor, the zero may
/// come after dimensions whose product overflows.
fn count(dims: impl Iterator<Item = usize> + Clone) -> usize {
    if dims.clone().any(|dim| dim == 0) { 0 } else { dims.product() }
}

/// Why `slices` do not tile a tensor of `shape` exactly, if so. `shape` has been checked to fit in
/// memory.
pub(super) fn tiling_problem(shape: &[usize], slices: &[Slice<'_>]) -> Option<String> {
    for Slice { offset, extent } in slices {
        let ranks_fit = offset.len() == shape.len() && extent.len() == shape.len();
        let inside =
            offset.iter().zip(*extent).zip(shape).all(|((o, e), s)| o.checked_add(*e).is_some_and(|end| end <= *s));
        if !(ranks_fit && inside) {
            return Some(format!("slice at {offset:?} of {extent:?} reaches outside {shape:?}"));
        }
    }
    if let Some((a, b)) = overlapping(slices) {
        return Some(format!(
            "slices at {:?} of {:?} and at {:?} of {:?} overlap",
            a.offset, a.extent, b.offset, b.extent
        ));
    }
    let expected = count(shape.iter().copied());
    let found: usize = slices.iter().map(Slice::len).sum();
    (expected != found).then(|| format!("its slices hold {found} of {expected} elements"))
}

/// Two overlapping slices, if there are any. Sweeps along the first dimension, because a tensor
/// sharded over thousands of ranks has thousands of them; each is compared only with those that
/// begin before it ends.
fn overlapping<'r, 'a>(slices: &'r [Slice<'a>]) -> Option<(&'r Slice<'a>, &'r Slice<'a>)> {
    let start = |slice: &Slice| slice.offset.first().copied().unwrap_or(0);
    let end = |slice: &Slice| start(slice) + slice.extent.first().copied().unwrap_or(1);
    let mut order: Vec<&Slice> = slices.iter().collect();
    order.sort_by_key(|slice| slice.offset);
    let mut open: Vec<&Slice> = Vec::new();
    for slice in order {
        open.retain(|earlier| end(earlier) > start(slice));
        if let Some(earlier) = open.iter().find(|earlier| earlier.overlaps(slice)) {
            return Some((earlier, slice));
        }
        open.push(slice);
    }
    None
}

/// Elements that are contiguous both in a stored slice and in the part that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// First element, counted from the beginning of the stored slice.
    pub(super) source: usize,
    /// First element, counted from the beginning of the part that is read.
    pub(super) target: usize,
    /// Number of elements.
    pub(super) len: usize,
}

/// The runs that `stored` contributes to `wanted`, in the order in which they are stored.
pub(super) fn common_runs(stored: Slice<'_>, wanted: &[Range<usize>]) -> impl Iterator<Item = Run> + use<> {
    let dims = wanted.len();
    let common: Vec<Range<usize>> = (0..dims)
        .map(|d| {
            let end = (stored.offset[d] + stored.extent[d]).min(wanted[d].end);
            let start = stored.offset[d].max(wanted[d].start);
            start..end.max(start)
        })
        .collect();
    let wanted_extent: Vec<usize> = wanted.iter().map(ExactSizeIterator::len).collect();
    let (source_strides, target_strides) = (strides(stored.extent), strides(&wanted_extent));
    // A dimension that is completely common continues the run of the dimension before it.
    let whole = |d: usize| common[d].len() == stored.extent[d] && common[d].len() == wanted_extent[d];
    let split = (0..dims).rev().find(|&d| !whole(d)).unwrap_or(0);
    let len = count(common[split..].iter().map(ExactSizeIterator::len));
    let runs = if len == 0 { 0 } else { count(common[..split].iter().map(ExactSizeIterator::len)) };

    let start = |origin: &dyn Fn(usize) -> usize, strides: &[usize]| -> usize {
        (0..dims).filter(|_| runs > 0).map(|d| (common[d].start - origin(d)) * strides[d]).sum()
    };
    let source_start = start(&|d| stored.offset[d], &source_strides);
    let target_start = start(&|d| wanted[d].start, &target_strides);
    let outer: Vec<usize> = common[..split].iter().map(ExactSizeIterator::len).collect();
    (0..runs).map(move |mut index| {
        let mut run = Run { source: source_start, target: target_start, len };
        for d in (0..split).rev() {
            let position = index % outer[d];
            index /= outer[d];
            run.source += position * source_strides[d];
            run.target += position * target_strides[d];
        }
        run
    })
}

fn strides(extent: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; extent.len()];
    for d in (1..extent.len()).rev() {
        // An empty tensor may have strides that do not fit; none of them is used.
        strides[d - 1] = strides[d].saturating_mul(extent[d]);
    }
    strides
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn runs(offset: &[usize], extent: &[usize], wanted: &[Range<usize>]) -> Vec<Run> {
        common_runs(Slice { offset, extent }, wanted).collect()
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one range a dimension")]
    fn contiguous_parts_are_one_run() {
        assert_eq!(runs(&[], &[], &[]), [Run { source: 0, target: 0, len: 1 }]);
        assert_eq!(runs(&[0, 0], &[3, 5], &[0..3, 0..5]), [Run { source: 0, target: 0, len: 15 }]);
        assert_eq!(runs(&[0, 0], &[3, 5], &[1..3, 0..5]), [Run { source: 5, target: 0, len: 10 }]);
        assert_eq!(runs(&[4], &[3], &[0..11]), [Run { source: 0, target: 4, len: 3 }]);
        assert_eq!(runs(&[0, 0], &[3, 5], &[3..3, 0..5]), []);
        assert_eq!(runs(&[4], &[3], &[0..4]), []);
        assert_eq!(runs(&[4], &[3], &[8..9]), []);
    }

    #[test]
    fn columns_are_one_run_a_row() {
        let expected = [Run { source: 1, target: 0, len: 2 }, Run { source: 6, target: 2, len: 2 }];
        assert_eq!(runs(&[0, 0], &[2, 5], &[0..2, 1..3]), expected);
    }

    #[test]
    fn tilings_are_checked() {
        let slice = |o: &'static [usize], e: &'static [usize]| Slice { offset: o, extent: e };
        assert_eq!(tiling_problem(&[4, 3], &[slice(&[0, 0], &[2, 3]), slice(&[2, 0], &[2, 3])]), None);
        assert_eq!(tiling_problem(&[], &[slice(&[], &[])]), None);
        assert_eq!(tiling_problem(&[0, 3], &[slice(&[0, 0], &[0, 3])]), None);
        let gap = tiling_problem(&[4, 3], &[slice(&[0, 0], &[2, 3])]).unwrap();
        assert!(gap.contains("6 of 12"), "{gap}");
        let twice = tiling_problem(&[], &[slice(&[], &[]), slice(&[], &[])]).unwrap();
        assert!(twice.contains("overlap"), "{twice}");
        assert!(tiling_problem(&[4], &[slice(&[3], &[2])]).unwrap().contains("outside"));
        assert!(tiling_problem(&[4], &[slice(&[usize::MAX], &[2])]).unwrap().contains("outside"));
        assert!(tiling_problem(&[4], &[slice(&[0, 0], &[4, 1])]).unwrap().contains("outside"));
        let empty: &'static [usize] = &[usize::MAX, usize::MAX, 0];
        assert_eq!(tiling_problem(empty, &[slice(&[0, 0, 0], empty)]), None);
        assert_eq!(runs(&[0, 0, 0], empty, &[0..usize::MAX, 0..usize::MAX, 0..0]), []);
        assert_eq!(runs(&[0, 0], &[0, usize::MAX], &[0..0, 0..usize::MAX]), []);
        // A gap and an overlap of the same size.
        let both = tiling_problem(&[4], &[slice(&[0], &[2]), slice(&[1], &[2])]).unwrap();
        assert!(both.contains("overlap"), "{both}");
    }

    fn part(shape: Vec<usize>) -> impl Strategy<Value = Vec<Range<usize>>> {
        shape.into_iter().map(|dim| (0..=dim, 0..=dim).prop_map(|(a, b)| a.min(b)..a.max(b))).collect::<Vec<_>>()
    }

    fn cases() -> impl Strategy<Value = (Vec<usize>, Vec<Range<usize>>, Vec<Range<usize>>)> {
        prop::collection::vec(0usize..6, 0..4)
            .prop_flat_map(|shape| (Just(shape.clone()), part(shape.clone()), part(shape)))
    }

    /// Position of a global coordinate inside a part, row-major; `None` outside.
    fn position(at: &[usize], part: &[Range<usize>]) -> Option<usize> {
        at.iter()
            .zip(part)
            .try_fold(0, |sum, (x, range)| range.contains(x).then(|| sum * range.len() + x - range.start))
    }

    proptest! {
        #[test]
        fn runs_hold_each_common_element_once((shape, stored, wanted) in cases()) {
            let offset: Vec<usize> = stored.iter().map(|r| r.start).collect();
            let extent: Vec<usize> = stored.iter().map(|r| r.len()).collect();
            let mut found: Vec<(usize, usize)> = runs(&offset, &extent, &wanted)
                .into_iter()
                .flat_map(|run| (0..run.len).map(move |i| (run.source + i, run.target + i)))
                .collect();
            let count: usize = shape.iter().product();
            let mut expected: Vec<(usize, usize)> = (0..count)
                .filter_map(|mut index| {
                    let mut at = vec![0; shape.len()];
                    for d in (0..shape.len()).rev() {
                        at[d] = index % shape[d];
                        index /= shape[d];
                    }
                    Some((position(&at, &stored)?, position(&at, &wanted)?))
                })
                .collect();
            prop_assert!(found.is_sorted_by_key(|(source, _)| *source));
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
