//! Reduces gradients over data-parallel ranks, bucket by bucket, while backward goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bridge_dist::comm::{CommError, HostBuffer, Request};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::GradientBuffer;
use super::bucket::Bucket;
use super::distribution::{Distribution, Sharding};

/// Element type of gradients on their way between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// float32.
    Float32,
    /// bfloat16; ranks add up in float32 and round once.
    BFloat16,
}

/// A reduction under way.
struct InFlight {
    chunk: usize,
    bucket: usize,
    request: Request,
    started: Instant,
}

/// Reduces the gradients of one step.
pub struct GradientReducer {
    distribution: Arc<Distribution>,
    wire: Wire,
    device: Device,
    in_flight: Vec<InFlight>,
    /// For each chunk, how many of its buckets have been started.
    started: Vec<usize>,
    times: ReductionTimes,
}

/// How long reductions took, and how much of that the rank had to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReductionTimes {
    /// From the start of the first reduction to the moment the last result was taken.
    pub in_flight: Duration,
    /// Time the rank did nothing but wait for them.
    pub exposed: Duration,
}

impl std::fmt::Debug for GradientReducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GradientReducer").field("started", &self.started).finish_non_exhaustive()
    }
}

impl GradientReducer {
    /// A reducer whose results lie on `device`.
    pub fn new(distribution: Arc<Distribution>, wire: Wire, device: Device) -> Self {
        let started = vec![0; distribution.num_chunks()];
        Self { distribution, wire, device, in_flight: Vec::new(), started, times: ReductionTimes::default() }
    }

    /// Starts the reduction of all buckets that are complete once backward of `chunk` has left segment `segment`. Called in the last
    /// micro-batch (in each, where parameters are sharded), and on all ranks in the same order.
    ///
    /// # Errors
    /// If a reduction cannot be started.
    pub fn left_segment(
        &mut self,
        chunk: usize,
        segment: usize,
        gradients: &mut GradientBuffer,
    ) -> Result<(), CommError> {
        let distribution = Arc::clone(&self.distribution);
        while let Some(bucket) = distribution.buckets(chunk).get(self.started[chunk])
            && bucket.first_segment >= segment
        {
            let group = distribution.replicas(bucket.replicas);
            let values = self.fill(bucket, gradients);
            let op = distribution.reduce_op();
            let request = match distribution.sharding() {
                Sharding::None => group.start_all_reduce(values, op)?,
                Sharding::Optimizer | Sharding::Full => group.start_reduce_scatter(values, op)?,
            };
            self.in_flight.push(InFlight { chunk, bucket: self.started[chunk], request, started: Instant::now() });
            self.started[chunk] += 1;
        }
        Ok(())
    }

    /// Ends a micro-batch whose gradients are reduced by themselves ([`Sharding::Full`]); they are added to those of the micro-batches
    /// before.
    ///
    /// # Errors
    /// If a reduction fails.
    pub fn end_micro_batch(&mut self, gradients: &mut GradientBuffer) -> Result<(), CommError> {
        for chunk in 0..self.started.len() {
            self.left_segment(chunk, 0, gradients)?;
        }
        let first = self.in_flight.first().map(|reduction| reduction.started);
        for InFlight { chunk, bucket, request, .. } in std::mem::take(&mut self.in_flight) {
            let waiting = Instant::now();
            let reduced = request.wait()?;
            self.times.exposed += waiting.elapsed();
            self.spread(chunk, bucket, &reduced, gradients);
        }
        self.times.in_flight += first.map_or(Duration::ZERO, |first| first.elapsed());
        self.started.fill(0);
        Ok(())
    }

    /// Starts what has not been started, waits for all, and leaves the reduced gradients in `gradients`: whole ones, or where the optimizer
    /// is sharded the ranges that this rank owns. Where parameters are sharded too, each micro-batch must have been
    /// [ended](Self::end_micro_batch).
    ///
    /// # Errors
    /// If a reduction fails.
    pub fn finish(&mut self, gradients: &mut GradientBuffer) -> Result<(), CommError> {
        // Where parameters are sharded every micro-batch has been ended by itself; ending another would reduce zeros.
        if self.distribution.sharding() != Sharding::Full {
            self.end_micro_batch(gradients)?;
        }
        gradients.adopt_reduced();
        let distribution = Arc::clone(&self.distribution);
        distribution.complete(gradients, &self.device)
    }

    /// Forgets a step that will not be finished.
    pub fn clear(&mut self) {
        self.in_flight.clear();
        self.started.fill(0);
    }

    /// Times of the reductions since the last call.
    pub fn take_times(&mut self) -> ReductionTimes {
        std::mem::take(&mut self.times)
    }

    /// A bucket's gradients, moved out of `gradients`. A parameter without gradient counts as zero.
    fn fill(&self, bucket: &Bucket, gradients: &mut GradientBuffer) -> HostBuffer {
        let scale = self.distribution.scale_before(bucket.replicas);
        let mut values_of = |name: &str, dtype: FloatDType| -> Option<TensorData> {
            let gradient = gradients.take_unchanged(name)?;
            let gradient = if scale == 1.0 { gradient } else { gradient * scale };
            let fits = FloatDType::from(gradient.dtype()) == dtype;
            Some(if fits { gradient.into_data() } else { gradient.cast(dtype).into_data() })
        };
        match self.wire {
            Wire::Float32 => {
                let mut values = vec![0_f32; bucket.len()];
                for entry in &bucket.entries {
                    if let Some(data) = values_of(&entry.name, FloatDType::F32) {
                        let slice = data.as_slice::<f32>().expect("gradients were cast to float32");
                        bucket.scatter(entry, slice, &mut values);
                    }
                }
                values.into()
            }
            Wire::BFloat16 => {
                let mut values = vec![half::bf16::ZERO; bucket.len()];
                for entry in &bucket.entries {
                    if let Some(data) = values_of(&entry.name, FloatDType::BF16) {
                        let slice = data.as_slice::<half::bf16>().expect("gradients were cast to bfloat16");
                        bucket.scatter(entry, slice, &mut values);
                    }
                }
                values.into()
            }
        }
    }

    /// Puts a reduced bucket back as gradients of its parameters.
    fn spread(&self, chunk: usize, bucket: usize, reduced: &HostBuffer, gradients: &mut GradientBuffer) {
        let bucket = &self.distribution.buckets(chunk)[bucket];
        let rank = self.distribution.replicas(bucket.replicas).rank();
        let sharding = self.distribution.sharding();
        for entry in &bucket.entries {
            let tensor = match reduced {
                HostBuffer::F32(values) => {
                    let own = match sharding {
                        Sharding::None => bucket.gather(entry, values),
                        Sharding::Optimizer | Sharding::Full => values[bucket.within_part(entry, rank)].to_vec(),
                    };
                    self.tensor(own, DType::F32)
                }
                HostBuffer::Bf16(values) => {
                    let own = match sharding {
                        Sharding::None => bucket.gather(entry, values),
                        Sharding::Optimizer | Sharding::Full => values[bucket.within_part(entry, rank)].to_vec(),
                    };
                    self.tensor(own, DType::BF16)
                }
                other => unreachable!("gradients do not travel as {}", other.dtype()),
            };
            gradients.add_reduced(&entry.name, tensor);
        }
    }

    fn tensor<E: burn::tensor::Element>(&self, values: Vec<E>, dtype: DType) -> Tensor<1> {
        let count = values.len();
        Tensor::from_data(TensorData::new(values, [count]), (&self.device, dtype))
    }
}
