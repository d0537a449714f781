//! Weights that are gathered as 8-bit codes: agreement on scales, encoding of a rank's shard, and
//! decoding of gathered codes.
//!
//! All ranks that shard a weight use one scale for the whole weight. The scale is known from
//! earlier steps, or comes from the largest magnitude, on which ranks agree once for each update.
//! Layers cast the values that arrive to the same codes with the same scale, so products are those
//! of the weights themselves, to the bit. Ranks keep the values of their shards, so updates and
//! checkpoints do not use codes.

use std::collections::BTreeMap;
use std::ops::Range;

use bridge_dist::comm::{CommError, HostBuffer, ReduceOp};
use bridge_kernels::{CodePlaces, WeightCast, read_together};
use bridge_regions::exchange::TransferBuffer;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::Distribution;
use super::bucket::{Bucket, BucketEntry};
use super::packing::Packing;
use crate::model::{CAST_SCALES, ReplicaGroup};

/// Casts of the weights of a bucket in flight, in their order.
pub(super) type Casts = Vec<WeightCast>;

/// Largest magnitude (amax) of this rank's shard of a weight.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a bucket has a few at a time")]
enum ShardAmax {
    OnHost(f32),
    /// `[1]`.
    OnDevice(Tensor<1>),
}

/// State of the weights that are gathered as codes, by name.
#[derive(Debug, Default)]
pub(super) struct CastGather {
    /// Scales that come from earlier steps.
    given: BTreeMap<String, f32>,
    /// The largest magnitudes on all ranks, until weights change.
    agreed: Option<BTreeMap<String, f32>>,
    /// Magnitudes of weights that this rank owns and has cast with given scales.
    shard_amax: BTreeMap<String, ShardAmax>,
}

/// The weight of the layer whose scales are the parameter `name`; `None` for other parameters.
fn weight_of(name: &str) -> Option<String> {
    name.strip_suffix(CAST_SCALES).map(|layer| format!("{layer}weight"))
}

impl CastGather {
    /// Takes the values of a parameter, if it is the scales of a layer.
    pub fn take_scales(&mut self, name: &str, scales: impl FnOnce() -> Vec<f32>) {
        if let Some(weight) = weight_of(name) {
            // Of input, weight and gradient.
            self.given.insert(weight, scales()[1]);
        }
    }

    /// Drops the agreed magnitudes, because weights have changed.
    pub fn forget(&mut self) {
        self.agreed = None;
    }

    /// Takes the largest magnitudes of this rank's shards of the weights with given scales, as of
    /// the last gather. They are recorded here because layers see only decoded values.
    pub fn take_shard_amax(&mut self) -> BTreeMap<String, f32> {
        let (mut largest, mut names, mut there) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (name, amax) in std::mem::take(&mut self.shard_amax) {
            match amax {
                ShardAmax::OnHost(value) => drop(largest.insert(name, value)),
                ShardAmax::OnDevice(value) => {
                    names.push(name);
                    there.push(value);
                }
            }
        }
        largest.extend(names.into_iter().zip(largest_magnitudes(there)));
        largest
    }

    /// Agrees on missing magnitudes. All ranks that share weights call this together, with their
    /// shards.
    fn agree(&mut self, distribution: &Distribution, owned: &BTreeMap<String, Tensor<1>>) -> Result<(), CommError> {
        if self.agreed.is_none() {
            let mut agreed = BTreeMap::new();
            for kind in [ReplicaGroup::Dense, ReplicaGroup::Expert] {
                let buckets = (0..distribution.num_chunks()).flat_map(|chunk| distribution.buckets(chunk));
                let cast = buckets.filter(|bucket| bucket.is_cast && bucket.replicas == kind);
                let names = cast.flat_map(|bucket| &bucket.entries).map(|entry| entry.name.clone());
                let names: Vec<String> = names.filter(|name| !self.given.contains_key(name)).collect();
                // A device reads its weights itself.
                let part =
                    |name: &String| WeightCast::largest_on_device(&owned[name]).unwrap_or_else(|| owned[name].clone());
                let mut largest = largest_magnitudes(names.iter().map(part).collect());
                if !largest.is_empty() {
                    distribution.shards(kind).all_reduce((&mut largest).into(), ReduceOp::Max)?;
                }
                agreed.extend(names.into_iter().zip(largest));
            }
            self.agreed = Some(agreed);
        }
        Ok(())
    }

    /// This rank's part of a bucket, on the device if the values are there and codes are
    /// communicated `on_device`, four codes an element, and how its weights are cast. All ranks
    /// that share weights call this together. Fails if ranks cannot agree on largest magnitudes.
    pub fn encode(
        &mut self,
        bucket: &Bucket,
        distribution: &Distribution,
        owned: &BTreeMap<String, Tensor<1>>,
        on_device: bool,
    ) -> Result<(TransferBuffer, Casts), CommError> {
        let rank = distribution.shards(bucket.replicas).rank();
        self.agree(distribution, owned)?;
        let cast = |name: &String| match self.given.get(name) {
            Some(scale) => WeightCast::with_scale(*scale),
            None => WeightCast::from_amax(self.agreed.as_ref().expect("they just agreed")[name]),
        };
        let casts: Casts = bucket.entries.iter().map(|entry| cast(&entry.name)).collect();
        let values = |entry: &BucketEntry| owned[&entry.name].clone();
        if on_device && let Some(codes) = encoded_on_device(bucket, rank, values, &casts) {
            self.record_amax(bucket, |place| {
                match WeightCast::largest_on_device(&owned[&bucket.entries[place].name]) {
                    Some(largest) => ShardAmax::OnDevice(largest),
                    // This rank owns no element of the weight.
                    None => ShardAmax::OnHost(0.0),
                }
            });
            return Ok((TransferBuffer::OnDevice(codes), casts));
        }
        let values = floats(bucket.entries.iter().map(values).collect());
        let mut part = vec![0_u8; bucket.code_len()];
        for ((entry, values), cast) in bucket.entries.iter().zip(&values).zip(&casts) {
            part[bucket.within_part(entry, rank)].copy_from_slice(&cast.encode(values));
        }
        self.record_amax(bucket, |place| ShardAmax::OnHost(WeightCast::largest_magnitude(&values[place])));
        Ok((TransferBuffer::OnHost(HostBuffer::U8(part)), casts))
    }

    /// Records the largest magnitudes of the weights of a bucket that have given scales. `largest`
    /// takes the index of a weight in the bucket.
    fn record_amax(&mut self, bucket: &Bucket, largest: impl Fn(usize) -> ShardAmax) {
        for (place, BucketEntry { name, .. }) in bucket.entries.iter().enumerate() {
            if self.given.contains_key(name) {
                self.shard_amax.insert(name.clone(), largest(place));
            }
        }
    }
}

/// Values of tensors, read at once.
fn floats(tensors: Vec<Tensor<1>>) -> Vec<Vec<f32>> {
    read_together(tensors).into_iter().map(|data| data.iter::<f32>().collect()).collect()
}

/// The largest magnitude of each tensor; a device is waited for once.
fn largest_magnitudes(tensors: Vec<Tensor<1>>) -> Vec<f32> {
    floats(tensors).iter().map(|part| WeightCast::largest_magnitude(part)).collect()
}

/// Layout of the weights of a bucket in the parts of some ranks.
fn places(bucket: &Bucket, ranks: Range<usize>) -> CodePlaces {
    let ends_in = |rank: usize| bucket.entries.iter().map(|entry| bucket.within_part(entry, rank).end).collect();
    CodePlaces { ends: ranks.map(ends_in).collect(), length: bucket.part_len() }
}

/// The codes of a rank's part of a bucket, made on the device; `None` if its values are on none.
fn encoded_on_device(
    bucket: &Bucket,
    rank: usize,
    values: impl Fn(&BucketEntry) -> Tensor<1>,
    casts: &[WeightCast],
) -> Option<Tensor<1>> {
    let first = values(bucket.entries.first()?);
    let packing = Packing { device: &first.device(), dtype: first.dtype() };
    let pieces = bucket.entries.iter().map(|entry| (Some(values(entry)), bucket.within_part(entry, rank).len()));
    let part = packing.concatenated(pieces, bucket.part_len());
    places(bucket, rank..rank + 1).encode(&part, casts)
}

/// The values of a whole bucket of codes on a device, in the bucket's order.
pub(super) fn decoded_on_device(bucket: &Bucket, codes: &Tensor<1>, casts: &[WeightCast], dtype: DType) -> Tensor<1> {
    let values = places(bucket, 0..bucket.num_ranks()).decode(codes, casts, dtype);
    values.expect("codes that were made on a device")
}

/// One weight out of a gathered bucket.
pub(super) fn decoded_on_host(
    bucket: &Bucket,
    entry: &BucketEntry,
    codes: &[u8],
    cast: WeightCast,
    device: &Device,
    dtype: DType,
) -> Tensor<1> {
    let of_rank = |rank: usize| {
        let Range { start, end } = bucket.within_part(entry, rank);
        let first = rank * bucket.code_len();
        cast.decode(&codes[first + start..first + end])
    };
    let values: Vec<f32> = (0..bucket.num_ranks()).flat_map(of_rank).collect();
    let data = TensorData::new(values, [entry.num_elements]);
    Tensor::<1>::from_data(data, (device, DType::F32)).cast(FloatDType::from(dtype))
}
