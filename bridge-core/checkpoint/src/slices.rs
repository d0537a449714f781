//! Rectangular slices of row-major tensors: tiling, intersection, runs. Touches no bytes.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A rectangular slice of a row-major tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSlice {
    /// First index, per dimension.
    pub offset: Vec<usize>,
    /// Number of indices, per dimension: the shape of the slice.
    pub extent: Vec<usize>,
}

impl fmt::Display for TensorSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:?} of {:?}", self.offset, self.extent)
    }
}

impl FromIterator<Range<usize>> for TensorSlice {
    /// The slice with these indices, one range per dimension.
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(ranges: I) -> Self {
        let (offset, extent) = ranges.into_iter().map(|range| (range.start, range.len())).unzip();
        Self { offset, extent }
    }
}

impl TensorSlice {
    /// The whole of a tensor.
    pub fn whole(shape: &[usize]) -> Self {
        shape.iter().map(|&size| 0..size).collect()
    }

    /// Some indices of the first dimension of a tensor. A scalar has no dimension, and is whole.
    pub fn rows(shape: &[usize], rows: Range<usize>) -> Self {
        let others = shape.iter().skip(1).map(|&size| 0..size);
        shape.first().map(|_| rows).into_iter().chain(others).collect()
    }

    /// Number of elements. The size in bytes of the tensor was checked.
    pub fn num_elements(&self) -> usize {
        count(self.extent.iter().copied())
    }

    /// Indices of one dimension. The slice is inside its tensor.
    pub fn range(&self, dim: usize) -> Range<usize> {
        self.offset[dim]..self.offset[dim] + self.extent[dim]
    }

    /// True if a tensor of `shape` has all elements of the slice.
    pub fn is_inside(&self, shape: &[usize]) -> bool {
        let mut dims = self.offset.iter().zip(&self.extent).zip(shape);
        (self.offset.len(), self.extent.len()) == (shape.len(), shape.len())
            && dims.all(|((offset, extent), size)| offset.checked_add(*extent).is_some_and(|end| end <= *size))
    }

    /// True if two slices of a tensor have elements in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        (0..self.offset.len()).all(|dim| !self.common(other, dim).is_empty())
    }

    /// Indices of one dimension that two slices of a tensor have in common.
    fn common(&self, other: &Self, dim: usize) -> Range<usize> {
        let (own, other) = (self.range(dim), other.range(dim));
        let start = own.start.max(other.start);
        start..own.end.min(other.end).max(start)
    }

    /// The runs that a stored slice contributes to a slice that is read, in the order in which they
    /// are stored.
    pub fn common_runs(&self, wanted: &Self) -> impl Iterator<Item = Run> + use<> {
        let dims = wanted.offset.len();
        let common: Vec<Range<usize>> = (0..dims).map(|dim| self.common(wanted, dim)).collect();
        let (source_strides, target_strides) = (strides(&self.extent), strides(&wanted.extent));
        // A dimension that is completely common continues the run of the dimension before it.
        let whole = |d: usize| common[d].len() == self.extent[d] && common[d].len() == wanted.extent[d];
        let split = (0..dims).rev().find(|&d| !whole(d)).unwrap_or(0);
        let len = count(common[split..].iter().map(ExactSizeIterator::len));
        let runs = if len == 0 { 0 } else { count(common[..split].iter().map(ExactSizeIterator::len)) };

        let start = |offset: &[usize], strides: &[usize]| -> usize {
            (0..dims).filter(|_| runs > 0).map(|d| (common[d].start - offset[d]) * strides[d]).sum()
        };
        let source_start = start(&self.offset, &source_strides);
        let target_start = start(&wanted.offset, &target_strides);
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
}

/// Number of elements of a tensor whose size in bytes was checked. In an empty tensor, the zero may
/// come after dimensions whose product overflows.
fn count(dims: impl Iterator<Item = usize> + Clone) -> usize {
    if dims.clone().any(|dim| dim == 0) { 0 } else { dims.product() }
}

/// Why `slices` do not tile a tensor of `shape` exactly, if so. `shape` has been checked to fit in
/// memory.
pub(super) fn tiling_problem(shape: &[usize], slices: &[&TensorSlice]) -> Option<String> {
    if let Some(slice) = slices.iter().find(|slice| !slice.is_inside(shape)) {
        return Some(format!("slice {slice} reaches outside {shape:?}"));
    }
    if let Some((a, b)) = overlapping(slices) {
        return Some(format!("slices {a} and {b} overlap"));
    }
    let expected = count(shape.iter().copied());
    let found: usize = slices.iter().map(|slice| slice.num_elements()).sum();
    (expected != found).then(|| format!("its slices hold {found} of {expected} elements"))
}

/// Two overlapping slices, if there are any. Sweeps along the first dimension, because a tensor
/// sharded over thousands of ranks has thousands of them; each is compared only with those that
/// begin before it ends.
fn overlapping<'a>(slices: &[&'a TensorSlice]) -> Option<(&'a TensorSlice, &'a TensorSlice)> {
    let start = |slice: &TensorSlice| slice.offset.first().copied().unwrap_or(0);
    let end = |slice: &TensorSlice| start(slice) + slice.extent.first().copied().unwrap_or(1);
    let mut order = slices.to_vec();
    order.sort_by_key(|slice| &slice.offset);
    let mut open: Vec<&TensorSlice> = Vec::new();
    for slice in order {
        open.retain(|earlier| end(earlier) > start(slice));
        if let Some(earlier) = open.iter().find(|earlier| earlier.overlaps(slice)) {
            return Some((earlier, slice));
        }
        open.push(slice);
    }
    None
}

/// Elements that are contiguous both in a stored slice and in the slice that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First element, counted from the beginning of the stored slice.
    pub source: usize,
    /// First element, counted from the beginning of the slice that is read.
    pub target: usize,
    /// Number of elements.
    pub len: usize,
}

fn strides(extent: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; extent.len()];
    for d in (1..extent.len()).rev() {
        // An empty tensor may have strides that overflow, but they are not used.
        strides[d - 1] = strides[d].saturating_mul(extent[d]);
    }
    strides
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slice(offset: &[usize], extent: &[usize]) -> TensorSlice {
        TensorSlice { offset: offset.to_vec(), extent: extent.to_vec() }
    }

    fn runs(offset: &[usize], extent: &[usize], wanted: &[Range<usize>]) -> Vec<Run> {
        slice(offset, extent).common_runs(&wanted.iter().cloned().collect()).collect()
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
        let tiling_problem =
            |shape: &[usize], slices: &[TensorSlice]| tiling_problem(shape, &slices.iter().collect::<Vec<_>>());
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
            let slice: TensorSlice = stored.iter().cloned().collect();
            let mut found: Vec<(usize, usize)> = runs(&slice.offset, &slice.extent, &wanted)
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
