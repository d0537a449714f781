//! Weights that are gathered as codes of 8 bits: what ranks know of their scales, codes of what a rank owns, and values of what arrives.
//!
//! A scale is that of the whole weight on the ranks that divide it: one of earlier steps, which all of them have, or that of the largest
//! magnitude, on which they agree once for each update. Layers cast the values that arrive to the same codes with the same scale, so products are
//! those of the weights themselves, to the bit. Ranks keep the values of what they own, so updates and checkpoints know nothing of codes.

use std::collections::BTreeMap;

use bridge_dist::comm::{CommError, HostBuffer, ReduceOp};
use bridge_kernels::{WeightCast, read_together};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::Distribution;
use super::bucket::{Bucket, BucketEntry};
use crate::model::{CAST_SCALES, ReplicaGroup};

/// How the weights of a bucket that is on its way are cast, in their order.
pub(super) type Casts = Vec<WeightCast>;

/// What a rank knows of the weights that are gathered as codes, by name.
#[derive(Debug, Default)]
pub(super) struct CastGather {
    /// Scales that come from earlier steps.
    given: BTreeMap<String, f32>,
    /// The largest magnitudes on all ranks, until weights change.
    agreed: Option<BTreeMap<String, f32>>,
    /// The largest magnitudes of what this rank owns and has cast with given scales.
    noted: BTreeMap<String, f32>,
}

/// The weight whose layer has the scales called `name`, if that is what they are.
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

    /// Weights have changed.
    pub fn forget(&mut self) {
        self.agreed = None;
    }

    /// The largest magnitudes of what this rank owns of weights whose scales are given, as it sent them last. Layers see what codes stand for instead.
    pub fn take_noted(&mut self) -> BTreeMap<String, f32> {
        std::mem::take(&mut self.noted)
    }

    /// Agrees on what is not agreed upon. All ranks that share weights call this together, with what they own.
    fn agree(&mut self, distribution: &Distribution, owned: &BTreeMap<String, Tensor<1>>) -> Result<(), CommError> {
        if self.agreed.is_none() {
            let mut agreed = BTreeMap::new();
            for kind in [ReplicaGroup::Dense, ReplicaGroup::Expert] {
                let buckets = (0..distribution.num_chunks()).flat_map(|chunk| distribution.buckets(chunk));
                let cast = buckets.filter(|bucket| bucket.is_cast && bucket.replicas == kind);
                let names = cast.flat_map(|bucket| &bucket.entries).map(|entry| entry.name.clone());
                let names: Vec<String> = names.filter(|name| !self.given.contains_key(name)).collect();
                let tensors: Vec<Tensor<1>> = names.iter().map(|name| owned[name].clone()).collect();
                let mut largest: Vec<f32> =
                    floats(tensors).iter().map(|part| WeightCast::largest_magnitude(part)).collect();
                if !largest.is_empty() {
                    distribution.shards(kind).all_reduce((&mut largest).into(), ReduceOp::Max)?;
                }
                agreed.extend(names.into_iter().zip(largest));
            }
            self.agreed = Some(agreed);
        }
        Ok(())
    }

    /// This rank's part of a bucket, and how its weights are cast. All ranks that share weights call this together.
    ///
    /// # Errors
    /// If ranks cannot agree on largest magnitudes.
    pub fn encode(
        &mut self,
        bucket: &Bucket,
        distribution: &Distribution,
        owned: &BTreeMap<String, Tensor<1>>,
    ) -> Result<(HostBuffer, Casts), CommError> {
        let rank = distribution.shards(bucket.replicas).rank();
        self.agree(distribution, owned)?;
        let Self { given, agreed, noted } = self;
        let tensors: Vec<Tensor<1>> = bucket.entries.iter().map(|entry| owned[&entry.name].clone()).collect();
        let (mut part, mut casts) = (vec![0_u8; bucket.part_len()], Casts::with_capacity(bucket.entries.len()));
        for (entry, values) in bucket.entries.iter().zip(floats(tensors)) {
            let cast = match given.get(&entry.name) {
                Some(scale) => {
                    noted.insert(entry.name.clone(), WeightCast::largest_magnitude(&values));
                    WeightCast::with_scale(*scale)
                }
                None => WeightCast::of_largest(agreed.as_ref().expect("they just agreed")[&entry.name]),
            };
            part[bucket.within_part(entry, rank)].copy_from_slice(&cast.encode(&values));
            casts.push(cast);
        }
        Ok((HostBuffer::U8(part), casts))
    }
}

/// Values of tensors, read at once.
fn floats(tensors: Vec<Tensor<1>>) -> Vec<Vec<f32>> {
    read_together(tensors).into_iter().map(|data| data.iter::<f32>().collect()).collect()
}

/// One weight out of a gathered bucket.
pub(super) fn decoded(
    (bucket, entry): (&Bucket, &BucketEntry),
    codes: &[u8],
    cast: WeightCast,
    (device, dtype): (&Device, DType),
) -> Tensor<1> {
    let values = cast.decode(&bucket.gather(entry, codes));
    let data = TensorData::new(values, [entry.num_elements]);
    Tensor::<1>::from_data(data, (device, DType::F32)).cast(FloatDType::from(dtype))
}
