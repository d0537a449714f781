//! Reduces gradients over data-parallel ranks, bucket by bucket, while backward goes on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bridge_dist::comm::{CommError, Group, HostBuffer, Request};
use bridge_kernels::optim::SquareSums;
use bridge_regions::exchange::{PendingTransfer, TensorExchange, TensorRequest, TransferBuffer};
use burn::tensor::{DType, Device, Element, Tensor, TensorData};
use half::bf16;

use super::GradientBuffer;
use super::bucket::{Bucket, BucketEntry};
use super::distribution::Distribution;
use super::flat::detached_part;
use super::packing::Packing;
use crate::timers::{TimerLevel, Timers};

/// dtype in which gradients are communicated in reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceDType {
    /// float32.
    Float32,
    /// bfloat16; ranks add up in float32 and round once.
    BFloat16,
}

/// Part of a rank's local gradients, before ranks sum them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GradientPart {
    /// Bucket of a chunk, over all micro-batches: tensors that are communicated together.
    Bucket {
        /// Index of the chunk.
        chunk: usize,
        /// Number of the bucket in it.
        bucket: usize,
    },
    /// All that no other rank adds to.
    Unreduced,
}

impl std::fmt::Display for GradientPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bucket { chunk: 0, bucket } => write!(f, "bucket {bucket}"),
            Self::Bucket { chunk, bucket } => write!(f, "bucket {bucket} of chunk {chunk}"),
            Self::Unreduced => f.write_str("all that is not reduced"),
        }
    }
}

/// Reduction of a bucket in flight.
struct PendingReduction {
    chunk: usize,
    bucket: usize,
    transfer: PendingTransfer,
    started: Instant,
}

/// Reduces the gradients of one step.
pub struct GradientReducer {
    distribution: Arc<Distribution>,
    dtype: ReduceDType,
    device: Device,
    in_flight: Vec<PendingReduction>,
    /// For each chunk, how many of its buckets have been started, or passed because they are
    /// frozen.
    started: Vec<usize>,
    times: ReductionTimes,
    timers: Arc<Timers>,
    measures_local_norms: bool,
    /// Sums of squares of this rank's local gradients of a step, if norms are measured.
    local_squares: BTreeMap<GradientPart, f64>,
    /// Squares of parts on the device that have not been read, and their parts.
    unread_squares: (Vec<GradientPart>, SquareSums),
}

/// Time of reductions, and the part of it that the rank had to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReductionTimes {
    /// From the start of the first reduction to the moment the last result was taken.
    pub in_flight: Duration,
    /// Exposed time: from the end of backward, or from the moment at which backward waited, until
    /// all gradients have arrived. Gradients that arrive early are unpacked in this time.
    pub exposed: Duration,
}

impl std::fmt::Debug for GradientReducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GradientReducer").field("started", &self.started).finish_non_exhaustive()
    }
}

impl GradientReducer {
    /// A reducer whose results lie on `device`.
    pub fn new(distribution: Arc<Distribution>, dtype: ReduceDType, device: Device) -> Self {
        let started = vec![0; distribution.num_chunks()];
        let timers = Arc::new(Timers::new(None));
        let times = ReductionTimes::default();
        Self {
            distribution,
            dtype,
            device,
            in_flight: Vec::new(),
            started,
            times,
            timers,
            measures_local_norms: false,
            local_squares: BTreeMap::new(),
            unread_squares: Default::default(),
        }
    }

    /// Measures norms of this rank's gradients before ranks sum them, if `measures_local_norms`, at
    /// the cost of one more read of every gradient.
    #[must_use]
    pub fn with_local_norms(mut self, measures_local_norms: bool) -> Self {
        self.measures_local_norms = measures_local_norms;
        self
    }

    /// Times the parts of [`finish`](Self::finish).
    #[must_use]
    pub fn with_timers(mut self, timers: &Arc<Timers>) -> Self {
        self.timers = Arc::clone(timers);
        self
    }

    /// Starts the reduction of all buckets that are complete once backward of `chunk` has left
    /// segment `segment`, and waits for it unless backward continues meanwhile
    /// ([`DistributionSettings::overlap_grad_reduce`](super::DistributionSettings::overlap_grad_reduce)).
    /// Called in the last micro-batch (in each, where gradients are sharded), and on all ranks in
    /// the same order.
    ///
    /// # Errors
    /// If a reduction cannot be started, or fails.
    pub fn reduce_complete_buckets(
        &mut self,
        chunk: usize,
        segment: usize,
        gradients: &mut GradientBuffer,
    ) -> Result<(), CommError> {
        self.start(chunk, segment, gradients)?;
        if self.distribution.overlap_grad_reduce() {
            return Ok(());
        }
        let started = std::mem::take(&mut self.in_flight);
        self.wait_for(started, gradients)
    }

    fn start(&mut self, chunk: usize, segment: usize, gradients: &mut GradientBuffer) -> Result<(), CommError> {
        let distribution = Arc::clone(&self.distribution);
        while let Some(bucket) = distribution.buckets(chunk).get(self.started[chunk])
            && bucket.first_segment >= segment
        {
            let number = self.started[chunk];
            self.started[chunk] += 1;
            if !bucket.is_trained {
                continue;
            }
            let group = distribution.shards(bucket.replicas);
            let part = GradientPart::Bucket { chunk, bucket: number };
            let transfer = match TensorExchange::for_device(group, &self.device) {
                Some(way) => PendingTransfer::OnDevice(self.start_on_device(&way, part, bucket, gradients)?),
                None => PendingTransfer::OnHost(self.start_on_host(group, part, bucket, gradients)?),
            };
            self.in_flight.push(PendingReduction { chunk, bucket: number, transfer, started: Instant::now() });
        }
        Ok(())
    }

    fn start_on_host(
        &mut self,
        group: &Group,
        part: GradientPart,
        bucket: &Bucket,
        gradients: &mut GradientBuffer,
    ) -> Result<Request, CommError> {
        let values = self.pack(bucket, gradients);
        if self.measures_local_norms {
            *self.local_squares.entry(part).or_default() += squares(&values);
        }
        let op = self.distribution.reduce_op();
        match self.distribution.sharding().divides_state() {
            true => group.start_reduce_scatter(values, op),
            false => group.start_all_reduce(values, op),
        }
    }

    fn start_on_device(
        &mut self,
        way: &TensorExchange<'_>,
        part: GradientPart,
        bucket: &Bucket,
        gradients: &mut GradientBuffer,
    ) -> Result<TensorRequest, CommError> {
        let distribution = Arc::clone(&self.distribution);
        let take = |name: &str| scaled_gradient(&distribution, bucket, name, gradients);
        let (op, divides) = (distribution.reduce_op(), distribution.sharding().divides_state());
        let packing = self.packing();
        let values = match divides {
            true => packing.by_rank(bucket, take),
            false => packing.concatenated(with_sizes(bucket, take), bucket.len()),
        };
        if self.measures_local_norms {
            // Read when the step's are: reading now would wait for the device.
            self.unread_squares.1.add(&values);
            self.unread_squares.1.launch();
            self.unread_squares.0.push(part);
        }
        if divides { way.start_reduce_scatter(values, op) } else { way.start_all_reduce(values, op) }
    }

    /// Packing of buckets on the device.
    fn packing(&self) -> Packing<'_> {
        let dtype = match self.dtype {
            ReduceDType::Float32 => DType::F32,
            ReduceDType::BFloat16 => DType::BF16,
        };
        Packing { device: &self.device, dtype }
    }

    /// Ends a micro-batch of a chunk if gradients are reduced in each micro-batch
    /// ([`Sharding::divides_gradients`]). They are added to the gradients of earlier micro-batches.
    ///
    /// [`Sharding::divides_gradients`]: super::Sharding::divides_gradients
    ///
    /// # Errors
    /// If a reduction fails.
    pub fn end_micro_batch(&mut self, chunk: usize, gradients: &mut GradientBuffer) -> Result<(), CommError> {
        self.start(chunk, 0, gradients)?;
        let in_flight = std::mem::take(&mut self.in_flight).into_iter();
        let (of_chunk, others) = in_flight.partition(|reduction| reduction.chunk == chunk);
        self.in_flight = others;
        self.started[chunk] = 0;
        self.wait_for(of_chunk, gradients)
    }

    /// Starts the remaining reductions, waits for all, and leaves the reduced gradients in
    /// `gradients`: whole ones, or with a sharded optimizer the ranges that this rank owns. Where
    /// gradients are sharded too, each micro-batch must have been [ended](Self::end_micro_batch).
    ///
    /// # Errors
    /// If a reduction fails.
    pub fn finish(&mut self, gradients: &mut GradientBuffer) -> Result<(), CommError> {
        let timers = Arc::clone(&self.timers);
        let timer = timers.start("all-grads-sync", TimerLevel::Phase);
        gradients.flush();
        // If gradients are sharded, each micro-batch has been reduced already; another reduction
        // would reduce zeros.
        if !self.distribution.sharding().divides_gradients() {
            for chunk in 0..self.started.len() {
                self.start(chunk, 0, gradients)?;
            }
            self.started.fill(0);
            let all = std::mem::take(&mut self.in_flight);
            self.wait_for(all, gradients)?;
        }
        if self.measures_local_norms {
            let (parts, unread) = std::mem::take(&mut self.unread_squares);
            for (part, squares) in parts.into_iter().zip(unread.finish()) {
                *self.local_squares.entry(part).or_default() += squares;
            }
            let mut sums = SquareSums::default();
            gradients.iter().for_each(|(_, gradient)| sums.add(gradient));
            let unreduced = sums.finish().into_iter().reduce(|a, b| a + b);
            self.local_squares.extend(unreduced.map(|squares| (GradientPart::Unreduced, squares)));
        }
        self.reduce_over_instances(gradients)?;
        gradients.adopt_reduced();
        let distribution = Arc::clone(&self.distribution);
        distribution.scale_unreduced(gradients);
        drop(timer);
        distribution.all_reduce_shared(gradients, &self.device, &timers)
    }

    /// Waits for reductions and adds their results to the reduced gradients.
    fn wait_for(&mut self, reductions: Vec<PendingReduction>, gradients: &mut GradientBuffer) -> Result<(), CommError> {
        let first = reductions.first().map(|reduction| reduction.started);
        let backward_ended = Instant::now();
        let mut exposed = None;
        let mut reductions = reductions.into_iter();
        while let Some(PendingReduction { chunk, bucket, transfer, .. }) = reductions.next() {
            let reduced = transfer.wait()?;
            if exposed.is_none() && all_have_arrived(reductions.as_mut_slice())? {
                exposed = Some(backward_ended.elapsed());
            }
            self.unpack(chunk, bucket, &reduced, gradients);
        }
        self.times.exposed += exposed.unwrap_or_default();
        self.times.in_flight += first.map_or(Duration::ZERO, |first| first.elapsed());
        Ok(())
    }

    /// Reduces the shards that this rank has of reduced gradients over the other instances of the
    /// distributed optimizer.
    fn reduce_over_instances(&mut self, gradients: &mut GradientBuffer) -> Result<(), CommError> {
        let distribution = Arc::clone(&self.distribution);
        let mut reductions = Vec::new();
        for chunk in 0..distribution.num_chunks() {
            for (number, bucket) in distribution.buckets(chunk).iter().enumerate().filter(|(_, b)| b.is_trained) {
                if let Some(group) = distribution.instances(bucket.replicas) {
                    let op = distribution.reduce_op();
                    let transfer = match TensorExchange::for_device(group, &self.device) {
                        Some(way) => {
                            let rank = distribution.shards(bucket.replicas).rank();
                            let own = bucket.entries.iter().map(|entry| {
                                (gradients.take_reduced(&entry.name), bucket.within_part(entry, rank).len())
                            });
                            let values = self.packing().concatenated(own, bucket.part_len());
                            PendingTransfer::OnDevice(way.start_all_reduce(values, op)?)
                        }
                        None => PendingTransfer::OnHost(group.start_all_reduce(self.pack_part(bucket, gradients), op)?),
                    };
                    reductions.push(PendingReduction { chunk, bucket: number, transfer, started: Instant::now() });
                }
            }
        }
        self.wait_for(reductions, gradients)
    }

    /// Forgets a step that will not be finished.
    pub fn clear(&mut self) {
        self.in_flight.clear();
        self.started.fill(0);
        self.local_squares.clear();
        self.unread_squares = Default::default();
    }

    /// Norms of this rank's gradients of the step, before ranks summed them; none unless they are
    /// [measured](Self::with_local_norms).
    pub fn take_local_norms(&mut self) -> Vec<(GradientPart, f64)> {
        let squares = std::mem::take(&mut self.local_squares).into_iter();
        squares.map(|(part, squares)| (part, squares.sqrt())).collect()
    }

    /// Times of the reductions since the last call.
    pub fn take_times(&mut self) -> ReductionTimes {
        std::mem::take(&mut self.times)
    }

    /// A bucket's gradients, moved out of `gradients`. A parameter without gradient counts as zero.
    fn pack(&self, bucket: &Bucket, gradients: &mut GradientBuffer) -> HostBuffer {
        let take = |name: &str| scaled_gradient(&self.distribution, bucket, name, gradients);
        match self.dtype {
            ReduceDType::Float32 => packed(bucket, bucket.len(), take, Bucket::scatter::<f32>).into(),
            ReduceDType::BFloat16 => packed(bucket, bucket.len(), take, Bucket::scatter::<bf16>).into(),
        }
    }

    /// This rank's part of a bucket's reduced gradients, moved out of `gradients`.
    fn pack_part(&self, bucket: &Bucket, gradients: &mut GradientBuffer) -> HostBuffer {
        fn put<T: Copy>(rank: usize) -> impl Fn(&Bucket, &BucketEntry, &[T], &mut [T]) {
            move |bucket, entry, own, part| part[bucket.within_part(entry, rank)].copy_from_slice(own)
        }
        let rank = self.distribution.shards(bucket.replicas).rank();
        let take = |name: &str| gradients.take_reduced(name);
        match self.dtype {
            ReduceDType::Float32 => packed(bucket, bucket.part_len(), take, put::<f32>(rank)).into(),
            ReduceDType::BFloat16 => packed(bucket, bucket.part_len(), take, put::<bf16>(rank)).into(),
        }
    }

    /// Puts a reduced bucket, or this rank's part of it, back as gradients of its parameters.
    fn unpack(&self, chunk: usize, bucket: usize, reduced: &TransferBuffer, gradients: &mut GradientBuffer) {
        let bucket = &self.distribution.buckets(chunk)[bucket];
        let mut start = 0;
        for entry in &bucket.entries {
            let tensor = match reduced {
                TransferBuffer::OnHost(HostBuffer::F32(values)) => {
                    self.tensor(self.owned(bucket, entry, values), DType::F32)
                }
                TransferBuffer::OnHost(HostBuffer::Bf16(values)) => {
                    self.tensor(self.owned(bucket, entry, values), DType::BF16)
                }
                TransferBuffer::OnHost(other) => unreachable!("gradients do not travel as {}", other.dtype()),
                // Parameters, or this rank's ranges of them, one after the other.
                TransferBuffer::OnDevice(values) => {
                    let len = match self.distribution.sharding().divides_state() {
                        true => bucket.within_part(entry, self.distribution.shards(bucket.replicas).rank()).len(),
                        false => entry.num_elements,
                    };
                    start += len;
                    detached_part(values.clone(), &(start - len..start))
                }
            };
            gradients.add_reduced(&entry.name, tensor);
        }
    }

    /// Elements of a parameter's reduced gradient that this rank keeps.
    fn owned<T: Copy>(&self, bucket: &Bucket, entry: &BucketEntry, values: &[T]) -> Vec<T> {
        if !self.distribution.sharding().divides_state() {
            return bucket.gather(entry, values);
        }
        let rank = self.distribution.shards(bucket.replicas).rank();
        values[bucket.within_part(entry, rank)].to_vec()
    }

    fn tensor<E: Element>(&self, values: Vec<E>, dtype: DType) -> Tensor<1> {
        let count = values.len();
        Tensor::from_data(TensorData::new(values, [count]), (&self.device, dtype))
    }
}

/// A parameter's local gradient as it is to be reduced, moved out of `gradients`.
fn scaled_gradient(
    distribution: &Distribution,
    bucket: &Bucket,
    name: &str,
    gradients: &mut GradientBuffer,
) -> Option<Tensor<1>> {
    gradients.take_scaled(name, distribution.pre_reduce_scale(bucket.replicas))
}

/// Results of `take` for each parameter of a bucket, with its elements.
fn with_sizes(
    bucket: &Bucket,
    mut take: impl FnMut(&str) -> Option<Tensor<1>>,
) -> impl Iterator<Item = (Option<Tensor<1>>, usize)> {
    bucket.entries.iter().map(move |entry| (take(&entry.name), entry.num_elements))
}

/// Sum of squares of gradients on their way, in float64.
fn squares(values: &HostBuffer) -> f64 {
    match values {
        HostBuffer::F32(values) => values.iter().map(|value| f64::from(*value).powi(2)).sum(),
        HostBuffer::Bf16(values) => values.iter().map(|value| value.to_f64().powi(2)).sum(),
        other => unreachable!("gradients do not travel as {}", other.dtype()),
    }
}

fn all_have_arrived(reductions: &mut [PendingReduction]) -> Result<bool, CommError> {
    for reduction in reductions.iter_mut().rev() {
        if !reduction.transfer.test()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Values that `take` returns for the parameters of a bucket, each at the position that `put` gives
/// among `length` elements; zero elsewhere.
fn packed<T: Element + Copy + Default>(
    bucket: &Bucket,
    length: usize,
    mut take: impl FnMut(&str) -> Option<Tensor<1>>,
    put: impl Fn(&Bucket, &BucketEntry, &[T], &mut [T]),
) -> Vec<T> {
    let mut values = vec![T::default(); length];
    for entry in &bucket.entries {
        if let Some(gradient) = take(&entry.name) {
            let gradient = if gradient.dtype() == T::dtype() { gradient } else { gradient.cast(T::dtype()) };
            put(bucket, entry, gradient.into_data().as_slice().expect("gradients were cast"), &mut values);
        }
    }
    values
}
