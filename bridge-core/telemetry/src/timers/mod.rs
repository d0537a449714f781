//! Named timers by level of detail, drained per log interval; while a step is traced, each is a
//! span as well. The loop gathers the times of ranks and runs barriers.

mod spans;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bridge_memory::history::{Doing, RankSlot};
use serde::{Deserialize, Serialize};

pub use spans::{Labels, Mark, Marks, Span, Spans};

/// Level of detail of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimerLevel {
    /// Level 0: whole iterations, evaluation, saving.
    Iteration,
    /// Level 1: parts of an iteration.
    Phase,
    /// Level 2: parts of each micro-batch.
    MicroBatch,
}

/// Accumulates the time spent under each name. Shared by reference: all methods take `&self`.
pub struct Timers {
    /// Level of the timers that run; `None` runs no timer.
    level: Option<TimerLevel>,
    /// Waits for work that was handed to a device.
    wait: Option<Box<dyn Fn() + Send + Sync>>,
    /// In order of first use, which is the order of the report.
    totals: Mutex<Vec<(String, Duration)>>,
    spans: Spans,
}

impl Timers {
    /// Timers that run up to `level` of detail; none without a level.
    pub fn new(level: Option<TimerLevel>) -> Self {
        Self { level, wait: None, totals: Mutex::new(Vec::new()), spans: Spans::default() }
    }

    /// Calls `wait` when a timer starts and when it stops: for devices that work beside the
    /// program, so that a time is that of the work and not of handing it over.
    #[must_use]
    pub fn waiting(mut self, wait: impl Fn() + Send + Sync + 'static) -> Self {
        self.wait = Some(Box::new(wait));
        self
    }

    /// The time after all earlier work of the device. If timers of `level` are off, this does not
    /// wait.
    pub fn now_at(&self, level: TimerLevel) -> Instant {
        if let Some(wait) = self.wait.as_ref().filter(|_| self.run_at(level)) {
            wait();
        }
        Instant::now()
    }

    /// True if timers of `level` run.
    pub fn run_at(&self, level: TimerLevel) -> bool {
        self.level >= Some(level)
    }

    /// The spans of steps that are traced.
    pub fn spans(&self) -> &Spans {
        &self.spans
    }

    /// Times from now until the guard is dropped. Costs nothing when `level` is too detailed and no
    /// step is traced.
    pub fn start<'a>(&'a self, name: &'static str, level: TimerLevel) -> TimerGuard<'a> {
        self.start_of(name, level, Labels::default())
    }

    /// [`start`](Self::start) with labels.
    pub fn start_of<'a>(&'a self, name: &'static str, level: TimerLevel, labels: Labels) -> TimerGuard<'a> {
        self.guard(name, self.run_at(level).then(|| (level, self.now_at(level))), labels)
    }

    /// A span from now until the guard is dropped, of what has no timer.
    pub fn span<'a>(&'a self, name: &'static str, labels: Labels) -> TimerGuard<'a> {
        self.guard(name, None, labels)
    }

    fn guard<'a>(&'a self, name: &'static str, timed: Option<(TimerLevel, Instant)>, labels: Labels) -> TimerGuard<'a> {
        TimerGuard {
            timers: self,
            name,
            labels,
            timed,
            span: self.spans.are_on().then(Instant::now),
            _doing: RankSlot::owner(|| name.to_owned()),
            _mark: self.spans.mark(|| name.to_owned()),
        }
    }

    /// Times one call.
    pub fn time<R>(&self, name: &'static str, level: TimerLevel, work: impl FnOnce() -> R) -> R {
        let _guard = self.start(name, level);
        work()
    }

    /// Adds time measured elsewhere.
    pub fn record(&self, name: &str, level: TimerLevel, elapsed: Duration) {
        if self.run_at(level) {
            self.add(name, elapsed);
        }
    }

    /// Returns the accumulated times and starts again at zero.
    pub fn drain(&self) -> TimerReport {
        let totals = std::mem::take(&mut *self.lock());
        TimerReport { seconds: totals.into_iter().map(|(name, total)| (name, total.as_secs_f64())).collect() }
    }

    fn add(&self, name: &str, elapsed: Duration) {
        let mut totals = self.lock();
        match totals.iter_mut().find(|(known, _)| known == name) {
            Some((_, total)) => *total += elapsed,
            None => totals.push((name.to_owned(), elapsed)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(String, Duration)>> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timers").field("level", &self.level).field("totals", &self.totals).finish_non_exhaustive()
    }
}

/// Stops its timer when dropped.
#[derive(Debug)]
#[must_use = "the timer stops when this is dropped"]
pub struct TimerGuard<'a> {
    timers: &'a Timers,
    name: &'static str,
    labels: Labels,
    /// Level and start, if the timer runs.
    timed: Option<(TimerLevel, Instant)>,
    /// Start, if the step is traced.
    span: Option<Instant>,
    /// Owner of allocations, while the history of the allocator is recorded.
    _doing: Doing,
    /// Range for another tool, if ranges are made.
    _mark: Mark,
}

impl Drop for TimerGuard<'_> {
    fn drop(&mut self) {
        if let Some((level, started)) = self.timed {
            self.timers.add(self.name, self.timers.now_at(level) - started);
        }
        if let Some(start) = self.span {
            let (name, labels) = (Cow::Borrowed(self.name), self.labels);
            self.timers.spans.add(Span { name, labels, shapes: None, start, end: Instant::now() });
        }
    }
}

/// One rank's times of an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimerReport {
    /// Name and seconds, in order of first use.
    pub seconds: Vec<(String, f64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn levels_select_timers() {
        for (number, expected) in [
            (None, 0),
            (Some(TimerLevel::Iteration), 1),
            (Some(TimerLevel::Phase), 2),
            (Some(TimerLevel::MicroBatch), 3),
        ] {
            let timers = Timers::new(number);
            for (name, level) in [("a", TimerLevel::Iteration), ("b", TimerLevel::Phase), ("c", TimerLevel::MicroBatch)]
            {
                timers.record(name, level, MS);
                drop(timers.start(name, level));
            }
            assert_eq!(timers.drain().seconds.len(), expected, "level {number:?}");
        }
    }

    #[test]
    fn times_add_up_until_drained() {
        let timers = Timers::new(Some(TimerLevel::Phase));
        assert_eq!(timers.time("optimizer", TimerLevel::Phase, || 7), 7);
        timers.record("forward-backward", TimerLevel::Phase, 30 * MS);
        timers.record("forward-backward", TimerLevel::Phase, 20 * MS);
        let report = timers.drain();
        assert_eq!(report.seconds[0].0, "optimizer", "in order of first use");
        assert_eq!(report.seconds[1], ("forward-backward".to_owned(), 0.05));
        assert_eq!(timers.drain(), TimerReport::default());
    }

    #[test]
    fn a_timer_waits_for_the_device_at_both_ends() {
        let waits = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = std::sync::Arc::clone(&waits);
        let timers = Timers::new(Some(TimerLevel::Phase)).waiting(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        timers.time("optimizer", TimerLevel::Phase, || {});
        timers.time("forward-compute", TimerLevel::MicroBatch, || {});
        assert_eq!(waits.load(std::sync::atomic::Ordering::Relaxed), 2, "none for a timer that does not run");
    }
}
