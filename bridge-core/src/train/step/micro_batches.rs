//! Reader of a step's micro-batches, window by window, so that a step of any size fits into memory.
//! Stop requests are polled between windows. Training on the micro-batches belongs to `train_step`.

use std::time::{Duration, Instant};

use bridge_data::MicroBatch;

use crate::config::train_windows;
use crate::schedule::MicroBatchWindows;
use crate::train::data::error::InputError;
use crate::train::exit_reason::ExitReason;
use crate::train::step::error::StepError;
use crate::train::step::step_flops::SequenceLengths;
use crate::train::step::training_run::TrainingRun;

/// The micro-batches of one step on this rank.
pub(in crate::train) struct StepData {
    windows: MicroBatchWindows,
    total: usize,
    /// The window that was read last, with the number of its first micro-batch.
    held: Option<(usize, Vec<MicroBatch>)>,
    /// Lengths of the sequences read in this pass over the data.
    pub lengths: SequenceLengths,
    /// Time spent reading, until all ranks have read.
    pub reading: Duration,
    /// Time of it that this rank read itself.
    pub own_reading: Duration,
}

impl StepData {
    /// The data of a step of `total` micro-batches. Its first window is read now.
    pub fn begin(run: &mut TrainingRun, total: usize) -> Result<Self, InputError> {
        let windows = train_windows(&run.state.config);
        let mut data = Self {
            windows,
            total,
            held: None,
            lengths: SequenceLengths::default(),
            reading: Duration::ZERO,
            own_reading: Duration::ZERO,
        };
        data.read(run, 0)?;
        Ok(data)
    }

    /// Micro-batches of the step.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Number of micro-batches after which a pass over the `left` ones of a window pauses: at least
    /// `wanted`.
    pub fn pause(&self, wanted: usize, left: usize) -> usize {
        self.windows.pause(wanted, left)
    }

    /// The window that begins with micro-batch `start`, which is 0 or follows the one before. All
    /// ranks call this together.
    pub fn window(&mut self, run: &mut TrainingRun, start: usize) -> Result<&[MicroBatch], InputError> {
        if self.held.as_ref().is_none_or(|(held, _)| *held != start) {
            if start == 0 {
                // The step runs again.
                run.inputs.data.rewind_train();
                self.lengths = SequenceLengths::default();
            }
            self.read(run, start)?;
        }
        Ok(self.held.as_ref().map_or(&[], |(_, micro_batches)| micro_batches))
    }

    fn read(&mut self, run: &mut TrainingRun, start: usize) -> Result<(), InputError> {
        // Dropped before the next one is read.
        self.held = None;
        let (started, in_calls) = (Instant::now(), run.groups.time_in_calls());
        let micro_batches = next_micro_batches(run, self.windows.next(self.total - start))?;
        let (reading, in_calls) = (started.elapsed(), run.groups.time_in_calls() - in_calls);
        self.reading += reading;
        self.own_reading += reading.saturating_sub(in_calls);
        // A sample of preferences has two answers.
        let per_sample = if run.state.config.dpo.is_some() { 2 } else { 1 };
        micro_batches.iter().for_each(|micro_batch| self.lengths.add(micro_batch, per_sample));
        self.held = Some((start, micro_batches));
        Ok(())
    }
}

/// Reads and drops the micro-batches of a step. Returns the reason if a stop was requested
/// meanwhile.
pub(in crate::train) fn skip_micro_batches(
    run: &mut TrainingRun,
    total: usize,
) -> Result<Option<ExitReason>, StepError> {
    let windows = train_windows(&run.state.config);
    let mut left = total;
    while left > 0 {
        let next = windows.next(left);
        next_micro_batches(run, next)?;
        left -= next;
        if left > 0
            && let Some(reason) = run.stop_requests.poll(&run.state.config, &run.groups)?
        {
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

fn next_micro_batches(run: &mut TrainingRun, count: usize) -> Result<Vec<MicroBatch>, InputError> {
    let consumed = run.state.train_state.consumed_train_samples;
    run.inputs.next_micro_batches(&run.groups, &run.timers, count as u64, consumed)
}
