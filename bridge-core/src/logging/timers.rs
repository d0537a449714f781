//! Named timers by level of detail, drained per log interval, and their report over ranks.
//! Who gathers the ranks' figures, and who puts up barriers, is the loop.

use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How much detail a timer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimerLevel {
    /// Level 0: whole iterations, evaluation, saving.
    Iteration,
    /// Level 1: parts of an iteration.
    Phase,
    /// Level 2: parts of each micro-batch.
    MicroBatch,
}

/// Which timers run (`timing_log_level`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimingLogLevel {
    /// -1: none.
    Off,
    /// 0.
    #[default]
    Iteration,
    /// 1: level 0 too.
    Phase,
    /// 2: all.
    MicroBatch,
}

/// A `timing_log_level` outside -1..2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timing_log_level is {found}, expected -1, 0, 1 or 2")]
pub struct UnknownTimingLogLevel {
    /// The number given.
    pub found: i64,
}

impl TryFrom<i64> for TimingLogLevel {
    type Error = UnknownTimingLogLevel;

    fn try_from(level: i64) -> Result<Self, UnknownTimingLogLevel> {
        match level {
            -1 => Ok(Self::Off),
            0 => Ok(Self::Iteration),
            1 => Ok(Self::Phase),
            2 => Ok(Self::MicroBatch),
            found => Err(UnknownTimingLogLevel { found }),
        }
    }
}

impl TimingLogLevel {
    fn includes(self, level: TimerLevel) -> bool {
        self >= match level {
            TimerLevel::Iteration => Self::Iteration,
            TimerLevel::Phase => Self::Phase,
            TimerLevel::MicroBatch => Self::MicroBatch,
        }
    }
}

/// How times of several ranks are shown (`timing_log_option`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimingLogOption {
    /// The slowest rank.
    Max,
    /// The fastest and the slowest rank.
    #[default]
    MinMax,
    /// Every rank.
    All,
}

/// Accumulates the time spent under each name. Shared by reference: all methods take `&self`.
pub struct Timers {
    level: TimingLogLevel,
    /// Waits for work that was handed to a device.
    wait: Option<Box<dyn Fn() + Send + Sync>>,
    /// In order of first use, which is the order of the report.
    totals: Mutex<Vec<(String, Duration)>>,
}

impl Timers {
    /// Timers that run up to `level` of detail.
    pub fn new(level: TimingLogLevel) -> Self {
        Self { level, wait: None, totals: Mutex::new(Vec::new()) }
    }

    /// Calls `wait` when a timer starts and when it stops: for devices that work beside the program, so that a time is that of the work and
    /// not of handing it over.
    #[must_use]
    pub fn waiting(mut self, wait: impl Fn() + Send + Sync + 'static) -> Self {
        self.wait = Some(Box::new(wait));
        self
    }

    /// The moment, once the device has done what it was given before; where no parts of steps are timed nobody waits.
    pub(crate) fn now_at(&self, level: TimerLevel) -> Instant {
        if let Some(wait) = self.wait.as_ref().filter(|_| self.level.includes(level)) {
            wait();
        }
        Instant::now()
    }

    /// Whether timers of `level` run.
    pub fn run_at(&self, level: TimerLevel) -> bool {
        self.level.includes(level)
    }

    /// Times from now until the guard is dropped. Costs nothing when `level` is too detailed.
    pub fn start<'a>(&'a self, name: &'a str, level: TimerLevel) -> TimerGuard<'a> {
        let running = self.level.includes(level).then(|| (self, name, level, self.now_at(level)));
        TimerGuard { running }
    }

    /// Times one call.
    pub fn time<R>(&self, name: &str, level: TimerLevel, work: impl FnOnce() -> R) -> R {
        let _guard = self.start(name, level);
        work()
    }

    /// Adds time measured elsewhere.
    pub fn record(&self, name: &str, level: TimerLevel, elapsed: Duration) {
        if self.level.includes(level) {
            self.add(name, elapsed);
        }
    }

    /// Takes what has accumulated and starts again at zero.
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
    running: Option<(&'a Timers, &'a str, TimerLevel, Instant)>,
}

impl Drop for TimerGuard<'_> {
    fn drop(&mut self) {
        if let Some((timers, name, level, started)) = self.running {
            timers.add(name, timers.now_at(level) - started);
        }
    }
}

/// One rank's times of an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimerReport {
    /// Name and seconds, in order of first use.
    pub seconds: Vec<(String, f64)>,
}

/// All ranks' times of an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankTimers {
    ranks: usize,
    /// For each name the seconds of each rank; `None` where a rank did not use the timer.
    times: Vec<(String, Vec<Option<f64>>)>,
}

impl RankTimers {
    /// Puts the ranks' reports side by side; `reports[r]` is rank `r`'s.
    pub fn new(reports: &[TimerReport]) -> Self {
        let mut times: Vec<(String, Vec<Option<f64>>)> = Vec::new();
        for (rank, report) in reports.iter().enumerate() {
            for (name, seconds) in &report.seconds {
                let index = times.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
                    times.push((name.clone(), vec![None; reports.len()]));
                    times.len() - 1
                });
                times[index].1[rank] = Some(*seconds);
            }
        }
        Self { ranks: reports.len(), times }
    }

    /// The report as text, each time divided by the interval's `num_iterations`; `None` when no timer ran. With one rank there is nothing to
    /// compare, and `option` changes nothing.
    pub fn format(&self, option: TimingLogOption, num_iterations: u64) -> Option<String> {
        if self.times.is_empty() {
            return None;
        }
        let milliseconds = |seconds: f64| seconds * 1000.0 / num_iterations.max(1) as f64;
        let mut text = String::from(match option {
            _ if self.ranks == 1 => "time (ms):",
            TimingLogOption::Max => "max time across ranks (ms):",
            TimingLogOption::MinMax => "(min, max) time across ranks (ms):",
            TimingLogOption::All => "times across ranks (ms):",
        });
        for (name, by_rank) in &self.times {
            let (min, max) = min_max(by_rank);
            let (min, max) = (milliseconds(min), milliseconds(max));
            let field = format!("{:.<48}", format!("{name} "));
            // Writing to a string cannot fail.
            let _ = match option {
                TimingLogOption::Max => write!(text, "\n    {field}: {max:.2}"),
                _ if self.ranks == 1 => write!(text, "\n    {field}: {max:.2}"),
                TimingLogOption::MinMax => write!(text, "\n    {field}: ({min:.2}, {max:.2})"),
                TimingLogOption::All => {
                    let of_rank = |(rank, seconds): (usize, &Option<f64>)| {
                        seconds.map(|seconds| format!("\n     rank {rank:2}: {:.2}", milliseconds(seconds)))
                    };
                    let ranks: String = by_rank.iter().enumerate().filter_map(of_rank).collect();
                    write!(text, "\n  {name}:{ranks}")
                }
            };
        }
        Some(text)
    }

    /// The times as metrics in seconds per iteration: `{name}-time` of the slowest rank, with
    /// [`TimingLogOption::MinMax`] also `{name}-time/min`, with [`TimingLogOption::All`] also `{name}-time/rank{r}`, if there are more ranks
    /// than one.
    pub fn metrics(&self, option: TimingLogOption, num_iterations: u64) -> Vec<(String, f64)> {
        let per_iteration = |seconds: f64| seconds / num_iterations.max(1) as f64;
        let mut metrics = Vec::new();
        for (name, by_rank) in &self.times {
            let (min, max) = min_max(by_rank);
            metrics.push((format!("{name}-time"), per_iteration(max)));
            match option {
                TimingLogOption::Max => {}
                _ if self.ranks == 1 => {}
                TimingLogOption::MinMax => metrics.push((format!("{name}-time/min"), per_iteration(min))),
                TimingLogOption::All => metrics.extend(by_rank.iter().enumerate().filter_map(|(rank, seconds)| {
                    seconds.map(|seconds| (format!("{name}-time/rank{rank}"), per_iteration(seconds)))
                })),
            }
        }
        metrics
    }
}

fn min_max(by_rank: &[Option<f64>]) -> (f64, f64) {
    by_rank
        .iter()
        .flatten()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), seconds| (min.min(*seconds), max.max(*seconds)))
}

impl fmt::Display for TimerLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", *self as u8)
    }
}

/// Wall time that can be paused: the loop's `interval-time`, which evaluation and saving do not count into.
#[derive(Clone, Debug, Default)]
pub struct Stopwatch {
    accumulated: Duration,
    running_since: Option<Instant>,
}

impl Stopwatch {
    /// A running stopwatch at zero.
    pub fn started() -> Self {
        Self { accumulated: Duration::ZERO, running_since: Some(Instant::now()) }
    }

    /// Runs on; nothing changes if it runs already.
    pub fn resume(&mut self) {
        self.running_since.get_or_insert_with(Instant::now);
    }

    /// Stops; nothing changes if it is stopped already.
    pub fn pause(&mut self) {
        if let Some(since) = self.running_since.take() {
            self.accumulated += since.elapsed();
        }
    }

    /// Time counted so far.
    pub fn elapsed(&self) -> Duration {
        self.accumulated + self.running_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn levels_select_timers() {
        for (number, expected) in [(-1, 0), (0, 1), (1, 2), (2, 3)] {
            let timers = Timers::new(number.try_into().unwrap());
            for (name, level) in [("a", TimerLevel::Iteration), ("b", TimerLevel::Phase), ("c", TimerLevel::MicroBatch)]
            {
                timers.record(name, level, MS);
                drop(timers.start(name, level));
            }
            assert_eq!(timers.drain().seconds.len(), expected, "level {number}");
        }
        assert_eq!(TimingLogLevel::try_from(3), Err(UnknownTimingLogLevel { found: 3 }));
        assert_eq!(TimerLevel::MicroBatch.to_string(), "2");
    }

    #[test]
    fn times_add_up_until_drained() {
        let timers = Timers::new(TimingLogLevel::Phase);
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
        let timers = Timers::new(TimingLogLevel::Phase).waiting(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        timers.time("optimizer", TimerLevel::Phase, || {});
        timers.time("forward-compute", TimerLevel::MicroBatch, || {});
        assert_eq!(waits.load(std::sync::atomic::Ordering::Relaxed), 2, "none for a timer that does not run");
    }

    fn two_ranks() -> RankTimers {
        let report = |times: &[(&str, f64)]| TimerReport {
            seconds: times.iter().map(|(name, seconds)| ((*name).to_owned(), *seconds)).collect(),
        };
        RankTimers::new(&[
            report(&[("forward-backward", 1.0), ("optimizer", 0.25)]),
            report(&[("forward-backward", 2.0)]),
        ])
    }

    #[test]
    fn reports_of_all_ranks() {
        let timers = two_ranks();
        assert_eq!(
            timers.format(TimingLogOption::MinMax, 10).unwrap(),
            "(min, max) time across ranks (ms):\n    \
             forward-backward ...............................: (100.00, 200.00)\n    \
             optimizer ......................................: (25.00, 25.00)"
        );
        assert_eq!(
            timers.format(TimingLogOption::Max, 10).unwrap().lines().nth(1).unwrap(),
            "    forward-backward ...............................: 200.00"
        );
        assert_eq!(
            timers.format(TimingLogOption::All, 10).unwrap(),
            "times across ranks (ms):\n  forward-backward:\n     rank  0: 100.00\n     rank  1: 200.00\n  \
             optimizer:\n     rank  0: 25.00"
        );
        assert_eq!(RankTimers::default().format(TimingLogOption::Max, 1), None);
    }

    #[test]
    fn one_rank_is_compared_with_none() {
        let timers = RankTimers::new(&[TimerReport { seconds: vec![("optimizer".to_owned(), 0.25)] }]);
        for option in [TimingLogOption::Max, TimingLogOption::MinMax, TimingLogOption::All] {
            assert_eq!(
                timers.format(option, 10).unwrap(),
                "time (ms):\n    optimizer ......................................: 25.00"
            );
            assert_eq!(timers.metrics(option, 10), [("optimizer-time".to_owned(), 0.025)]);
        }
    }

    #[test]
    fn metrics_are_seconds_per_iteration() {
        let names = |option| {
            let metrics = two_ranks().metrics(option, 10);
            metrics.into_iter().take(3).collect::<Vec<_>>()
        };
        let metric = |name: &str, value| (format!("forward-backward-time{name}"), value);
        assert_eq!(names(TimingLogOption::Max)[0], metric("", 0.2));
        assert_eq!(names(TimingLogOption::MinMax)[1], metric("/min", 0.1));
        assert_eq!(names(TimingLogOption::All)[2], metric("/rank1", 0.2));
    }

    #[test]
    fn a_stopwatch_pauses() {
        let mut watch = Stopwatch::started();
        std::thread::sleep(5 * MS);
        watch.pause();
        let paused = watch.elapsed();
        assert!(paused >= 5 * MS);
        std::thread::sleep(2 * MS);
        assert_eq!(watch.elapsed(), paused);
        watch.resume();
        std::thread::sleep(2 * MS);
        assert!(watch.elapsed() >= paused + 2 * MS);
    }
}
