//! Parameters that are not trained but change, as biases of routers and scales of 8-bit operands
//! do: reading and writing them wherever ranks have them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bridge_dist::comm::{CommError, ReduceOp};
use bridge_kernels::read_together;
use burn::tensor::{Tensor, TensorData};

use super::sharded::{BucketState, ShardedParameters};
use crate::model::{ModelChunk, Replacement};

impl ShardedParameters {
    /// Parameters of `chunk` that are not trained, whole, in the order of `names`. All ranks that
    /// share them call this together.
    ///
    /// # Errors
    /// If parts of one cannot be gathered.
    ///
    /// # Panics
    /// If a name is not one of the chunk's.
    pub fn frozen_values(&self, chunk: &dyn ModelChunk, names: &[&str]) -> Result<Vec<Vec<f32>>, CommError> {
        let part_of = |name: &str| self.shards.get(name).zip(self.distribution.shard_range(name));
        let (whole, parts): (BTreeSet<&str>, BTreeSet<&str>) =
            names.iter().copied().partition(|name| part_of(name).is_none());
        let mut held: Vec<(String, Tensor<1>)> = Vec::new();
        chunk.visit_wanted(&|name| whole.contains(name), &mut |name, value| held.push((name.to_owned(), value)));
        let shards = parts.iter().filter_map(|name| Some(((*name).to_owned(), part_of(name)?.0.clone())));
        held.extend(shards);
        let (held, tensors): (Vec<String>, Vec<Tensor<1>>) = held.into_iter().unzip();
        // All at once: a device is waited for once.
        let floats = read_together(tensors).into_iter().map(|data| data.iter::<f32>().collect::<Vec<f32>>());
        let mut read: BTreeMap<String, Vec<f32>> = held.into_iter().zip(floats).collect();
        let value = |name: &&str| {
            let floats = read.remove(*name).expect("a parameter of the chunk");
            let Some((_, range)) = part_of(name) else { return Ok(floats) };
            let declaration = chunk.parameters().iter().find(|parameter| parameter.name == *name);
            let declaration = declaration.expect("a parameter of the chunk");
            let mut values = vec![0.0; declaration.num_elements()];
            values[range].copy_from_slice(&floats);
            let group = self.distribution.shards(declaration.placement.replicas);
            group.all_reduce((&mut values).into(), ReduceOp::Sum)?;
            Ok(values)
        };
        names.iter().map(value).collect()
    }

    /// Changes parameters of a chunk that are not trained, wherever this rank has them. All ranks
    /// that share one give it the same value.
    ///
    /// # Errors
    /// If a parameter is on its way and does not arrive.
    ///
    /// # Panics
    /// If a name is not one of the chunk's.
    pub fn set_frozen(
        &mut self,
        index: usize,
        chunk: &mut dyn ModelChunk,
        values: &BTreeMap<String, Vec<f64>>,
    ) -> Result<(), CommError> {
        let tensor = |like: &Tensor<1>, values: &[f64]| {
            let data = TensorData::new(values.to_vec(), [values.len()]).convert_dtype(like.dtype());
            Tensor::<1>::from_data(data, (&like.device(), like.dtype()))
        };
        let distribution = Arc::clone(&self.distribution);
        let mut released = BTreeSet::new();
        for (number, bucket) in distribution.buckets(index).iter().enumerate() {
            let here =
                || bucket.entries.iter().map(|entry| entry.name.as_str()).filter(|name| values.contains_key(*name));
            if here().next().is_none() {
                continue;
            }
            if matches!(self.states[index][number], BucketState::Gathering(_)) {
                self.unshard_buckets(index, chunk, &[number])?;
            }
            if matches!(self.states[index][number], BucketState::Released) {
                released.extend(here());
            }
        }
        for (name, value) in values {
            self.casts.take_scales(name, || value.iter().map(|value| *value as f32).collect());
            if let Some((shard, range)) = self.shards.get_mut(name).zip(distribution.shard_range(name)) {
                *shard = tensor(shard, &value[range]);
            }
        }
        let whole = values.keys().map(String::as_str).filter(|name| !released.contains(name));
        let whole: BTreeSet<&str> = whole.collect();
        let mut replacements = BTreeMap::new();
        chunk.visit_wanted(&|name| whole.contains(name), &mut |name, value| {
            let name = *whole.get(name).expect("it was asked for");
            replacements.insert(name, Replacement::Value(tensor(&value, &values[name])));
        });
        assert_eq!(replacements.len(), whole.len(), "all are parameters of the chunk");
        if !replacements.is_empty() {
            chunk.replace_parameters(replacements);
        }
        Ok(())
    }
}
