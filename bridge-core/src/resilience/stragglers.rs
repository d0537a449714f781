//! Detection of stragglers by each rank's own time. This file has only scores and texts; measuring
//! and acting on them belongs to the loop.
//!
//! A rank that waits for a slow one takes as long for a step as the slow one does. So ranks are
//! compared by the time that is their own: all of a step but their calls of communicators.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::rerun::RankLocation;

/// Windows that a rank's past has.
const PAST: usize = 64;

/// Breakdown of the time of a step on one rank, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// Time of computation.
    pub compute: f64,
    /// Time of waiting for data.
    pub data: f64,
    /// Time in calls of communicators, waiting for other ranks and for links.
    pub communication: f64,
}

impl RankTimes {
    /// Time that other ranks may have waited for.
    pub fn own(&self) -> f64 {
        self.compute + self.data
    }

    /// The step whose own time a sixteenth of the steps undercut. A rank that is slow is so in
    /// nearly all steps; a rank that other programs hold up, or other ranks on the same cores, has
    /// some steps without that.
    pub fn undisturbed(steps: &[Self]) -> Option<Self> {
        let mut steps = steps.to_vec();
        steps.sort_by(|a, b| a.own().total_cmp(&b.own()));
        steps.get(steps.len().saturating_sub(1) / 16).copied()
    }
}

impl fmt::Display for RankTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [compute, data, communication] =
            [self.compute, self.data, self.communication].map(|seconds| seconds * 1000.0);
        write!(f, "compute {compute:.2} ms, data {data:.2} ms, communication {communication:.2} ms")
    }
}

/// Report of one rank on the steps of a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankWindow {
    /// Machine and device of the rank.
    pub place: RankLocation,
    /// Pipeline stage of the rank: ranks of one stage do the same work.
    pub stage: usize,
    /// Times of the rank, [undisturbed](RankTimes::undisturbed).
    pub times: RankTimes,
    /// Own time of the rank in earlier windows; `None` in the first one.
    pub usual: Option<f64>,
}

/// Speed of a rank, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// Relative to the ranks of its stage: their median time divided by the rank's own. `None` if
    /// the rank is alone in its stage.
    pub relative: Option<f64>,
    /// Relative to its past, divided by the usual change of all ranks of the stage, so that a
    /// slowdown of all ranks does not count. `None` in the first window.
    pub individual: Option<f64>,
}

/// The scores of all ranks, in their order.
fn scores(windows: &[RankWindow]) -> Vec<Scores> {
    let raw = |rank: &RankWindow| rank.usual.map(|usual| ratio(usual, rank.times.own()));
    let of_rank = |rank: &RankWindow| {
        let peers = || windows.iter().filter(|other| other.stage == rank.stage);
        let own = sorted(peers().map(|peer| peer.times.own()));
        // With two ranks the faster one is the reference, so that a slow rank is not compared with
        // itself.
        let reference = own[(own.len() - 1) / 2];
        let changes = sorted(peers().filter_map(raw));
        let usual_change = if own.len() > 1 { changes.get(changes.len() / 2).copied() } else { None };
        Scores {
            relative: (own.len() > 1).then(|| ratio(reference, rank.times.own())),
            individual: raw(rank).map(|change| ratio(change, usual_change.unwrap_or(1.0))),
        }
    };
    windows.iter().map(of_rank).collect()
}

/// `fast / slow`, at most 1.
fn ratio(fast: f64, slow: f64) -> f64 {
    if slow <= fast { 1.0 } else { fast / slow }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Finds stragglers by the scores of ranks.
#[derive(Clone, Debug)]
pub struct Detector {
    /// A relative score below it is a straggler's; `None` if there are no relative scores.
    relative: Option<f64>,
    /// The same for individual scores.
    individual: Option<f64>,
    /// Number of best and worst scores that are reported.
    num_told: usize,
    /// The ranks that were too slow in the last window, and by which score.
    suspects: BTreeSet<(&'static str, usize)>,
    /// Own times of this rank in past windows.
    past: VecDeque<f64>,
    /// Micro-batches of their steps.
    num_microbatches: u64,
}

/// Result of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StragglerReport {
    /// Scores of all ranks.
    pub scores: Vec<Scores>,
    /// Best and worst scores.
    pub lines: Vec<String>,
    /// A sentence for each rank that is too slow.
    pub stragglers: Vec<String>,
    /// Numbers of the slow ranks, each once.
    pub slow: BTreeSet<usize>,
}

impl Detector {
    /// A detector with these thresholds, which reports `num_told` best and worst scores.
    pub fn new(relative: Option<f64>, individual: Option<f64>, num_told: usize) -> Self {
        let (suspects, past) = (BTreeSet::new(), VecDeque::new());
        Self { relative, individual, num_told, suspects, past, num_microbatches: 0 }
    }

    /// The time in the middle of this rank's past windows, of steps with as many micro-batches;
    /// `own` joins them.
    pub fn usual_before(&mut self, own: f64, num_microbatches: u64) -> Option<f64> {
        if self.num_microbatches != num_microbatches {
            self.past.clear();
            self.num_microbatches = num_microbatches;
        }
        let usual = sorted(self.past.iter().copied()).get(self.past.len().saturating_sub(1) / 2).copied();
        self.past.push_back(own);
        if self.past.len() > PAST {
            self.past.pop_front();
        }
        usual
    }

    /// Detects stragglers among all ranks, in a window of `num_steps` steps. A score below the
    /// square of the threshold names a rank at once; one that is nearer has to be below the
    /// threshold in two windows in a row, because other programs may hold up a rank for a while.
    pub fn detect(&mut self, windows: &[RankWindow], num_steps: usize) -> StragglerReport {
        let before = std::mem::take(&mut self.suspects);
        let mut report = StragglerReport { scores: scores(windows), ..StragglerReport::default() };
        let kinds: [(_, _, fn(&Scores) -> Option<f64>); 2] = [
            ("relative to other ranks", self.relative, |scores| scores.relative),
            ("relative to their past", self.individual, |scores| scores.individual),
        ];
        for (what, threshold, score) in kinds {
            let Some(threshold) = threshold else { continue };
            let ranks = report.scores.iter().enumerate();
            let scored: Vec<(usize, f64)> = ranks.filter_map(|(rank, scores)| Some((rank, score(scores)?))).collect();
            if self.num_told > 0 && !scored.is_empty() {
                report.lines.push(extremes(what, &scored, self.num_told, num_steps));
            }
            let slow: Vec<(usize, f64)> = scored.into_iter().filter(|(_, score)| *score < threshold).collect();
            self.suspects.extend(slow.iter().map(|(rank, _)| (what, *rank)));
            let is_sure =
                |(rank, score): &(usize, f64)| *score < threshold * threshold || before.contains(&(what, *rank));
            let sure: Vec<(usize, f64)> = slow.into_iter().filter(is_sure).collect();
            report.slow.extend(sure.iter().map(|(rank, _)| *rank));
            report.stragglers.extend(sure.into_iter().map(|(rank, score)| {
                let RankWindow { place, times, .. } = &windows[rank];
                format!("straggler: {place}: score {score:.2} {what} is below {threshold}; its step: {times}")
            }));
        }
        report
    }
}

/// Best and worst of ranks with their scores.
fn extremes(what: &str, scored: &[(usize, f64)], count: usize, num_steps: usize) -> String {
    let mut ranked = scored.to_vec();
    // Among equal scores the lower rank comes first.
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let [best, worst] = ends(&ranked, count, |(rank, score)| format!("rank {rank} {score:.2}"));
    format!("performance of ranks over {num_steps} steps, {what}: best: {best}; worst: {worst}")
}

/// First and last `count` items, the outermost first, as text.
fn ends<T>(ranked: &[T], count: usize, text: impl Fn(&T) -> String) -> [String; 2] {
    let first: Vec<String> = ranked.iter().take(count).map(&text).collect();
    let last: Vec<String> = ranked.iter().rev().take(count).map(&text).collect();
    [first.join(", "), last.join(", ")]
}

/// The ranks with the least and the most time of their own in a step, `count` of each, and the
/// range of each part of it. `flops` of a step and a rank make rates of it.
pub fn list_times(windows: &[RankWindow], count: usize, num_steps: usize, flops: Option<f64>) -> String {
    let mut ranked: Vec<&RankWindow> = windows.iter().collect();
    ranked.sort_by(|a, b| a.times.own().total_cmp(&b.times.own()));
    let [least, most] = ends(&ranked, count, |window| {
        let own = window.times.own();
        let rate = flops.map_or_else(String::new, |flops| format!(" ({:.3} TFLOP/s)", flops / own.max(1e-9) / 1e12));
        format!("rank {} {:.2} ms{rate}", window.place.rank, own * 1000.0)
    });
    let range = |name: &str, part: fn(&RankTimes) -> f64| {
        let values = sorted(windows.iter().map(|window| part(&window.times) * 1000.0));
        format!("{name} {:.2} to {:.2} ms", values[0], values[values.len() - 1])
    };
    let parts = [
        range("compute", |times| times.compute),
        range("data", |times| times.data),
        range("communication", |times| times.communication),
    ];
    format!(
        "time of ranks' own in a step, over {num_steps} steps: least: {least}; most: {most}; of all ranks: {}",
        parts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: usize, stage: usize, compute: f64, usual: Option<f64>) -> RankWindow {
        let place = RankLocation { rank, node: format!("n{rank}"), device: rank };
        let times = RankTimes { compute, data: 0.0, communication: 1.0 };
        RankWindow { place, stage, times, usual }
    }

    fn both() -> Detector {
        Detector::new(Some(0.7), Some(0.7), 1)
    }

    /// The ranks that are named, with how often.
    fn named(windows: &[RankWindow]) -> Vec<usize> {
        let mut detector = both();
        let at_once = detector.detect(windows, 10).stragglers;
        let report = detector.detect(windows, 10);
        assert!(at_once.iter().all(|line| report.stragglers.contains(line)), "{at_once:?}");
        let rank = |line: &String| line.split("rank ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        report.stragglers.iter().map(rank).collect()
    }

    #[test]
    fn who_is_slow_is_named_and_who_waits_is_not() {
        for (own, slow) in [
            (&[1.0, 1.0, 1.0, 1.0][..], &[][..]),
            (&[1.0, 5.0], &[1]),
            (&[5.0, 1.0], &[0]),
            (&[1.0, 1.1, 3.0, 0.9], &[2]),
            (&[1.0, 1.1, 3.0, 3.0], &[2, 3]),
            (&[1.0, 1.4], &[]),
            (&[2.0], &[]),
        ] {
            let windows: Vec<_> = own.iter().enumerate().map(|(at, own)| rank(at, 0, *own, None)).collect();
            assert_eq!(named(&windows), slow, "{own:?}");
        }
    }

    #[test]
    fn who_is_a_little_too_slow_is_named_when_it_is_so_again() {
        let windows = |own: f64| [rank(0, 0, 1.0, None), rank(1, 0, own, None)];
        let mut detector = both();
        let counts = [1.6, 1.0, 1.6, 1.7, 5.0, 1.0, 5.0].map(|own| detector.detect(&windows(own), 9).stragglers.len());
        assert_eq!(counts, [0, 0, 0, 1, 1, 0, 1]);
    }

    #[test]
    fn stages_have_work_of_their_own() {
        let windows = [rank(0, 0, 1.0, None), rank(1, 0, 1.0, None), rank(2, 1, 9.0, None), rank(3, 1, 9.0, None)];
        assert!(named(&windows).is_empty());
        let windows = [rank(0, 0, 1.0, None), rank(1, 1, 9.0, None)];
        assert!(scores(&windows).iter().all(|score| score.relative.is_none()));
    }

    #[test]
    fn a_rank_is_held_against_its_past_and_a_machine_that_slows_all_slows_none() {
        // A rank that is always slower, just above the threshold, and then gets worse.
        let windows = |last| [rank(0, 0, 1.0, Some(1.0)), rank(1, 0, 1.0, Some(1.0)), rank(2, 1, last, Some(1.0))];
        assert!(named(&windows(1.2)).is_empty());
        assert_eq!(named(&windows(2.0)), [2]);
        let all_slower = [rank(0, 0, 3.0, Some(1.0)), rank(1, 0, 3.1, Some(1.0))];
        assert!(named(&all_slower).is_empty());
        let one_slower = [rank(0, 0, 1.0, Some(1.0)), rank(1, 0, 1.3, Some(0.8))];
        assert_eq!(named(&one_slower), [1]);
    }

    #[test]
    fn the_past_is_what_is_usual_for_steps_of_that_size() {
        let mut detector = both();
        let usual = [1.0, 9.0, 2.0, 3.0].map(|own| detector.usual_before(own, 4));
        assert_eq!(usual, [None, Some(1.0), Some(1.0), Some(2.0)]);
        assert_eq!(detector.usual_before(1.0, 8), None, "the batch has grown");
    }

    #[test]
    fn reports_say_where_the_time_went() {
        let mut windows = [rank(0, 0, 0.001, None), rank(1, 0, 0.004, None), rank(2, 0, 0.001, None)];
        windows[1].times.data = 0.006;
        let report = both().detect(&windows, 7);
        assert_eq!(
            report.lines,
            ["performance of ranks over 7 steps, relative to other ranks: best: rank 0 1.00; worst: rank 1 0.10"]
        );
        assert_eq!(
            report.stragglers,
            [
                "straggler: rank 1, node n1, device 1: score 0.10 relative to other ranks is below 0.7; its step: compute 4.00 ms, data 6.00 ms, \
              communication 1000.00 ms"
            ]
        );
        assert!(Detector { num_told: 0, ..both() }.detect(&windows, 7).lines.is_empty());
        assert_eq!(
            list_times(&windows, 1, 7, Some(1e9)),
            "time of ranks' own in a step, over 7 steps: least: rank 0 1.00 ms (1.000 TFLOP/s); most: rank 1 10.00 ms (0.100 TFLOP/s); of all \
             ranks: compute 1.00 to 4.00 ms, data 0.00 to 6.00 ms, communication 1000.00 to 1000.00 ms"
        );
    }

    #[test]
    fn steps_that_were_held_up_do_not_count() {
        let step = |compute| RankTimes { compute, ..RankTimes::default() };
        let of = |steps: &[f64]| RankTimes::undisturbed(&steps.iter().copied().map(step).collect::<Vec<_>>());
        assert_eq!(of(&[3.0, 900.0, 1.0]), Some(step(1.0)));
        // A window that was too short does not count either.
        let steps: Vec<f64> = [2.0, 0.1].into_iter().chain([9.0; 15]).collect();
        assert_eq!(of(&steps), Some(step(2.0)));
        assert_eq!(of(&[]), None);
    }
}
