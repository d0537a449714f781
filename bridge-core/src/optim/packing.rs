//! Buckets that stay on the device: the tensors of parameters put together as they travel, and
//! taken apart again. The layout is `bucket`'s.

use std::ops::Range;

use bridge_regions::exchange::copied;
use burn::tensor::{DType, Device, FloatDType, Tensor};

use super::bucket::{Bucket, BucketEntry, owned_range};
use super::flat::part;

/// Positions of tensors that fill a bucket, and the dtype in which it is communicated.
#[derive(Clone, Copy)]
pub(super) struct Packing<'a> {
    pub device: &'a Device,
    pub dtype: DType,
}

impl Packing<'_> {
    fn zeros<const D: usize>(self, shape: [usize; D]) -> Tensor<D> {
        Tensor::zeros(shape, (self.device, self.dtype))
    }

    fn cast(self, x: Tensor<1>) -> Tensor<1> {
        if x.dtype() == self.dtype { x } else { x.cast(FloatDType::from(self.dtype)) }
    }

    /// `value` in the dtype of the packing; `len` zeros without a value.
    fn tensor_or_zeros(self, value: Option<Tensor<1>>, len: usize) -> Tensor<1> {
        value.map_or_else(|| self.zeros([len]), |value| self.cast(value))
    }

    /// Tensors one after the other, filled up with zeros.
    pub fn concatenated(self, pieces: impl Iterator<Item = (Option<Tensor<1>>, usize)>, length: usize) -> Tensor<1> {
        let mut pieces: Vec<Tensor<1>> = pieces.map(|(value, len)| self.tensor_or_zeros(value, len)).collect();
        let missing = length - pieces.iter().map(|piece| piece.dims()[0]).sum::<usize>();
        if missing > 0 || pieces.is_empty() {
            pieces.push(self.zeros([missing]));
        }
        Tensor::cat(pieces, 0)
    }

    /// A bucket whose elements lie rank by rank, from whole parameters.
    pub fn by_rank(self, bucket: &Bucket, mut take: impl FnMut(&str) -> Option<Tensor<1>>) -> Tensor<1> {
        let (ranks, part_len) = (bucket.num_ranks(), bucket.part_len());
        let values: Vec<Tensor<1>> =
            bucket.entries.iter().map(|entry| self.tensor_or_zeros(take(&entry.name), entry.num_elements)).collect();
        if bucket.is_even() {
            // Each parameter is a column of blocks: one operation for all ranks.
            let mut columns: Vec<Tensor<2>> = values.into_iter().map(|value| reshaped(value, ranks)).collect();
            let missing = part_len - columns.iter().map(|column| column.dims()[1]).sum::<usize>();
            if missing > 0 {
                columns.push(self.zeros([ranks, missing]));
            }
            return Tensor::cat(columns, 1).reshape([ranks * part_len]);
        }
        let parts = (0..ranks).map(|rank| {
            let of_rank = bucket.entries.iter().zip(&values).map(|(entry, value)| {
                let owned = owned_range(entry.num_elements, rank, ranks);
                (Some(part(value.clone(), &owned)), owned.len())
            });
            self.concatenated(of_rank, part_len)
        });
        Tensor::cat(parts.collect(), 0)
    }
}

fn reshaped(value: Tensor<1>, ranks: usize) -> Tensor<2> {
    let columns = value.dims()[0] / ranks;
    value.reshape([ranks, columns])
}

/// One parameter out of a bucket whose elements lie rank by rank, in memory of its own.
pub(super) fn parameter_of(bucket: &Bucket, entry: &BucketEntry, values: &Tensor<1>) -> Tensor<1> {
    let (ranks, part_len) = (bucket.num_ranks(), bucket.part_len());
    let within = |rank: usize| bucket.within_part(entry, rank);
    if bucket.is_even() {
        let Range { start, end } = within(0);
        let blocks = values.clone().reshape([ranks, part_len]).narrow(1, start, end - start);
        return copied(blocks).reshape([entry.num_elements]);
    }
    let pieces = (0..ranks).map(|rank| {
        let Range { start, end } = within(rank);
        part(values.clone(), &(rank * part_len + start..rank * part_len + end))
    });
    let mut pieces: Vec<Tensor<1>> = pieces.filter(|piece| piece.dims()[0] > 0).collect();
    match pieces.len() {
        1 => copied(pieces.remove(0)),
        _ => Tensor::cat(pieces, 0),
    }
}
