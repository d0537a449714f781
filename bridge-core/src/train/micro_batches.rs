//! The micro-batches of a step as they are needed: read window by window, so that a step of any size fits into memory, with looks between
//! them whether the run was asked to stop. What is done with them is the step's business.

use std::time::{Duration, Instant};

use bridge_data::MicroBatch;

use super::exit::{ExitReason, Requests};
use super::run::TrainingRun;
use super::{TrainError, ranks};
use crate::config::micro_batch_windows;
use crate::schedule::MicroBatchWindows;

/// The micro-batches of one step on this rank.
pub(super) struct StepData {
    windows: MicroBatchWindows,
    total: usize,
    /// The window that was read last, with the number of its first micro-batch.
    held: Option<(usize, Vec<MicroBatch>)>,
    /// Tokens read in this pass over the data.
    pub tokens: u64,
    /// Time spent reading.
    pub reading: Duration,
}

impl StepData {
    /// The data of a step of `total` micro-batches. Its first window is read now.
    pub fn begin(run: &mut TrainingRun, total: usize) -> Result<Self, TrainError> {
        let windows = micro_batch_windows(&run.config, run.config.train.micro_batch_size);
        let mut data = Self { windows, total, held: None, tokens: 0, reading: Duration::ZERO };
        data.read(run, 0)?;
        Ok(data)
    }

    /// Micro-batches of the step.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Where a pass over `left` micro-batches of a window pauses.
    pub fn pause(&self, wanted: usize, left: usize) -> usize {
        self.windows.pause(wanted, left)
    }

    /// The window that begins with micro-batch `start`, which is 0 or follows the one before. All ranks call this together.
    pub fn window(&mut self, run: &mut TrainingRun, start: usize) -> Result<&[MicroBatch], TrainError> {
        if self.held.as_ref().is_none_or(|(held, _)| *held != start) {
            if start == 0 {
                // The step runs again.
                run.data.rewind_train();
                self.tokens = 0;
            }
            self.read(run, start)?;
        }
        Ok(self.held.as_ref().map_or(&[], |(_, micro_batches)| micro_batches))
    }

    fn read(&mut self, run: &mut TrainingRun, start: usize) -> Result<(), TrainError> {
        // Dropped before the next one is read.
        self.held = None;
        let started = Instant::now();
        let micro_batches = run.next_micro_batches(self.windows.next(self.total - start) as u64)?;
        self.reading += started.elapsed();
        self.tokens += micro_batches.iter().map(|micro_batch| micro_batch.tokens.len() as u64).sum::<u64>();
        self.held = Some((start, micro_batches));
        Ok(())
    }
}

/// Reads and drops the micro-batches of a step; the reason if a stop was asked for meanwhile.
pub(super) fn skip_micro_batches(run: &mut TrainingRun, total: usize) -> Result<Option<ExitReason>, TrainError> {
    let windows = micro_batch_windows(&run.config, run.config.train.micro_batch_size);
    let mut left = total;
    while left > 0 {
        let next = windows.next(left);
        run.next_micro_batches(next as u64)?;
        left -= next;
        if left > 0
            && let Some(reason) = super::exit::exit_is_requested(run)?
        {
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

/// About how often ranks ask each other, within a step, whether to stop.
const INTERVAL: Duration = Duration::from_secs(1);

/// When ranks look, within a step, whether one of them was asked to stop.
///
/// All must look after the same micro-batch, or some would wait for others that have left. So they agree on how long a micro-batch takes
/// each time they look, and work out from that after how many they look again. Steps that take no longer than [`INTERVAL`] cost nothing.
#[derive(Debug)]
pub(super) struct StopLooks {
    /// Whether anything could ask.
    is_possible: bool,
    /// Seconds that a micro-batch takes on the slowest rank, once that is known.
    pace: Option<f64>,
    /// Micro-batches since the last look.
    since: usize,
    last: Instant,
}

impl StopLooks {
    /// All ranks of `run` call this together.
    pub fn new(groups: &bridge_dist::mesh::ProcessGroups, requests: Requests) -> Result<Self, TrainError> {
        let is_possible = ranks::any(groups.world(), requests.can_come())?;
        Ok(Self { is_possible, pace: None, since: 0, last: Instant::now() })
    }

    /// A step begins: ranks have looked after the one before.
    pub fn begin_step(&mut self) {
        (self.since, self.last) = (0, Instant::now());
    }

    /// After how many micro-batches to look.
    fn interval(&self) -> usize {
        match self.pace {
            _ if !self.is_possible => usize::MAX,
            None => 1,
            Some(pace) => ((INTERVAL.as_secs_f64() / pace.max(1e-9)) as usize).max(1),
        }
    }

    /// After how many more micro-batches to look; at most `most`.
    pub fn wanted(&self, most: usize) -> usize {
        self.interval().saturating_sub(self.since).clamp(1, most.max(1))
    }
}

/// Says that `count` more micro-batches of a step are done, of which there are more, and looks whether to stop if it is time to.
pub(super) fn look_within_step(run: &mut TrainingRun, count: usize) -> Result<Option<ExitReason>, TrainError> {
    let looks = &mut run.stop_looks;
    looks.since += count;
    if looks.since < looks.interval() {
        return Ok(None);
    }
    let [signal, cancelled] = Requests::of(run).figures();
    let looks = &run.stop_looks;
    let mut figures = [signal, cancelled, looks.last.elapsed().as_secs_f64() / looks.since as f64];
    ranks::max(run.groups.world(), &mut figures)?;
    run.stop_looks.pace = Some(figures[2]);
    run.stop_looks.begin_step();
    Ok(Requests::reason([figures[0], figures[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_once_a_second_at_the_agreed_pace() {
        let looks = |pace, since| StopLooks { is_possible: true, pace, since, last: Instant::now() };
        assert_eq!(looks(None, 0).wanted(8), 1, "the pace is not known yet");
        assert_eq!(looks(Some(0.1), 0).wanted(100), 10);
        assert_eq!(looks(Some(0.1), 4).wanted(100), 6);
        assert_eq!(looks(Some(0.1), 0).wanted(8), 8);
        assert_eq!(looks(Some(30.0), 0).wanted(8), 1);
        assert_eq!(StopLooks { is_possible: false, ..looks(None, 0) }.wanted(8), 8, "nobody can ask");
    }
}
