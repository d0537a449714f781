//! The part of a tensor that one rank holds, as rectangular pieces of the whole tensor, for saving
//! and for loading in any other layout. No file access belongs here.

use std::ops::Range;

use super::error::CheckpointError;
use super::reader::Checkpoint;
use super::slices::{Run, TensorSlice};
use super::snapshot::ShardTensor;
use super::tensor::HostTensor;

/// The position in the whole tensor of the part that one rank holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalShard {
    /// Shape of the part.
    pub shape: Vec<usize>,
    /// The sharded dimension; `None` if the part is the whole tensor.
    pub shard: Option<Shard>,
}

/// The slice of a tensor that one rank holds, along one dimension.
///
/// The local tensor is the concatenation, along `dim`, of the index ranges `parts` of the whole.
/// Most slices have one part; a gated unit's first matrix has two (gate rows and up rows), so that
/// each rank holds matching halves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The sharded dimension.
    pub dim: usize,
    /// Size of the whole along `dim`.
    pub size: usize,
    /// Index ranges along `dim` of the whole, in local order. Disjoint.
    pub parts: Vec<Range<usize>>,
}

impl Shard {
    /// The `rank`-th of `ranks` equal slices of a dimension made of `blocks` equal blocks, each of
    /// which is divided alike.
    ///
    /// `blocks` is 1 for most matrices and 2 for a gated unit's first one.
    ///
    /// # Panics
    /// If `size` is not divisible by `blocks * ranks`.
    pub fn even(dim: usize, size: usize, blocks: usize, rank: usize, ranks: usize) -> Self {
        assert_eq!(size % (blocks * ranks), 0, "{size} is not divisible into {blocks} blocks over {ranks} ranks");
        let (block, part) = (size / blocks, size / blocks / ranks);
        let parts = (0..blocks).map(|i| i * block + rank * part..i * block + (rank + 1) * part).collect();
        Self { dim, size, parts }
    }

    /// The `rank`-th of `ranks` equal slices of each of several blocks of a dimension, of these
    /// sizes.
    ///
    /// # Panics
    /// If one of the sizes is not divisible by `ranks`.
    pub fn sections(dim: usize, sizes: &[usize], rank: usize, ranks: usize) -> Self {
        let mut end = 0;
        let mut parts = Vec::new();
        for size in sizes.iter().filter(|size| **size > 0) {
            assert_eq!(size % ranks, 0, "{size} is not divisible over {ranks} ranks");
            let (start, part) = (end, size / ranks);
            end += size;
            parts.push(start + rank * part..start + (rank + 1) * part);
        }
        Self { dim, size: end, parts }
    }

    /// The `rank`-th of `ranks` slices of a dimension that need not be divisible: the first ranks
    /// hold one more index than the rest.
    pub fn balanced(dim: usize, size: usize, rank: usize, ranks: usize) -> Self {
        let start = |rank: usize| rank * (size / ranks) + rank.min(size % ranks);
        Self { dim, size, parts: std::iter::once(start(rank)..start(rank + 1)).collect() }
    }

    /// Size of the local tensor along `dim`.
    pub fn local_size(&self) -> usize {
        self.parts.iter().map(Range::len).sum()
    }
}

/// A rectangle of a rank's part that is also a rectangle of the whole tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The rectangle in the rank's part.
    pub local: TensorSlice,
    /// The same elements in the whole tensor.
    pub global: TensorSlice,
}

impl LocalShard {
    /// A part that is the whole.
    pub fn whole(shape: impl Into<Vec<usize>>) -> Self {
        Self { shape: shape.into(), shard: None }
    }

    /// Shape of the whole.
    pub fn global_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some(shard) = &self.shard {
            shape[shard.dim] = shard.size;
        }
        shape
    }

    /// Number of elements of the part.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The pieces that consist of elements `flat` of the part (row-major).
    pub fn pieces(&self, flat: &Range<usize>) -> Vec<Piece> {
        let boxes = if *flat == (0..self.num_elements()) {
            vec![TensorSlice::whole(&self.shape)]
        } else {
            boxes(&self.shape, flat.clone())
        };
        boxes.into_iter().flat_map(|local| self.split_at_parts(local)).collect()
    }

    /// Splits a rectangle where the indices of the rank's part are not contiguous.
    fn split_at_parts(&self, local: TensorSlice) -> Vec<Piece> {
        let Some(Shard { dim, parts, .. }) = &self.shard else {
            return vec![Piece { global: local.clone(), local }];
        };
        let mut begin = 0;
        let mut pieces = Vec::with_capacity(parts.len());
        for part in parts {
            let range = local.range(*dim);
            let common = range.start.max(begin)..range.end.min(begin + part.len());
            if !common.is_empty() {
                let mut piece = Piece { global: local.clone(), local: local.clone() };
                piece.local.offset[*dim] = common.start;
                piece.global.offset[*dim] = part.start + common.start - begin;
                (piece.local.extent[*dim], piece.global.extent[*dim]) = (common.len(), common.len());
                pieces.push(piece);
            }
            begin += part.len();
        }
        pieces
    }

    /// The contiguous runs of a piece in the rank's part: `source` counts from the beginning of the
    /// part, `target` from that of the piece.
    pub fn runs(&self, piece: &Piece) -> impl Iterator<Item = Run> + use<> {
        TensorSlice::whole(&self.shape).common_runs(&piece.local)
    }

    fn check(&self, name: &str, flat: &Range<usize>, values: &HostTensor) -> Result<(), CheckpointError> {
        let held: usize = values.shape().iter().product();
        if let Some(Shard { dim, parts, .. }) = &self.shard {
            let rows: usize = parts.iter().map(ExactSizeIterator::len).sum();
            if self.shape.get(*dim) != Some(&rows) {
                let reason = format!("its parts hold {rows} indices of dimension {dim}, its shape is {:?}", self.shape);
                return Err(CheckpointError::invalid_snapshot(name, reason));
            }
        }
        if flat.end > self.num_elements() || flat.len() != held {
            let reason = format!("elements {flat:?} of {:?} were expected, {held} are given", self.shape);
            return Err(CheckpointError::invalid_snapshot(name, reason));
        }
        Ok(())
    }
}

/// The rectangles of a run of elements of a row-major tensor: the end of a row, whole rows, the
/// beginning of a row.
fn boxes(shape: &[usize], flat: Range<usize>) -> Vec<TensorSlice> {
    if flat.is_empty() {
        return Vec::new();
    }
    let Some((_, inner)) = shape.split_first() else { return vec![TensorSlice::whole(&[])] };
    let stride: usize = inner.iter().product();
    let below = |index: usize, flat: Range<usize>| {
        boxes(inner, flat).into_iter().map(move |mut slice| {
            slice.offset.insert(0, index);
            slice.extent.insert(0, 1);
            slice
        })
    };
    let (first, last) = (flat.start / stride, flat.end / stride);
    let (begun, left) = (flat.start % stride, flat.end % stride);
    if first == last {
        return below(first, begun..left).collect();
    }
    let whole = if begun == 0 { first..last } else { first + 1..last };
    let mut found: Vec<_> = if begun == 0 { Vec::new() } else { below(first, begun..stride).collect() };
    if !whole.is_empty() {
        found.push(TensorSlice::rows(shape, whole));
    }
    found.extend(below(last, 0..left));
    found
}

impl ShardTensor {
    /// The slices of the tensor `name` that a rank saves: elements `flat` of its part (row-major).
    /// `values` has exactly these elements; its shape does not matter. The memory of
    /// a contiguous slice is shared.
    ///
    /// # Errors
    /// If `values` has another number of elements, or `shard` contradicts itself.
    pub fn of_local(
        name: &str,
        shard: &LocalShard,
        flat: Range<usize>,
        values: &HostTensor,
    ) -> Result<Vec<Self>, CheckpointError> {
        shard.check(name, &flat, values)?;
        let size = values.dtype().size();
        let global_shape = shard.global_shape();
        let slice = |piece: Piece| {
            let runs: Vec<Run> = shard.runs(&piece).collect();
            let bytes_of = |run: &Run| {
                let start = (run.source - flat.start) * size;
                start..start + run.len * size
            };
            let bytes = match runs.as_slice() {
                [run] => values.bytes().slice(bytes_of(run)),
                runs => runs.iter().flat_map(|run| &values.bytes()[bytes_of(run)]).copied().collect(),
            };
            let TensorSlice { offset, extent } = piece.global;
            let source = HostTensor::new(values.dtype(), extent, bytes)?;
            Ok(Self::slice(name, global_shape.clone(), offset, source))
        };
        shard.pieces(&flat).into_iter().map(slice).collect()
    }
}

impl Checkpoint {
    /// Reads elements `flat` of a rank's part of a tensor, saved in any layout. The result has one
    /// dimension.
    ///
    /// Besides the result, this needs memory for one non-contiguous piece of it, and a megabyte.
    ///
    /// # Errors
    /// If there is no tensor of that name, the whole tensor has another shape, or a file cannot be
    /// read.
    pub fn load_local(
        &self,
        name: &str,
        shard: &LocalShard,
        flat: Range<usize>,
    ) -> Result<HostTensor, CheckpointError> {
        let dtype = self.tensor(name)?.dtype;
        self.expect(name, dtype, &shard.global_shape())?;
        let size = dtype.size();
        let mut bytes = vec![0; flat.len() * size];
        for piece in shard.pieces(&flat) {
            let runs: Vec<Run> = shard.runs(&piece).collect();
            let bytes_of = |run: &Run| {
                let start = (run.source - flat.start) * size;
                start..start + run.len * size
            };
            if let [run] = runs.as_slice() {
                self.read_slice_into(name, &piece.global, &mut bytes[bytes_of(run)])?;
                continue;
            }
            let slice = self.load_slice(name, &piece.global)?;
            for run in &runs {
                bytes[bytes_of(run)].copy_from_slice(&slice.bytes()[run.target * size..][..run.len * size]);
            }
        }
        HostTensor::new(dtype, [flat.len()], bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::bytes_of;
    use super::*;

    /// Global position of each local element, in local order.
    fn positions(shard: &LocalShard) -> Vec<usize> {
        let global = shard.global_shape();
        (0..shard.num_elements())
            .map(|mut index| {
                let mut at = vec![0; shard.shape.len()];
                for d in (0..at.len()).rev() {
                    at[d] = index % shard.shape[d];
                    index /= shard.shape[d];
                }
                if let Some(cut) = &shard.shard {
                    at[cut.dim] = cut.parts.iter().cloned().flatten().nth(at[cut.dim]).unwrap();
                }
                at.iter().zip(&global).fold(0, |sum, (i, size)| sum * size + i)
            })
            .collect()
    }

    fn layouts() -> impl Strategy<Value = LocalShard> {
        (prop::collection::vec(1usize..5, 1..4), any::<prop::sample::Index>(), 1usize..4, 1usize..3, 0usize..3)
            .prop_map(|(mut shape, dim, ranks, blocks, rank)| {
                let dim = dim.index(shape.len());
                let part = shape[dim];
                let block = ranks * part;
                let parts = (0..blocks).map(|b| b * block + (rank % ranks) * part).map(|start| start..start + part);
                let shard = Shard { dim, size: blocks * block, parts: parts.collect() };
                shape[dim] = blocks * part;
                LocalShard { shape, shard: (ranks * blocks > 1).then_some(shard) }
            })
    }

    proptest! {
        #[test]
        fn pieces_hold_each_element_once_and_in_its_place(shard in layouts(), a in 0usize..200, b in 0usize..200) {
            let count = shard.num_elements();
            let flat = (a.min(b) % (count + 1)).min(a.max(b) % (count + 1))..(a.max(b) % (count + 1)).max(a.min(b) % (count + 1));
            let positions = positions(&shard);
            let values: Vec<i64> = positions[flat.clone()].iter().map(|p| *p as i64).collect();
            let values = HostTensor::from_vec([flat.len()], values).unwrap();
            let global = shard.global_shape();
            let mut found = Vec::new();
            for slice in ShardTensor::of_local("w", &shard, flat.clone(), &values).unwrap() {
                prop_assert_eq!(&slice.global_shape, &global);
                let inside = LocalShard::whole(slice.source.shape());
                let numbers: Vec<i64> = bytemuck::pod_collect_to_vec(&bytes_of(&slice.source));
                for (index, number) in numbers.into_iter().enumerate() {
                    let mut rest = index;
                    let mut at = slice.offset.clone();
                    for d in (0..at.len()).rev() {
                        at[d] += rest % inside.shape[d];
                        rest /= inside.shape[d];
                    }
                    let position = at.iter().zip(&global).fold(0, |sum, (i, size)| sum * size + i);
                    prop_assert_eq!(position as i64, number);
                    found.push(position);
                }
            }
            found.sort_unstable();
            let mut expected = positions[flat].to_vec();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_run_of_elements_is_a_few_rectangles() {
        let slice = |ranges: [Range<usize>; 2]| TensorSlice::from_iter(ranges);
        assert_eq!(boxes(&[4, 5], 3..17), [[0..1, 3..5], [1..3, 0..5], [3..4, 0..2]].map(slice));
        assert_eq!(boxes(&[4, 5], 5..10), [slice([1..2, 0..5])]);
        assert_eq!(boxes(&[4, 5], 6..8), [slice([1..2, 1..3])]);
        assert_eq!(boxes(&[2, 3, 4], 0..13).len(), 2);
        assert!(boxes(&[4, 5], 7..7).is_empty());
    }

    #[test]
    fn empty_tensors_and_scalars_are_kept() {
        let empty = HostTensor::from_vec([0, 7], Vec::<f32>::new()).unwrap();
        let slices = ShardTensor::of_local("w", &LocalShard::whole([0, 7]), 0..0, &empty).unwrap();
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0].global_shape, [0, 7]);
        let scalar = HostTensor::scalar(3_i64);
        assert_eq!(ShardTensor::of_local("w", &LocalShard::whole([]), 0..1, &scalar).unwrap().len(), 1);
    }

    #[test]
    fn contradictions_are_errors() {
        let values = HostTensor::from_vec([6], vec![0_f32; 6]).unwrap();
        let shard = LocalShard { shape: vec![3, 2], shard: Some(Shard { dim: 0, size: 9, parts: vec![0..1, 4..5] }) };
        let error = ShardTensor::of_local("w", &shard, 0..6, &values).unwrap_err().to_string();
        assert!(error.contains("`w`") && error.contains("hold 2 indices"), "{error}");
        let error = ShardTensor::of_local("w", &LocalShard::whole([3, 2]), 0..5, &values).unwrap_err().to_string();
        assert!(error.contains("6 are given"), "{error}");
    }
}
