//! Derived figures for metrics: throughput, memory, gradient norms, run-time estimates. Each is
//! right for the interval it names.

use std::collections::VecDeque;

use bridge_config::TimeUnit;

/// Rolling throughput over the most recent iterations.
///
/// A window of `n` iterations has `n + 1` ends, so that time and work belong to the same `n`
/// iterations.
#[derive(Clone, Debug)]
pub struct ThroughputWindow {
    window_size: usize,
    /// Seconds, samples and tokens at the end of each iteration.
    ends: VecDeque<(f64, u64, u64)>,
}

impl ThroughputWindow {
    /// A window over `window_size` iterations, at least one.
    pub fn new(window_size: usize) -> Self {
        let window_size = window_size.max(1);
        Self { window_size, ends: VecDeque::with_capacity(window_size + 1) }
    }

    /// Notes an end of an iteration: `seconds` on any steady clock, all samples and tokens so far.
    /// Also called once before the first iteration.
    pub fn push(&mut self, seconds: f64, samples: u64, tokens: u64) {
        if self.ends.len() > self.window_size {
            self.ends.pop_front();
        }
        self.ends.push_back((seconds, samples, tokens));
    }

    /// `throughput/{batches,samples,tokens}_per_sec` and `throughput/device/...`; empty until the
    /// window is full, or when the clock stood still.
    pub fn report(&self, world_size: u64) -> Vec<(String, f64)> {
        let (Some(first), Some(last)) = (self.ends.front(), self.ends.back()) else { return Vec::new() };
        let seconds = last.0 - first.0;
        if self.ends.len() <= self.window_size || seconds <= 0.0 {
            return Vec::new();
        }
        let samples = last.1.saturating_sub(first.1) as f64;
        let tokens = last.2.saturating_sub(first.2) as f64;
        let rates = [
            ("batches_per_sec", self.window_size as f64 / seconds),
            ("samples_per_sec", samples / seconds),
            ("tokens_per_sec", tokens / seconds),
        ];
        let all = rates.iter().map(|(name, rate)| (format!("throughput/{name}"), *rate));
        let per_device =
            rates.iter().map(|(name, rate)| (format!("throughput/device/{name}"), rate / world_size.max(1) as f64));
        all.chain(per_device).collect()
    }
}

/// A rank's memory metrics on one line, as the console shows them after the first iterations.
pub fn format_memory_report(rank: usize, iteration: u64, metrics: &[(String, f64)]) -> String {
    let metrics: Vec<String> = metrics.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("[Rank {rank}] (after {iteration} iterations) memory (GB) | {}", metrics.join(" | "))
}

/// `l2_norm/grad/{name}` for every parameter and `l2_norm/grad/global` over all of them.
pub fn report_l2_norm_grad(norms: impl IntoIterator<Item = (String, f64)>) -> Vec<(String, f64)> {
    let mut sum_of_squares = 0.0;
    let mut metrics: Vec<(String, f64)> = norms
        .into_iter()
        .map(|(name, norm)| {
            sum_of_squares += norm * norm;
            (format!("l2_norm/grad/{name}"), norm)
        })
        .collect();
    metrics.push(("l2_norm/grad/global".to_owned(), sum_of_squares.sqrt()));
    metrics
}

fn seconds(unit: TimeUnit) -> f64 {
    match unit {
        TimeUnit::Seconds => 1.0,
        TimeUnit::Minutes => 60.0,
        TimeUnit::Hours => 3600.0,
        TimeUnit::Days => 86_400.0,
    }
}

/// Inputs of a run-time estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RuntimeReport {
    /// Iterations completed when this job started; their time is not part of `elapsed_seconds`.
    pub start_iteration: u64,
    /// Iterations completed now.
    pub iteration: u64,
    /// Iterations of the whole run.
    pub train_iters: u64,
    /// Samples trained on, over all jobs.
    pub consumed_samples: u64,
    /// Tokens per sample.
    pub seq_length: u64,
    /// Time since this job started.
    pub elapsed_seconds: f64,
}

impl RuntimeReport {
    /// `time/remaining_estimate` (from this job's pace, once it has one), `time/tokens`,
    /// `time/samples`, `time/batches`, `time/total`.
    pub fn metrics(&self, unit: TimeUnit) -> Vec<(&'static str, f64)> {
        let done_here = self.iteration.saturating_sub(self.start_iteration);
        let remaining = self.train_iters.saturating_sub(self.iteration) as f64;
        let estimate = (done_here > 0).then(|| self.elapsed_seconds / done_here as f64 * remaining / seconds(unit));
        let rest = [
            ("time/tokens", self.consumed_samples as f64 * self.seq_length as f64),
            ("time/samples", self.consumed_samples as f64),
            ("time/batches", self.iteration as f64),
            ("time/total", self.elapsed_seconds / seconds(unit)),
        ];
        let estimate = estimate.map(|estimate| ("time/remaining_estimate", estimate));
        estimate.into_iter().chain(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(metrics: &[(impl AsRef<str> + std::fmt::Debug, f64)], name: &str) -> f64 {
        metrics.iter().find(|(known, _)| known.as_ref() == name).unwrap_or_else(|| panic!("{name} in {metrics:?}")).1
    }

    #[test]
    fn throughput_counts_the_iterations_its_time_spans() {
        let mut window = ThroughputWindow::new(4);
        window.push(0.0, 0, 0);
        for iteration in 1..=10 {
            // Slow at first; the batch grows from 8 to 16 after six iterations.
            let seconds =
                if iteration <= 3 { f64::from(iteration) * 10.0 } else { 30.0 + f64::from(iteration - 3) * 0.5 };
            let samples = if iteration <= 6 { 8 * iteration } else { 48 + 16 * (iteration - 6) };
            window.push(seconds, samples as u64, 32 * samples as u64);
            assert_eq!(window.report(2).is_empty(), iteration < 4, "full after {iteration}");
        }
        let metrics = window.report(2);
        assert_eq!(named(&metrics, "throughput/batches_per_sec"), 2.0);
        assert_eq!(named(&metrics, "throughput/samples_per_sec"), 32.0);
        assert_eq!(named(&metrics, "throughput/tokens_per_sec"), 1024.0);
        assert_eq!(named(&metrics, "throughput/device/tokens_per_sec"), 512.0);
        let mut still = ThroughputWindow::new(1);
        still.push(1.0, 1, 1);
        still.push(1.0, 2, 2);
        assert_eq!(still.report(1), []);
    }

    #[test]
    fn the_global_norm_covers_each_parameter_once() {
        let metrics = report_l2_norm_grad([("a".to_owned(), 3.0), ("b".to_owned(), 4.0)]);
        assert_eq!(named(&metrics, "l2_norm/grad/a"), 3.0);
        assert_eq!(named(&metrics, "l2_norm/grad/global"), 5.0);
    }

    #[test]
    fn estimates_use_this_jobs_pace() {
        let report = RuntimeReport {
            start_iteration: 50,
            iteration: 60,
            train_iters: 100,
            consumed_samples: 600,
            seq_length: 10,
            elapsed_seconds: 7200.0,
        };
        let metrics = report.metrics(TimeUnit::Hours);
        assert_eq!(named(&metrics, "time/remaining_estimate"), 8.0);
        assert_eq!(named(&metrics, "time/total"), 2.0);
        assert_eq!(named(&metrics, "time/tokens"), 6000.0);
        assert_eq!((named(&metrics, "time/samples"), named(&metrics, "time/batches")), (600.0, 60.0));
        assert_eq!(named(&report.metrics(TimeUnit::Days), "time/total"), 7200.0 / 86_400.0);

        let at_start = RuntimeReport { iteration: 50, ..report }.metrics(TimeUnit::Seconds);
        assert!(at_start.iter().all(|(name, value)| *name != "time/remaining_estimate" && value.is_finite()));
    }
}
