//! The times of all ranks as lines and as metrics.

use crate::timers::TimerReport;
use bridge_config::TimingLogOption;

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

    /// The report as text, each time divided by the interval's `num_iterations`; `None` when no
    /// timer ran. With one rank there is nothing to compare, and `option` changes nothing.
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
            text += &match option {
                TimingLogOption::MinMax if self.ranks > 1 => format!("\n    {field}: ({min:.2}, {max:.2})"),
                TimingLogOption::All if self.ranks > 1 => {
                    let of_rank = |(rank, seconds): (usize, &Option<f64>)| {
                        seconds.map(|seconds| format!("\n     rank {rank:2}: {:.2}", milliseconds(seconds)))
                    };
                    let ranks: String = by_rank.iter().enumerate().filter_map(of_rank).collect();
                    format!("\n  {name}:{ranks}")
                }
                _ => format!("\n    {field}: {max:.2}"),
            };
        }
        Some(text)
    }

    /// The times as metrics in seconds per iteration: `{name}-time` of the slowest rank, with
    /// [`TimingLogOption::MinMax`] also `{name}-time/min`, with [`TimingLogOption::All`] also
    /// `{name}-time/rank{r}`, if there are more ranks than one.
    pub fn metrics(&self, option: TimingLogOption, num_iterations: u64) -> Vec<(String, f64)> {
        let per_iteration = |seconds: f64| seconds / num_iterations.max(1) as f64;
        let mut metrics = Vec::new();
        for (name, by_rank) in &self.times {
            let (min, max) = min_max(by_rank);
            metrics.push((format!("{name}-time"), per_iteration(max)));
            match option {
                TimingLogOption::MinMax if self.ranks > 1 => {
                    metrics.push((format!("{name}-time/min"), per_iteration(min)))
                }
                TimingLogOption::All if self.ranks > 1 => {
                    let of_rank = |(rank, seconds): (usize, &Option<f64>)| {
                        seconds.map(|seconds| (format!("{name}-time/rank{rank}"), per_iteration(seconds)))
                    };
                    metrics.extend(by_rank.iter().enumerate().filter_map(of_rank));
                }
                _ => {}
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
