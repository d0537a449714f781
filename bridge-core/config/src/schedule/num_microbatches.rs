//! The number of micro-batches of a step: constant, or ramped up with the consumed samples.
//! Only counts; the content of batches does not belong here.

use serde::{Deserialize, Serialize};

/// A batch size that starts small and grows in equal steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRampup {
    /// Global batch size of the first step.
    pub start: u64,
    /// The increment of each stage.
    pub increment: u64,
    /// Samples after which the full batch size is reached.
    pub samples: u64,
}

/// Treatment of a global batch that is not a multiple of `micro_batch_size * data_parallel_size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Indivisible {
    /// Report an error.
    #[default]
    Refuse,
    /// Run with the next smaller multiple (`decrease_batch_size_if_needed`).
    RoundDown,
}

/// The sizes for a [`NumMicrobatchesCalculator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSizeConfig {
    /// Sequences per model replica and micro-batch.
    pub micro_batch_size: u64,
    /// Sequences per optimizer step over all ranks, after ramp-up.
    pub global_batch_size: u64,
    /// Model replicas.
    pub data_parallel_size: u64,
    /// Ramp-up, if any.
    pub rampup_batch_size: Option<BatchRampup>,
    /// Treatment of a remainder.
    pub indivisible: Indivisible,
}

/// Sizes that do not form whole micro-batches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchSizeError {
    /// A size of zero.
    #[error("`{field}` is 0, expected 1 or more")]
    Zero {
        /// The invalid size.
        field: &'static str,
    },
    /// A batch that leaves a remainder.
    #[error(
        "{what} is {batch_size}, which does not divide by micro_batch_size ({micro_batch_size}) x data-parallel size \
         ({data_parallel_size}); the nearest sizes that do are {} and {}, or set train.decrease_batch_size_if_needed",
        batch_size / (micro_batch_size * data_parallel_size) * (micro_batch_size * data_parallel_size),
        (batch_size / (micro_batch_size * data_parallel_size) + 1) * (micro_batch_size * data_parallel_size)
    )]
    Indivisible {
        /// The name of the batch size.
        what: &'static str,
        /// Value of the batch size.
        batch_size: u64,
        /// Sequences per replica and micro-batch.
        micro_batch_size: u64,
        /// Model replicas.
        data_parallel_size: u64,
    },
    /// A batch smaller than one micro-batch for every replica.
    #[error("{what} is {batch_size}, expected {unit} or more: one micro-batch for every model replica")]
    TooSmall {
        /// The name of the batch size.
        what: &'static str,
        /// Value of the batch size.
        batch_size: u64,
        /// `micro_batch_size * data_parallel_size`.
        unit: u64,
    },
    /// A ramp-up that starts above its final size.
    #[error("rampup_batch_size starts at {start}, expected at most global_batch_size ({global_batch_size})")]
    RampupStartsAboveGlobal {
        /// Initial batch size of the ramp-up.
        start: u64,
        /// Required final batch size.
        global_batch_size: u64,
    },
    /// A ramp-up whose increments do not reach its final size.
    #[error(
        "rampup_batch_size goes from {start} to global_batch_size ({global_batch_size}) in steps of {increment}, which \
         does not divide the difference of {}",
        global_batch_size - start
    )]
    RampupIncrement {
        /// Initial batch size of the ramp-up.
        start: u64,
        /// Value of the increment.
        increment: u64,
        /// Required final batch size.
        global_batch_size: u64,
    },
}

/// A change of the batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BatchSizeChange {
    /// Global batch size before.
    pub previous_global_batch_size: u64,
    /// Global batch size now.
    pub global_batch_size: u64,
    /// Micro-batches per step before.
    pub previous_num_microbatches: u64,
    /// Micro-batches per step now. The loop saves a checkpoint before it uses the new number.
    pub num_microbatches: u64,
}

/// The current batch size and its number of micro-batches.
///
/// Every size of the ramp-up is checked at construction, so that [`Self::update`] cannot fail in
/// the middle of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumMicrobatchesCalculator {
    config: BatchSizeConfig,
    /// `None` without ramp-up.
    rampup: Option<BatchRampup>,
    current_global_batch_size: u64,
}

impl NumMicrobatchesCalculator {
    /// The calculator at sample 0.
    ///
    /// A ramp-up that starts at the global batch size, or lasts for no samples, is a no-op.
    ///
    /// # Errors
    /// If a size is zero, a batch leaves a remainder or is too small, or a ramp-up does not end at
    /// the global batch size.
    pub fn new(config: BatchSizeConfig) -> Result<Self, BatchSizeError> {
        for (field, size) in [
            ("micro_batch_size", config.micro_batch_size),
            ("global_batch_size", config.global_batch_size),
            ("data_parallel_size", config.data_parallel_size),
        ] {
            if size == 0 {
                return Err(BatchSizeError::Zero { field });
            }
        }
        config.check_batch("global_batch_size", config.global_batch_size)?;
        let rampup = config.checked_rampup()?;
        let mut calculator = Self { config, rampup, current_global_batch_size: 0 };
        calculator.current_global_batch_size = calculator.global_batch_size_at(0);
        Ok(calculator)
    }

    /// Updates the batch size for `consumed_samples`; `None` if nothing changed.
    pub fn update(&mut self, consumed_samples: u64) -> Option<BatchSizeChange> {
        let global_batch_size = self.global_batch_size_at(consumed_samples);
        let previous_global_batch_size = self.current_global_batch_size;
        if global_batch_size == previous_global_batch_size {
            return None;
        }
        let previous_num_microbatches = self.num_microbatches();
        self.current_global_batch_size = global_batch_size;
        let num_microbatches = self.num_microbatches();
        Some(BatchSizeChange {
            previous_global_batch_size,
            global_batch_size,
            previous_num_microbatches,
            num_microbatches,
        })
    }

    /// Global batch size for `consumed_samples`, before rounding.
    pub fn global_batch_size_at(&self, consumed_samples: u64) -> u64 {
        let global = self.config.global_batch_size;
        let Some(rampup) = self.rampup else { return global };
        if consumed_samples > rampup.samples {
            return global;
        }
        // Floating point, like upstream, so that the stages change at the same sample.
        let num_increments = (global - rampup.start) / rampup.increment;
        let samples_per_increment = rampup.samples as f64 / num_increments as f64;
        let increments = (consumed_samples as f64 / samples_per_increment) as u64;
        global.min(rampup.start + increments * rampup.increment)
    }

    /// Micro-batches per replica and step.
    pub fn num_microbatches(&self) -> u64 {
        self.current_global_batch_size / self.config.unit()
    }

    /// Current global batch size.
    pub fn current_global_batch_size(&self) -> u64 {
        self.current_global_batch_size
    }

    /// Sequences that a step trains on: the global batch size, rounded down.
    pub fn current_running_global_batch_size(&self) -> u64 {
        self.num_microbatches() * self.config.unit()
    }

    /// Sequences per replica and micro-batch.
    pub fn micro_batch_size(&self) -> u64 {
        self.config.micro_batch_size
    }
}

impl BatchSizeConfig {
    fn unit(&self) -> u64 {
        self.micro_batch_size * self.data_parallel_size
    }

    fn check_batch(&self, what: &'static str, batch_size: u64) -> Result<(), BatchSizeError> {
        let unit = self.unit();
        if batch_size < unit {
            return Err(BatchSizeError::TooSmall { what, batch_size, unit });
        }
        if self.indivisible == Indivisible::Refuse && !batch_size.is_multiple_of(unit) {
            return Err(BatchSizeError::Indivisible {
                what,
                batch_size,
                micro_batch_size: self.micro_batch_size,
                data_parallel_size: self.data_parallel_size,
            });
        }
        Ok(())
    }

    /// The ramp-up, with all stages checked, unless it is a no-op.
    fn checked_rampup(&self) -> Result<Option<BatchRampup>, BatchSizeError> {
        let Some(rampup) = self.rampup_batch_size else { return Ok(None) };
        let (BatchRampup { start, increment, samples }, global_batch_size) = (rampup, self.global_batch_size);
        for (field, size) in [("rampup_batch_size start", start), ("rampup_batch_size increment", increment)] {
            if size == 0 {
                return Err(BatchSizeError::Zero { field });
            }
        }
        if start > global_batch_size {
            return Err(BatchSizeError::RampupStartsAboveGlobal { start, global_batch_size });
        }
        if !(global_batch_size - start).is_multiple_of(increment) {
            return Err(BatchSizeError::RampupIncrement { start, increment, global_batch_size });
        }
        if start == global_batch_size || samples == 0 {
            return Ok(None);
        }
        // All stages divide exactly when the first two do.
        self.check_batch("rampup_batch_size start", start)?;
        self.check_batch("rampup_batch_size second stage", start + increment)?;
        Ok(Some(rampup))
    }
}
