//! Breakdown of the time of traced steps, and the traffic between ranks.

use std::collections::BTreeMap;

use super::{Event, Part, Phase, Trace, TracedRank};

/// The time of a rank's steps.
#[derive(Clone, Debug, PartialEq)]
pub struct RankSummary {
    /// Rank of the times.
    pub rank: TracedRank,
    /// Steps of the rank, in order.
    pub steps: Vec<StepTimes>,
    /// Traffic of the rank in all steps, by group and operation.
    pub moved: BTreeMap<(String, String), Moved>,
}

/// The time of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Number of the iteration.
    pub iteration: u64,
    /// Seconds in all.
    pub seconds: f64,
    /// Seconds of each part, without nested parts. Together with the uncovered time they add up to
    /// the whole.
    pub parts: BTreeMap<Part, f64>,
    /// Seconds that no span covers.
    pub uncovered: f64,
}

/// Traffic of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Number of calls.
    pub operations: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

impl RankSummary {
    /// Mean seconds of a step.
    pub fn seconds(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum::<f64>() / self.steps.len().max(1) as f64
    }

    /// Mean seconds of a part in a step.
    pub fn part(&self, part: Part) -> f64 {
        let seconds = self.steps.iter().map(|step| step.parts.get(&part).copied().unwrap_or_default());
        seconds.sum::<f64>() / self.steps.len().max(1) as f64
    }

    /// The share of the steps that spans cover.
    pub fn coverage(&self) -> f64 {
        let (all, uncovered) =
            self.steps.iter().fold((0.0, 0.0), |sum, step| (sum.0 + step.seconds, sum.1 + step.uncovered));
        if all > 0.0 { 1.0 - uncovered / all } else { 1.0 }
    }
}

/// The times of each rank of a trace.
pub fn summarize(trace: &Trace) -> Vec<RankSummary> {
    let of_rank = |rank: &TracedRank| {
        let events = || trace.events.iter().filter(|event| event.pid == rank.rank as u64);
        let mut spans: Vec<&Event> = events().filter(|event| event.ph == Phase::X).collect();
        // Sorted by start, then longest first, so that outer spans precede nested ones.
        spans.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.end().total_cmp(&a.end())));
        let (steps, mut moved) = (steps(&spans), BTreeMap::<(String, String), Moved>::new());
        for event in events() {
            // A background call counts at its start, not at its wait.
            let counts = event.ph == Phase::Begins || event.cat == Some(Part::Collective);
            if let (true, Some(group), Some(bytes)) = (counts, event.text("group"), event.number("bytes")) {
                let moved = moved.entry((group.to_owned(), event.name.clone())).or_default();
                moved.operations += 1;
                // The payload of a broadcast is counted at the root.
                let hands_over = event.number("root").is_none_or(|root| root == event.pid);
                moved.bytes += if hands_over { bytes } else { 0 };
            }
        }
        RankSummary { rank: rank.clone(), steps, moved }
    };
    trace.header.ranks.iter().map(of_rank).collect()
}

/// A span that is not over, with the seconds of it that no span inside it has.
struct Open<'a> {
    event: &'a Event,
    own: f64,
}

/// The steps among spans, of which outer ones come before inner ones.
fn steps(spans: &[&Event]) -> Vec<StepTimes> {
    let mut steps: Vec<StepTimes> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for event in spans {
        close(&mut open, &mut steps, event.ts);
        if event.cat == Some(Part::Step) {
            let iteration = event.number("iteration").unwrap_or_default();
            let seconds = event.dur.unwrap_or_default() * 1e-6;
            steps.push(StepTimes { iteration, seconds, ..StepTimes::default() });
        } else if open.is_empty() {
            // Between steps.
            continue;
        }
        // Clocks tick in fractions that do not always add up.
        let end = open.last().map_or(event.end(), |around| event.end().min(around.event.end()));
        let seconds = (end - event.ts).max(0.0) * 1e-6;
        if let Some(around) = open.last_mut() {
            around.own -= seconds;
        }
        open.push(Open { event, own: seconds });
    }
    close(&mut open, &mut steps, f64::INFINITY);
    steps
}

/// Ends the spans that were over at `now`.
fn close(open: &mut Vec<Open>, steps: &mut [StepTimes], now: f64) {
    while let Some(Open { event, own }) = open.pop_if(|open| open.event.end() <= now) {
        let Some(step) = steps.last_mut() else { continue };
        match event.cat {
            Some(Part::Step) => step.uncovered = own.max(0.0),
            part => *step.parts.entry(part.unwrap_or(Part::Loop)).or_default() += own.max(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::logging::trace::Header;

    fn rank(rank: usize) -> TracedRank {
        TracedRank { rank, stage: 0, node: "here".into() }
    }

    fn header(ranks: Vec<TracedRank>) -> Header {
        Header { run: "a".into(), world_size: 2, ranks }
    }

    fn events() -> Vec<Event> {
        let span = |name: &str, ts, dur| Event::span(name, Part::of_span(name), 0, (ts, dur));
        let mut step = span("step", 0.0, 100.0);
        step.args.insert("iteration".into(), Value::from(11));
        let mut call = Event::span("all_reduce", Part::Collective, 0, (30.0, 10.0));
        call.args.extend([("group".to_owned(), Value::from("dp")), ("bytes".to_owned(), Value::from(64))]);
        let mut later = Event { ph: Phase::Begins, dur: None, cat: Some(Part::InFlight), ..call.clone() };
        later.name = "reduce_scatter".into();
        let names = [("batch-generator", 1.0, 9.0), ("forward-backward", 10.0, 70.0), ("forward-compute", 10.0, 40.0)];
        let mut events: Vec<Event> = names.iter().map(|(name, ts, dur)| span(name, *ts, *dur)).collect();
        events.extend([step, call, later, span("mlp-backward", 50.0, 30.0), span("optimizer", 80.0, 18.0)]);
        events.push(span("evaluate", 200.0, 5.0));
        events
    }

    #[test]
    fn the_parts_of_a_step_add_up() {
        let trace = Trace::new(header(vec![rank(0)]), events());
        let summary = &summarize(&trace)[0];
        let step = &summary.steps[0];
        assert_eq!((summary.steps.len(), step.iteration), (1, 11));
        let micros = |part| (step.parts[&part] * 1e6).round();
        assert_eq!([micros(Part::Data), micros(Part::Forward), micros(Part::Backward)], [9.0, 30.0, 30.0]);
        assert_eq!([micros(Part::Collective), micros(Part::Optimizer), micros(Part::Loop)], [10.0, 18.0, 0.0]);
        let all: f64 = step.parts.values().sum::<f64>() + step.uncovered;
        assert!((all - 1e-4).abs() < 1e-12 && (summary.coverage() - 0.97).abs() < 1e-9, "{all} {}", summary.coverage());
        let moved = |name: &str| summary.moved[&("dp".to_owned(), name.to_owned())];
        assert_eq!(moved("all_reduce"), Moved { operations: 1, bytes: 64 });
        assert_eq!(moved("reduce_scatter"), Moved { operations: 1, bytes: 64 });
    }

    #[test]
    fn ranks_of_one_run_merge_and_others_do_not() {
        let of = |number, run: &str| {
            let events = events().into_iter().map(|event| Event { pid: number as u64, ..event }).collect();
            Trace::new(Header { run: run.into(), ..header(vec![rank(number)]) }, events)
        };
        let merged = Trace::merge(vec![of(1, "a"), of(0, "a")]).unwrap();
        assert_eq!(merged.header.ranks, [rank(0), rank(1)]);
        assert!(merged.events.is_sorted_by(|a, b| a.ts <= b.ts));
        assert!(Trace::merge(vec![of(0, "a"), of(0, "a")]).unwrap_err().contains("rank 0"));
        assert!(Trace::merge(vec![of(0, "a"), of(1, "b")]).unwrap_err().contains("different runs"));
        assert!(Trace::merge(Vec::new()).is_err());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace/rank.json");
        merged.write(&path).unwrap();
        assert_eq!(Trace::read(&path).unwrap(), merged);
        std::fs::write(&path, "{}").unwrap();
        assert!(Trace::read(&path).unwrap_err().to_string().contains("not a trace"));
    }
}
