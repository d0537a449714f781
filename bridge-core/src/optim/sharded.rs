//! Parameters of which each data-parallel rank keeps or updates only the ranges it owns: gathering
//! them before a segment needs them, and freeing them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bridge_dist::comm::{CommError, HostBuffer};
use bridge_regions::exchange::{PendingTransfer, TensorExchange, TransferBuffer};
use burn::tensor::{DType, Device, Tensor, TensorData};
use half::{bf16, f16};

use super::bucket::{Bucket, BucketEntry};
use super::cast_gather::{CastGather, Casts, decoded_on_device, decoded_on_host};
use super::distribution::Distribution;
use super::flat::{bytes_of, detached_part, part};
use super::packing::{Packing, parameter_of};
use super::settings::Sharding;
use crate::model::{DeferredParameters, ModelChunk, Replacement};

/// State of the parameters of a bucket.
pub(super) enum BucketState {
    /// The chunk has the whole parameters.
    Whole,
    /// The gather of the parameters is in flight.
    Gathering(Gathering),
    /// Each rank has the ranges it owns.
    Released,
}

/// A bucket that is being gathered, with its parameters.
pub(super) struct Gathering {
    transfer: PendingTransfer,
    device: Device,
    dtype: DType,
    /// Casts of weights that are gathered as 8-bit codes.
    casts: Casts,
}

/// A gathered bucket.
enum Gathered {
    OnHost { values: HostBuffer, device: Device, dtype: DType, casts: Casts },
    OnDevice(Box<Tensor<1>>),
}

impl Gathering {
    fn wait(self, bucket: &Bucket) -> Result<Gathered, CommError> {
        let Self { transfer, device, dtype, casts } = self;
        Ok(match transfer.wait()? {
            TransferBuffer::OnHost(values) => Gathered::OnHost { values, device, dtype, casts },
            TransferBuffer::OnDevice(values) if casts.is_empty() => Gathered::OnDevice(Box::new(values)),
            TransferBuffer::OnDevice(codes) => {
                Gathered::OnDevice(Box::new(decoded_on_device(bucket, &codes, &casts, dtype)))
            }
        })
    }
}

impl Gathered {
    /// The parameter in one place of a bucket.
    fn parameter(&self, bucket: &Bucket, place: usize, entry: &BucketEntry) -> Tensor<1> {
        match self {
            Self::OnHost { values: HostBuffer::U8(codes), device, dtype, casts } => {
                decoded_on_host(bucket, entry, codes, casts[place], device, *dtype)
            }
            Self::OnHost { values, device, dtype, .. } => parameter_from_host(bucket, entry, values, device, *dtype),
            Self::OnDevice(values) => parameter_of(bucket, entry, values),
        }
    }
}

/// The parameters of a rank's chunks, as far as their optimizer state is sharded.
pub struct ShardedParameters {
    pub(super) distribution: Arc<Distribution>,
    /// Ranges that this rank owns, if parameters themselves are sharded.
    pub(super) shards: BTreeMap<String, Tensor<1>>,
    /// States by chunk and bucket.
    pub(super) states: Vec<Vec<BucketState>>,
    /// By chunk and segment, the buckets with parameters that the segment uses.
    uses: Vec<Vec<Vec<usize>>>,
    waited: Duration,
    pub(super) casts: CastGather,
}

impl std::fmt::Debug for ShardedParameters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardedParameters").field("sharding", &self.distribution.sharding()).finish_non_exhaustive()
    }
}

impl ShardedParameters {
    /// The parameters of `chunks`, which are whole.
    pub(super) fn new(distribution: Arc<Distribution>, chunks: &[Box<dyn ModelChunk>]) -> Self {
        let states = (0..distribution.num_chunks())
            .map(|chunk| distribution.buckets(chunk).iter().map(|_| BucketState::Whole).collect())
            .collect();
        let uses =
            chunks.iter().enumerate().map(|(i, chunk)| buckets_of_segments(chunk.as_ref(), distribution.buckets(i)));
        let uses = uses.collect();
        let (shards, casts) = (BTreeMap::new(), CastGather::default());
        Self { distribution, shards, states, uses, waited: Duration::ZERO, casts }
    }

    /// State that is divided among data-parallel ranks.
    pub fn sharding(&self) -> Sharding {
        self.distribution.sharding()
    }

    /// True if parameters are dropped between uses, so that every segment is recomputed from its
    /// input.
    fn is_full(&self) -> bool {
        self.sharding() == Sharding::Full
    }

    /// Gathers the parameters that some segments of a chunk use.
    ///
    /// # Errors
    /// If they cannot be gathered.
    pub fn unshard(
        &mut self,
        index: usize,
        chunk: &mut dyn ModelChunk,
        segments: &Range<usize>,
    ) -> Result<(), CommError> {
        self.unshard_buckets(index, chunk, &self.buckets_of(index, segments))
    }

    /// Starts to gather the parameters of some segments that run soon, if gathers overlap with
    /// computation.
    ///
    /// # Errors
    /// If that cannot be started.
    pub fn prefetch(&mut self, index: usize, segments: &Range<usize>) -> Result<(), CommError> {
        if !self.distribution.overlap_param_gather() {
            return Ok(());
        }
        for bucket in self.buckets_of(index, segments) {
            self.start_released(index, bucket)?;
        }
        Ok(())
    }

    /// Frees the gathered parameters of some segments, if parameters are sharded.
    pub fn reshard(&mut self, index: usize, chunk: &mut dyn ModelChunk, segments: &Range<usize>) {
        if !self.is_full() {
            return;
        }
        let distribution = Arc::clone(&self.distribution);
        let mut released = BTreeMap::new();
        for bucket in self.buckets_of(index, segments) {
            if matches!(self.states[index][bucket], BucketState::Whole) {
                self.states[index][bucket] = BucketState::Released;
                let names = distribution.buckets(index)[bucket].entries.iter().map(|entry| entry.name.as_str());
                released.extend(names.map(|name| (name, Replacement::Released)));
            }
        }
        if !released.is_empty() {
            chunk.replace_parameters(released);
        }
    }

    /// Waits for gathers in flight and hands their values to the chunks. Parameters that are
    /// sharded stay so.
    ///
    /// # Errors
    /// If they cannot be gathered.
    pub fn wait_for_gathers(&mut self, chunks: &mut [Box<dyn ModelChunk>]) -> Result<(), CommError> {
        if self.is_full() { Ok(()) } else { self.make_whole(chunks) }
    }

    /// Ranges of sharded parameters that this rank owns, by name: empty if parameters are not
    /// sharded.
    pub fn shards(&self) -> &BTreeMap<String, Tensor<1>> {
        &self.shards
    }

    /// Makes all parameters whole, for use after training. The rank needs memory for all of them.
    ///
    /// # Errors
    /// If they cannot be gathered.
    pub fn make_whole(&mut self, chunks: &mut [Box<dyn ModelChunk>]) -> Result<(), CommError> {
        for (index, chunk) in chunks.iter_mut().enumerate() {
            // The buckets in the order of their use in forward: all ranks gather in one order.
            let all: Vec<usize> = (0..self.states[index].len()).rev().collect();
            self.gather_values(index, chunk.as_mut(), &all)?;
            self.unshard_buckets(index, chunk.as_mut(), &all)?;
        }
        Ok(())
    }

    /// Starts to gather the values of weights that are otherwise gathered as 8-bit codes, which
    /// only their layers may take for them.
    fn gather_values(&mut self, index: usize, chunk: &mut dyn ModelChunk, buckets: &[usize]) -> Result<(), CommError> {
        let distribution = Arc::clone(&self.distribution);
        for &number in buckets {
            let bucket = &distribution.buckets(index)[number];
            if bucket.is_cast {
                if matches!(self.states[index][number], BucketState::Gathering(_)) {
                    self.unshard_buckets(index, chunk, &[number])?;
                }
                let gathering = self.start(bucket, |name| self.shards.get(name).cloned())?;
                self.states[index][number] = BucketState::Gathering(gathering);
            }
        }
        Ok(())
    }

    /// If parameters are sharded, keeps this rank's shards of newly built parameters, and releases
    /// the rest. Only one whole parameter at a time is in memory; parameters of `deferred` are made
    /// here.
    pub fn shard(&mut self, chunks: &mut [Box<dyn ModelChunk>], deferred: &DeferredParameters) {
        if !self.is_full() {
            return;
        }
        for (index, chunk) in chunks.iter_mut().enumerate() {
            let in_buckets = names_in(self.distribution.buckets(index));
            let (distribution, shards, casts) = (&self.distribution, &mut self.shards, &mut self.casts);
            chunk.update_parameters(&mut |name, value| {
                let value = match deferred.take(name) {
                    Some(make) => {
                        drop(value);
                        make()
                    }
                    None => value,
                };
                casts.take_scales(name, || value.clone().into_data().iter::<f32>().collect());
                if let Some(range) = distribution.shard_range(name) {
                    shards.insert(name.to_owned(), detached_part(value.clone(), &range));
                }
                // Parameters outside buckets (without replicas, or of another dtype) stay whole.
                if in_buckets.contains(name) { Replacement::Released } else { Replacement::Value(value) }
            });
            self.states[index].fill_with(|| BucketState::Released);
        }
    }

    /// Bytes of the parameters that this rank keeps between steps: all parameters of `chunks`, or
    /// with sharded parameters the owned shards.
    pub(super) fn kept_bytes(&self, chunks: &[Box<dyn ModelChunk>]) -> u64 {
        let parameters = || chunks.iter().flat_map(|chunk| chunk.parameters());
        let quantized: BTreeMap<&str, u64> = parameters()
            .filter(|parameter| parameter.quantization.is_some())
            .map(|parameter| (parameter.name.as_str(), parameter.bytes(0)))
            .collect();
        let mut bytes = quantized.values().sum();
        for value in self.shards.values() {
            bytes += bytes_of(value);
        }
        for chunk in chunks {
            let is_whole = |name: &str| !self.shards.contains_key(name) && !quantized.contains_key(name);
            chunk.visit_wanted(&is_whole, &mut |_, value| bytes += bytes_of(&value));
        }
        bytes
    }

    /// Calls `f` with every parameter of `chunks` as this rank keeps it: the owned shard of sharded
    /// parameters, and all other parameters whole.
    pub(super) fn visit_kept(&self, chunks: &[Box<dyn ModelChunk>], f: &mut dyn FnMut(&str, &Tensor<1>)) {
        for (name, value) in &self.shards {
            f(name, value);
        }
        for chunk in chunks {
            chunk.visit_wanted(&|name| !self.shards.contains_key(name), &mut |name, value| f(name, &value));
        }
    }

    /// Takes, by name, the largest magnitudes since the last call of this rank's shards of weights
    /// that are gathered as codes.
    pub fn take_cast_amax(&mut self) -> BTreeMap<String, f32> {
        self.casts.take_shard_amax()
    }

    /// Time spent waiting for parameters since the last call.
    pub fn take_wait_time(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// The ranges of parameters that this rank updates; where parameters are sharded also those of
    /// frozen ones, which stay as they are. Fails if values of the last step are still on their way
    /// and cannot be gathered.
    pub(super) fn owned(
        &mut self,
        chunks: &mut [Box<dyn ModelChunk>],
    ) -> Result<BTreeMap<String, Tensor<1>>, CommError> {
        if self.is_full() {
            // Handed over, so that they can be updated in place.
            return Ok(std::mem::take(&mut self.shards));
        }
        self.make_whole(chunks)?;
        let mut owned = BTreeMap::new();
        for chunk in chunks {
            let state_range = |name: &str| self.distribution.state_range(name);
            chunk.visit_wanted(&|name| state_range(name).is_some(), &mut |name, value| {
                let range = state_range(name).expect("it was asked for");
                owned.insert(name.to_owned(), part(value, &range));
            });
        }
        Ok(owned)
    }

    /// Takes updated (or loaded) ranges of all parameters that [`Self::owned`] gives: keeps them
    /// where parameters are sharded, else sends them to the other ranks. Fails if they cannot be
    /// gathered.
    pub(crate) fn set_owned(
        &mut self,
        chunks: &mut [Box<dyn ModelChunk>],
        mut updated: BTreeMap<String, Tensor<1>>,
    ) -> Result<(), CommError> {
        let distribution = Arc::clone(&self.distribution);
        self.casts.forget();
        for (name, value) in &updated {
            self.casts.take_scales(name, || value.clone().into_data().iter::<f32>().collect());
        }
        for (index, chunk) in chunks.iter_mut().enumerate() {
            let in_buckets = names_in(distribution.buckets(index));
            // Parameters outside buckets are whole.
            let names = chunk.parameters().iter().map(|declaration| declaration.name.clone()).collect::<Vec<_>>();
            let whole = names.iter().map(String::as_str).filter(|name| !in_buckets.contains(name));
            let whole = whole.filter_map(|name| Some((name, Replacement::Value(updated.get(name)?.clone()))));
            chunk.replace_parameters(whole.collect());
            if self.is_full() {
                continue;
            }
            // The first segments' parameters come last in the order of backward.
            for (number, bucket) in distribution.buckets(index).iter().enumerate().rev() {
                let gathering = self.start(bucket, |name| updated.remove(name))?;
                self.states[index][number] = BucketState::Gathering(gathering);
            }
        }
        if self.is_full() {
            updated.retain(|name, _| distribution.shard_range(name).is_some());
            self.shards = updated;
        } else if !distribution.overlap_param_gather() {
            self.make_whole(chunks)?;
        }
        Ok(())
    }

    fn buckets_of(&self, index: usize, segments: &Range<usize>) -> Vec<usize> {
        let used: BTreeSet<usize> = self.uses[index][segments.clone()].iter().flatten().copied().collect();
        used.into_iter().rev().collect()
    }

    pub(super) fn unshard_buckets(
        &mut self,
        index: usize,
        chunk: &mut dyn ModelChunk,
        buckets: &[usize],
    ) -> Result<(), CommError> {
        let distribution = Arc::clone(&self.distribution);
        for &number in buckets {
            self.start_released(index, number)?;
        }
        let mut values = BTreeMap::new();
        for &number in buckets {
            let state = &mut self.states[index][number];
            if let BucketState::Gathering(gathering) = std::mem::replace(state, BucketState::Whole) {
                let waiting = Instant::now();
                let bucket = &distribution.buckets(index)[number];
                let gathered = gathering.wait(bucket)?;
                self.waited += waiting.elapsed();
                for (place, entry) in bucket.entries.iter().enumerate() {
                    values.insert(entry.name.as_str(), Replacement::Value(gathered.parameter(bucket, place, entry)));
                }
            }
        }
        if !values.is_empty() {
            chunk.replace_parameters(values);
        }
        Ok(())
    }

    fn start_released(&mut self, index: usize, number: usize) -> Result<(), CommError> {
        if matches!(self.states[index][number], BucketState::Released) {
            let distribution = Arc::clone(&self.distribution);
            let bucket = &distribution.buckets(index)[number];
            let gathering = match bucket.is_cast {
                true => self.start_codes(bucket)?,
                false => self.start(bucket, |name| self.shards.get(name).cloned())?,
            };
            self.states[index][number] = BucketState::Gathering(gathering);
        }
        Ok(())
    }

    /// Starts to gather one bucket of weights as codes.
    fn start_codes(&mut self, bucket: &Bucket) -> Result<Gathering, CommError> {
        let first = &self.shards[&bucket.entries.first().expect("no bucket is empty").name];
        let (device, dtype) = (first.device(), first.dtype());
        let group = self.distribution.shards(bucket.replicas);
        let way = TensorExchange::for_device(group, &device);
        let (part, casts) = self.casts.encode(bucket, &self.distribution, &self.shards, way.is_some())?;
        let transfer = match (part, way) {
            (TransferBuffer::OnDevice(words), Some(way)) => {
                PendingTransfer::OnDevice(way.start_all_gather_bytes(words)?)
            }
            (TransferBuffer::OnHost(part), _) => PendingTransfer::OnHost(group.start_all_gather(part)?),
            (TransferBuffer::OnDevice(_), None) => unreachable!("codes are made where they travel"),
        };
        Ok(Gathering { transfer, device, dtype, casts })
    }

    /// Starts to gather one bucket from the ranges that `owned` gives.
    fn start(&self, bucket: &Bucket, mut owned: impl FnMut(&str) -> Option<Tensor<1>>) -> Result<Gathering, CommError> {
        let group = self.distribution.shards(bucket.replicas);
        let rank = group.rank();
        let owned =
            bucket.entries.iter().map(|entry| owned(&entry.name).expect("every parameter of a bucket has an owner"));
        let owned: Vec<Tensor<1>> = owned.collect();
        let first = owned.first().expect("no bucket is empty");
        let (device, dtype) = (first.device(), first.dtype());
        let places = bucket.entries.iter().map(|entry| bucket.within_part(entry, rank));
        if let Some(way) = TensorExchange::for_device(group, &device) {
            let packing = Packing { device: &device, dtype };
            let pieces = places.zip(owned).map(|(place, value)| (Some(value), place.len()));
            let part = packing.concatenated(pieces, bucket.part_len());
            let transfer = PendingTransfer::OnDevice(way.start_all_gather(part)?);
            return Ok(Gathering { transfer, device, dtype, casts: Casts::new() });
        }
        let parts: Vec<(Range<usize>, TensorData)> = places.zip(owned.into_iter().map(Tensor::into_data)).collect();
        let transfer = PendingTransfer::OnHost(group.start_all_gather(concatenate(&parts, bucket.part_len()))?);
        Ok(Gathering { transfer, device, dtype, casts: Casts::new() })
    }
}

/// One parameter out of a gathered bucket.
fn parameter_from_host(
    bucket: &Bucket,
    entry: &BucketEntry,
    values: &HostBuffer,
    device: &Device,
    dtype: DType,
) -> Tensor<1> {
    let shape = [entry.num_elements];
    let data = match values {
        HostBuffer::F32(values) => TensorData::new(bucket.gather(entry, values), shape),
        HostBuffer::Bf16(values) if dtype == DType::F16 => {
            let bits = bucket.gather(entry, values).into_iter().map(|value| f16::from_bits(value.to_bits()));
            TensorData::new(bits.collect::<Vec<_>>(), shape)
        }
        HostBuffer::Bf16(values) => TensorData::new(bucket.gather(entry, values), shape),
        other => unreachable!("parameters do not travel as {}", other.dtype()),
    };
    Tensor::from_data(data, (device, dtype))
}

/// One rank's part of a bucket: each piece at its place, padded to `length`.
fn concatenate(pieces: &[(Range<usize>, TensorData)], length: usize) -> HostBuffer {
    fn fill<T: Copy + Default, E: burn::tensor::Element>(
        pieces: &[(Range<usize>, TensorData)],
        length: usize,
        convert: impl Fn(&E) -> T,
    ) -> Vec<T> {
        let mut values = vec![T::default(); length];
        for (range, data) in pieces {
            let piece = data.as_slice::<E>().expect("all parameters of a model have one dtype");
            for (to, from) in values[range.clone()].iter_mut().zip(piece) {
                *to = convert(from);
            }
        }
        values
    }
    match pieces.first().map_or(DType::F32, |(_, data)| data.dtype()) {
        DType::BF16 => fill(pieces, length, |value: &bf16| *value).into(),
        // float16 is sent as the bits of a bfloat16, because nothing computes with the values on
        // the way.
        DType::F16 => fill(pieces, length, |value: &f16| bf16::from_bits(value.to_bits())).into(),
        _ => fill(pieces, length, |value: &f32| *value).into(),
    }
}

/// By segment of a chunk, the buckets with parameters that the segment uses.
fn buckets_of_segments(chunk: &dyn ModelChunk, buckets: &[Bucket]) -> Vec<Vec<usize>> {
    let entries = buckets
        .iter()
        .enumerate()
        .flat_map(|(number, bucket)| bucket.entries.iter().map(move |entry| (entry.name.as_str(), number)));
    let bucket_of: BTreeMap<&str, usize> = entries.collect();
    let mut used = vec![BTreeSet::new(); chunk.segments().len()];
    for declaration in chunk.parameters() {
        if let Some(number) = bucket_of.get(declaration.name.as_str()) {
            declaration.segments.iter().for_each(|segment| {
                used[*segment].insert(*number);
            });
        }
    }
    used.into_iter().map(|numbers| numbers.into_iter().collect()).collect()
}

/// Names of the parameters in buckets.
fn names_in(buckets: &[Bucket]) -> BTreeSet<&str> {
    buckets.iter().flat_map(|bucket| bucket.entries.iter().map(|entry| entry.name.as_str())).collect()
}
