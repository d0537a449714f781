//! Samples that a data-parallel rank reads next, resumable from a number of consumed samples.
//! Fetching them belongs to the loader, counting consumed samples to the caller.

use super::DataError;
use super::dataset::DataParallel;
use super::random::torch_randperm;

/// One micro-batch of sample numbers; `None` is padding that must not count in the loss.
pub type SampleIndices = Vec<Option<usize>>;

/// Treatment of samples that do not fill a whole batch across all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Incomplete {
    /// Such samples are dropped.
    #[default]
    Drop,
    /// Such samples form a smaller batch; ranks may then get different numbers of samples, or none.
    Keep,
    /// Such samples are padded to a full batch.
    Pad,
}

/// Division of an epoch among ranks by a cyclic sampler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharding {
    /// Each rank shuffles its own contiguous bucket (`data_sharding = true`).
    #[default]
    Buckets,
    /// All samples are shuffled together and then divided (`data_sharding = false`).
    Interleaved,
}

/// Number of passes over the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Passes {
    /// Once; the sampler ends.
    Once,
    /// Repeatedly, without end.
    #[default]
    Endless,
}

/// The order in which samples are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplerKind {
    /// In sequence, once.
    Single {
        /// The last batch.
        incomplete: Incomplete,
    },
    /// Reshuffled each epoch, without end; incomplete batches are always left out.
    Cyclic {
        /// Division among ranks.
        sharding: Sharding,
    },
    /// In sequence, a global batch at a time, of which rank r takes every dp-th sample from the
    /// r-th on.
    Batch {
        /// The last global batch of a pass.
        incomplete: Incomplete,
        /// Number of passes.
        passes: Passes,
    },
}

/// The parameters of a [`Sampler`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerParams {
    /// The order.
    pub kind: SamplerKind,
    /// Samples of the dataset.
    pub total_samples: usize,
    /// Samples that all ranks together have already consumed.
    pub consumed_samples: u64,
    /// Samples of a micro-batch on one rank.
    pub micro_batch_size: usize,
    /// Samples of one optimizer step on all ranks; used by [`SamplerKind::Batch`].
    pub global_batch_size: usize,
    /// This rank's place.
    pub data_parallel: DataParallel,
}

/// Yields the micro-batches of one rank. Started from any number of consumed samples, it yields the
/// remaining micro-batches of an uninterrupted sampler.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplerParams,
    consumed: u64,
    /// Remaining micro-batches of the current epoch or global batch, last first.
    pending: Vec<SampleIndices>,
    finished: bool,
}

impl Sampler {
    /// Checks the parameters and positions the sampler.
    ///
    /// # Errors
    /// If there are no samples, a size is 0, the rank is outside its group, the consumed samples
    /// exceed a single pass or are not a multiple of the batch, or the global batch does not divide
    /// among the ranks.
    pub fn new(params: SamplerParams) -> Result<Self, DataError> {
        check_sizes(&params)?;
        match params.kind {
            SamplerKind::Single { .. } => check_single(&params)?,
            SamplerKind::Cyclic { .. } => check_cyclic(&params)?,
            SamplerKind::Batch { incomplete, .. } => check_batch(&params, incomplete)?,
        }
        Ok(Self { consumed: params.consumed_samples, params, pending: Vec::new(), finished: false })
    }

    /// Samples of one micro-batch across all ranks.
    fn unit(&self) -> usize {
        self.params.micro_batch_size * self.params.data_parallel.size
    }

    /// The next chunk in sequence: rank r has the r-th `micro_batch_size` of it.
    fn refill_single(&mut self, incomplete: Incomplete) {
        let (unit, size) = (self.unit(), self.params.micro_batch_size);
        let start = self.consumed as usize;
        let end = (start + unit).min(self.params.total_samples);
        let short = end < start + unit;
        if start == end || (short && incomplete == Incomplete::Drop) {
            self.finished = true;
            return;
        }
        let first = start + self.params.data_parallel.rank * size;
        let numbers = first..first + size;
        let batch: SampleIndices = match incomplete {
            Incomplete::Pad => numbers.map(|i| (i < end).then_some(i)).collect(),
            _ => numbers.filter(|&i| i < end).map(Some).collect(),
        };
        self.consumed += (end - start) as u64;
        if !batch.is_empty() {
            self.pending.push(batch);
        }
    }

    /// The rest of the current epoch, shuffled by the epoch's number.
    fn refill_cyclic(&mut self, sharding: Sharding) {
        let (unit, size) = (self.unit(), self.params.micro_batch_size);
        let DataParallel { rank, size: ranks } = self.params.data_parallel;
        let total = self.params.total_samples;
        let active = (total - total % unit) as u64;
        let (epoch, offset) = (self.consumed / active, (self.consumed % active) as usize);
        let order: Vec<usize> = match sharding {
            Sharding::Buckets => {
                let bucket = total / unit * size;
                let order = torch_randperm(bucket, epoch);
                order[offset / ranks..].iter().map(|&i| rank * bucket + i as usize).collect()
            }
            Sharding::Interleaved => {
                let order = torch_randperm(total / size * size, epoch);
                order[offset..].iter().skip(rank).step_by(ranks).map(|&i| i as usize).collect()
            }
        };
        // Some ranks may have one micro-batch more than others; all must agree where the epoch
        // ends.
        let batches = (active as usize - offset) / unit;
        self.pending =
            order.chunks_exact(size).take(batches).map(|batch| batch.iter().copied().map(Some).collect()).collect();
        self.pending.reverse();
        self.consumed += (batches * unit) as u64;
    }

    /// This rank's part of the next global batch, divided into micro-batches.
    fn refill_batch(&mut self, incomplete: Incomplete, passes: Passes) {
        let DataParallel { rank, size: ranks } = self.params.data_parallel;
        let (total, global) = (self.params.total_samples, self.params.global_batch_size);
        let epoch = epoch_samples(total, global, incomplete) as u64;
        self.finished = passes == Passes::Once && self.consumed >= epoch;
        if self.finished {
            return;
        }
        let start = (self.consumed % epoch) as usize;
        let end = (start + global).min(total);
        let numbers = (start..start + global).skip(rank).step_by(ranks);
        let share: SampleIndices = match incomplete {
            Incomplete::Pad => numbers.map(|i| (i < end).then_some(i)).collect(),
            _ => numbers.filter(|&i| i < end).map(Some).collect(),
        };
        self.pending = share.chunks(self.params.micro_batch_size).map(<[_]>::to_vec).collect();
        self.pending.reverse();
        self.consumed += match incomplete {
            Incomplete::Pad => global as u64,
            _ => (end - start) as u64,
        };
    }
}

impl Iterator for Sampler {
    type Item = SampleIndices;

    fn next(&mut self) -> Option<Self::Item> {
        while self.pending.is_empty() {
            if self.finished {
                return None;
            }
            match self.params.kind {
                SamplerKind::Single { incomplete } => self.refill_single(incomplete),
                SamplerKind::Cyclic { sharding } => self.refill_cyclic(sharding),
                SamplerKind::Batch { incomplete, passes } => self.refill_batch(incomplete, passes),
            }
        }
        self.pending.pop()
    }
}

/// Number of samples by which one pass of a batch sampler advances the count of consumed samples.
fn epoch_samples(total: usize, global: usize, incomplete: Incomplete) -> usize {
    match incomplete {
        Incomplete::Drop => total - total % global,
        Incomplete::Keep => total,
        Incomplete::Pad => total.div_ceil(global) * global,
    }
}

fn parameter(text: String) -> Result<(), DataError> {
    Err(DataError::Parameter(text))
}

fn check_sizes(params: &SamplerParams) -> Result<(), DataError> {
    let DataParallel { rank, size } = params.data_parallel;
    if params.total_samples == 0 {
        return parameter("the dataset has no samples".into());
    }
    if params.micro_batch_size == 0 {
        return parameter("micro_batch_size = 0: expected at least 1".into());
    }
    if rank >= size {
        return parameter(format!("data-parallel rank {rank} is not below the group's size {size}"));
    }
    Ok(())
}

fn check_single(params: &SamplerParams) -> Result<(), DataError> {
    if params.consumed_samples >= params.total_samples as u64 {
        return parameter(format!(
            "no samples left: {} of {} are consumed, and the single data loader reads them once",
            params.consumed_samples, params.total_samples
        ));
    }
    Ok(())
}

fn check_cyclic(params: &SamplerParams) -> Result<(), DataError> {
    let unit = params.micro_batch_size * params.data_parallel.size;
    let (total, consumed) = (params.total_samples, params.consumed_samples);
    let active = (total - total % unit) as u64;
    if active == 0 {
        return parameter(format!(
            "{total} samples do not fill one micro-batch on every rank: micro_batch_size {} x data-parallel size {} needs {unit}",
            params.micro_batch_size, params.data_parallel.size
        ));
    }
    if !(consumed % active).is_multiple_of(unit as u64) {
        return parameter(format!(
            "cannot resume after {consumed} samples: the {} samples into the epoch are not a multiple of micro_batch_size x data-\
             parallel size = {unit}",
            consumed % active
        ));
    }
    Ok(())
}

fn check_batch(params: &SamplerParams, incomplete: Incomplete) -> Result<(), DataError> {
    let unit = params.micro_batch_size * params.data_parallel.size;
    let (total, global) = (params.total_samples, params.global_batch_size);
    if global == 0 || !global.is_multiple_of(unit) {
        return parameter(format!(
            "global_batch_size = {global}: expected a multiple of micro_batch_size x data-parallel size = {unit}"
        ));
    }
    if epoch_samples(total, global, incomplete) == 0 {
        return parameter(format!(
            "{total} samples do not fill one global batch of {global}: use a smaller batch or drop_last = false"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
