//! Time lines of pipeline schedules: when each rank runs which action, from the action lists.

use std::collections::HashMap;

use bridge_dist::schedule::{Action, Costs, Direction, PipelineSchedule, PipelineShape, ScheduleKind, Sends, simulate};

use super::svg::{Area, Svg};

const WIDTH: u32 = 780;
const LABEL: u32 = 62;
const ROW: u32 = 26;

/// A computation on the time line.
struct Step {
    rank: usize,
    start: u64,
    end: u64,
    action: Action,
}

pub fn figures() -> Vec<(&'static str, String)> {
    let interleaved = ScheduleKind::Interleaved { microbatch_group_size: 4 };
    [
        ("schedule-gpipe.svg", ScheduleKind::GPipe, 1),
        ("schedule-1f1b.svg", ScheduleKind::OneForwardOneBackward, 1),
        ("schedule-interleaved.svg", interleaved, 2),
        ("schedule-zb-h1.svg", ScheduleKind::ZeroBubbleH1, 1),
    ]
    .map(|(name, kind, chunks)| (name, draw(kind, chunks)))
    .to_vec()
}

fn draw(kind: ScheduleKind, num_chunks: usize) -> String {
    let shape = PipelineShape { num_stages: 4, num_chunks, num_microbatches: 8 };
    let schedule = PipelineSchedule::new(kind, shape).unwrap();
    let report = simulate(&schedule, Costs::default(), Sends::Buffered { capacity: usize::MAX }).unwrap();
    let steps = time_line(&schedule);
    assert_eq!(steps.iter().map(|step| step.end).max(), Some(report.makespan), "the simulator's clocks");
    let unit = f64::from(WIDTH - LABEL) / report.makespan as f64;
    let x = |time: u64| LABEL + (time as f64 * unit).round() as u32;
    let mut svg = Svg::new(WIDTH, 40 + 4 * ROW + 24);
    let bubble = 100.0 * report.bubble_fraction();
    let in_flight = report.max_in_flight.iter().max().unwrap();
    let of = if num_chunks > 1 { " micro-batch chunks" } else { "" };
    svg.heading(0, 14, &format!("{kind}: bubble {bubble:.1}%, at most {in_flight}{of} in flight"));
    for rank in 0..shape.num_stages {
        svg.text(0, 24 + rank as u32 * ROW + ROW / 2 + 4, &format!("stage {rank}"));
    }
    for Step { rank, start, end, action } in steps {
        let (fill, microbatch) = look(action);
        let area =
            Area { x: x(start), y: 24 + rank as u32 * ROW, width: (x(end) - x(start)).max(2) - 1, height: ROW - 3 };
        svg.labelled_box(area, fill, &microbatch.to_string());
    }
    legend(&mut svg, kind, 24 + 4 * ROW + 18);
    svg.finish(&format!("Time line of the {kind} schedule on four stages with eight micro-batches"))
}

/// Fill and micro-batch of a computation. Second chunks have fills of their own.
fn look(action: Action) -> (usize, usize) {
    match action {
        Action::Forward { microbatch, chunk } => (if chunk == 0 { 0 } else { 5 }, microbatch),
        Action::Backward { microbatch, chunk } => (if chunk == 0 { 1 } else { 4 }, microbatch),
        Action::BackwardInput { microbatch, .. } => (1, microbatch),
        Action::BackwardWeight { microbatch, .. } => (2, microbatch),
        other => unreachable!("{other} is no computation"),
    }
}

fn legend(svg: &mut Svg, kind: ScheduleKind, y: u32) {
    let entries: &[(usize, &str)] = match kind {
        ScheduleKind::Interleaved { .. } => {
            &[(0, "forward, chunk 0"), (5, "forward, chunk 1"), (1, "backward, chunk 0"), (4, "backward, chunk 1")]
        }
        ScheduleKind::ZeroBubbleH1 => {
            &[(0, "forward"), (1, "backward: gradient of the input"), (2, "backward: gradients of the weights")]
        }
        _ => &[(0, "forward"), (1, "backward")],
    };
    let mut x = LABEL;
    for (fill, text) in entries {
        svg.labelled_box(Area { x, y: y - 10, width: 12, height: 12 }, *fill, "");
        svg.text(x + 17, y, text);
        x += 40 + 7 * text.len() as u32;
    }
}

/// When each computation runs: a rank's actions one after the other, receives when their data is
/// there, sends at once.
fn time_line(schedule: &PipelineSchedule) -> Vec<Step> {
    let costs = Costs::default();
    let mut next = vec![0; schedule.ranks.len()];
    let mut clocks = vec![0; schedule.ranks.len()];
    let mut sent: HashMap<(Direction, usize, usize), u64> = HashMap::new();
    let mut steps = Vec::new();
    let mut moved = true;
    while moved {
        moved = false;
        for (rank, actions) in schedule.ranks.iter().enumerate() {
            while let Some(&action) = actions.get(next[rank]) {
                let start = clocks[rank];
                match (action.message(), action) {
                    (Some((direction, message)), action) if action.is_send() => {
                        sent.insert((direction, message.boundary, message.microbatch), start);
                    }
                    (Some((direction, message)), _) => {
                        let Some(arrival) = sent.get(&(direction, message.boundary, message.microbatch)) else {
                            break;
                        };
                        clocks[rank] = start.max(*arrival);
                    }
                    (None, action) => {
                        clocks[rank] += match action {
                            Action::Forward { .. } => costs.forward,
                            Action::BackwardInput { .. } => costs.backward_input,
                            Action::BackwardWeight { .. } => costs.backward_weight,
                            _ => costs.backward_input + costs.backward_weight,
                        };
                        steps.push(Step { rank, start, end: clocks[rank], action });
                    }
                }
                next[rank] += 1;
                moved = true;
            }
        }
    }
    steps
}
