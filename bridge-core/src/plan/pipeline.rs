//! The pipeline's schedule: bubble, messages, and the micro-batches in flight. The action lists are
//! those that a run executes.

use bridge_dist::schedule::{Action, Costs, PipelineSchedule, PipelineShape, ScheduleKind, Sends, simulate};
use serde::Serialize;

use super::segments::{ChunkActivations, activations as of_chunk};
use super::setup::{PlanError, Setup};

/// Forwards beyond which a schedule is not simulated: formulas are exact enough there, and
/// simulation takes its time.
const SIMULATED: usize = 1 << 15;

/// Source of a bubble fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BubbleSource {
    /// The schedule was run on virtual clocks.
    Simulation,
    /// The schedule is too long to be run; its formula.
    Formula,
}

/// The schedule and its idle time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pipeline {
    /// The schedule's name.
    pub schedule: String,
    /// Share of the ranks' time that is not computing, `0..1`, if all stages take equally long and
    /// backward twice as long as forward.
    pub bubble_fraction: f64,
    /// Source of the fraction.
    pub bubble_source: BubbleSource,
    /// Most micro-batch chunks in flight on each stage: forward done, backward not.
    pub max_in_flight: Vec<usize>,
}

/// The schedule's figures.
pub(super) fn plan(setup: &Setup<'_>) -> Result<Pipeline, PlanError> {
    let (kind, shape) = (setup.schedule, setup.shape);
    let forwards = shape.num_virtual_stages() * shape.num_microbatches;
    let short = PipelineSchedule::new(kind, steady(kind, shape))?;
    let report = simulate(&short, Costs::default(), Sends::Buffered { capacity: usize::MAX })?;
    let (bubble_fraction, bubble_source) = match short.shape == shape {
        true => (report.bubble_fraction(), BubbleSource::Simulation),
        false if forwards <= SIMULATED => {
            let whole = PipelineSchedule::new(kind, shape)?;
            let report = simulate(&whole, Costs::default(), Sends::Buffered { capacity: usize::MAX })?;
            (report.bubble_fraction(), BubbleSource::Simulation)
        }
        false => (bubble(kind, shape), BubbleSource::Formula),
    };
    // GPipe holds all micro-batches; other schedules hold no more than in their steady state.
    let max_in_flight = match kind {
        ScheduleKind::GPipe => vec![shape.num_microbatches; shape.num_stages],
        _ => report.max_in_flight,
    };
    Ok(Pipeline { schedule: kind.to_string(), bubble_fraction, bubble_source, max_in_flight })
}

/// The bubble by formula, for many micro-batches (Narayanan et al. 2021; Qi et al. 2024 with equal
/// parts of forward and backward).
pub(super) fn bubble(kind: ScheduleKind, shape: PipelineShape) -> f64 {
    let stages = shape.num_stages as f64;
    let work = (shape.num_chunks * shape.num_microbatches) as f64;
    let idle = match kind {
        ScheduleKind::ForwardOnly => return (stages - 1.0) / (work + stages - 1.0),
        // One unit of idle time, where other schedules have three: forward, and both parts of
        // backward.
        ScheduleKind::ZeroBubbleH1 => (stages - 1.0) / 3.0,
        _ => stages - 1.0,
    };
    idle / (work + idle)
}

/// Shape with few enough micro-batches that its list is short, and enough that the steady state is
/// reached.
fn steady(kind: ScheduleKind, shape: PipelineShape) -> PipelineShape {
    let enough = 4 * shape.num_virtual_stages();
    let unit = match kind {
        ScheduleKind::Interleaved { microbatch_group_size } => microbatch_group_size,
        _ => 1,
    };
    let surplus = shape.num_microbatches.saturating_sub(enough.max(2 * unit)) / unit.max(1);
    PipelineShape { num_microbatches: shape.num_microbatches - surplus * unit, ..shape }
}

/// The most bytes of kept activations that each stage has at once.
pub(super) fn activation_peaks(
    setup: &Setup<'_>,
    counted: impl Fn(ChunkActivations) -> ChunkActivations,
) -> Result<Vec<u64>, PlanError> {
    let shape = setup.shape;
    let short = PipelineSchedule::new(setup.schedule, steady(setup.schedule, shape))?;
    let peaks = short.ranks.iter().enumerate().map(|(stage, actions)| {
        let chunks: Vec<ChunkActivations> =
            setup.stages[stage].iter().map(|chunk| counted(of_chunk(setup, chunk))).collect();
        match setup.schedule {
            ScheduleKind::GPipe => chunks[0].kept * shape.num_microbatches as u64,
            _ => peak(actions, &chunks),
        }
    });
    Ok(peaks.collect())
}

/// The most bytes in flight.
fn peak(actions: &[Action], chunks: &[ChunkActivations]) -> u64 {
    let (mut held, mut most) = (0, 0);
    for action in actions {
        match action {
            Action::Forward { chunk, .. } => held += chunks[*chunk].kept,
            Action::Backward { chunk, .. } => held -= chunks[*chunk].kept,
            Action::BackwardInput { chunk, .. } => held = held + chunks[*chunk].deferred - chunks[*chunk].kept,
            Action::BackwardWeight { chunk, .. } => held -= chunks[*chunk].deferred,
            _ => {}
        }
        most = most.max(held);
    }
    most
}

#[cfg(test)]
mod tests {

    use super::*;

    fn interleaved(group: usize) -> ScheduleKind {
        ScheduleKind::Interleaved { microbatch_group_size: group }
    }

    #[test]
    fn formulas_are_what_the_simulator_finds() {
        let cases = [
            (ScheduleKind::GPipe, 4, 1, 8),
            (ScheduleKind::OneForwardOneBackward, 4, 1, 8),
            (ScheduleKind::OneForwardOneBackward, 7, 1, 29),
            (ScheduleKind::ZeroBubbleH1, 4, 1, 12),
            (ScheduleKind::ZeroBubbleH1, 5, 1, 40),
            (interleaved(4), 4, 2, 16),
            (interleaved(3), 3, 5, 12),
            (ScheduleKind::ForwardOnly, 4, 1, 10),
        ];
        for (kind, num_stages, num_chunks, num_microbatches) in cases {
            let shape = PipelineShape { num_stages, num_chunks, num_microbatches };
            let schedule = PipelineSchedule::new(kind, shape).unwrap();
            let report = simulate(&schedule, Costs::default(), Sends::Buffered { capacity: usize::MAX }).unwrap();
            let difference = (report.bubble_fraction() - bubble(kind, shape)).abs();
            assert!(difference < 1e-12, "{kind} {shape:?}: {} and {}", report.bubble_fraction(), bubble(kind, shape));
        }
    }

    /// The peak of a short list is that of the whole one.
    #[test]
    fn activations_peak_as_the_action_lists_say() {
        let cases = [
            (ScheduleKind::OneForwardOneBackward, 2, 1, 48),
            (ScheduleKind::ZeroBubbleH1, 3, 1, 57),
            (interleaved(2), 2, 2, 48),
            (interleaved(3), 3, 5, 90),
        ];
        for (kind, num_stages, num_chunks, num_microbatches) in cases {
            let shape = PipelineShape { num_stages, num_chunks, num_microbatches };
            let chunk = |i: u64| ChunkActivations { kept: 7 + 4 * i, deferred: 3 + i, ..ChunkActivations::default() };
            let chunks: Vec<ChunkActivations> = (0..num_chunks as u64).map(chunk).collect();
            let short = PipelineSchedule::new(kind, steady(kind, shape)).unwrap();
            let whole = PipelineSchedule::new(kind, shape).unwrap();
            assert!(short.ranks[0].len() < whole.ranks[0].len(), "{kind}");
            for (short, whole) in short.ranks.iter().zip(&whole.ranks) {
                assert_eq!(peak(short, &chunks), peak(whole, &chunks), "{kind}");
            }
        }
    }
}
