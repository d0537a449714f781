//! Pipeline schedules: published warm-up counts and tables, theory's memory and bubbles, freedom
//! from deadlock, and the checker itself.

use bridge_dist::schedule::{
    Action, Costs, PipelineSchedule, PipelineShape, ScheduleError, ScheduleKind, Sends, SimulationReport,
    interleaved_table, simulate, validate, warmup_microbatches,
};
use proptest::prelude::*;

const ENDLESS: Sends = Sends::Buffered { capacity: usize::MAX };

fn shape(num_stages: usize, num_chunks: usize, num_microbatches: usize) -> PipelineShape {
    PipelineShape { num_stages, num_chunks, num_microbatches }
}

fn interleaved(group: usize) -> ScheduleKind {
    ScheduleKind::Interleaved { microbatch_group_size: group }
}

fn run(kind: ScheduleKind, shape: PipelineShape, sends: Sends) -> SimulationReport {
    let schedule = PipelineSchedule::new(kind, shape).unwrap();
    simulate(&schedule, Costs::default(), sends).unwrap()
}

fn warmups(kind: ScheduleKind, shape: PipelineShape) -> Vec<usize> {
    let schedule = PipelineSchedule::new(kind, shape).unwrap();
    let counted: Vec<usize> = schedule
        .ranks
        .iter()
        .map(|actions| {
            let computing = actions.iter().filter(|action| action.message().is_none());
            computing.take_while(|action| matches!(action, Action::Forward { .. })).count()
        })
        .collect();
    // The list of a rank has the warm-up and the first forward of the steady phase before its first
    // backward.
    for (rank, &forwards) in counted.iter().enumerate() {
        let total = shape.num_microbatches * shape.num_chunks;
        assert_eq!(forwards, (warmup_microbatches(kind, shape, rank) + 1).min(total));
    }
    (0..shape.num_stages).map(|rank| warmup_microbatches(kind, shape, rank)).collect()
}

#[test]
fn warm_up_counts_are_megatrons() {
    assert_eq!(warmups(ScheduleKind::OneForwardOneBackward, shape(4, 1, 8)), [3, 2, 1, 0]);
    assert_eq!(warmups(interleaved(4), shape(4, 2, 8)), [10, 8, 6, 4]);
}

#[test]
fn the_interleaved_table_is_megatrons() {
    let (microbatches, chunks): (Vec<usize>, Vec<usize>) = interleaved_table(5, 2, 3).into_iter().unzip();
    assert_eq!(microbatches, [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]);
    assert_eq!(chunks, [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]);
}

#[test]
fn one_rank_alternates_forward_and_backward() {
    let schedule = PipelineSchedule::new(ScheduleKind::OneForwardOneBackward, shape(1, 1, 2)).unwrap();
    let step = |microbatch| [Action::Forward { microbatch, chunk: 0 }, Action::Backward { microbatch, chunk: 0 }];
    assert_eq!(schedule.ranks, [[step(0), step(1)].concat()]);
}

#[test]
fn the_last_rank_of_1f1b_in_full() {
    let schedule = PipelineSchedule::new(ScheduleKind::OneForwardOneBackward, shape(2, 1, 2)).unwrap();
    let texts: Vec<String> = schedule.ranks[1].iter().map(Action::to_string).collect();
    assert_eq!(
        texts,
        [
            "recv-activation(micro-batch 0, chunk 0, from 0)",
            "forward(micro-batch 0, chunk 0)",
            "backward(micro-batch 0, chunk 0)",
            "recv-activation(micro-batch 1, chunk 0, from 0)",
            "send-gradient(micro-batch 0, chunk 0, to 0)",
            "forward(micro-batch 1, chunk 0)",
            "backward(micro-batch 1, chunk 0)",
            "send-gradient(micro-batch 1, chunk 0, to 0)",
        ]
    );
}

#[test]
fn impossible_shapes_say_why() {
    let chunks = PipelineSchedule::new(ScheduleKind::OneForwardOneBackward, shape(2, 2, 4)).unwrap_err();
    assert!(matches!(chunks, ScheduleError::NoChunks { num_chunks: 2, .. }));
    let none = PipelineSchedule::new(ScheduleKind::GPipe, shape(2, 1, 0)).unwrap_err();
    assert!(matches!(none, ScheduleError::Zero { .. }));
    // Too small, too large, and a remainder smaller than the pipeline.
    for (group, microbatches) in [(3, 8), (9, 8), (4, 9)] {
        let error = PipelineSchedule::new(interleaved(group), shape(4, 2, microbatches)).unwrap_err();
        assert!(matches!(error, ScheduleError::GroupSize { .. }), "{group} {microbatches}");
    }
}

#[test]
fn broken_lists_are_found() {
    let good = PipelineSchedule::new(ScheduleKind::OneForwardOneBackward, shape(2, 1, 3)).unwrap();

    let mut lacks_backward = good.clone();
    lacks_backward.ranks[0].retain(|action| *action != Action::Backward { microbatch: 2, chunk: 0 });
    assert!(matches!(validate(&lacks_backward), Err(ScheduleError::Missing { rank: 0, .. })));

    let mut early = good.clone();
    early.ranks[1].swap(0, 1);
    assert!(matches!(validate(&early), Err(ScheduleError::Action { rank: 1, index: 0, .. })));

    let mut twice = good.clone();
    let first = twice.ranks[0][0];
    twice.ranks[0].insert(1, first);
    assert!(matches!(validate(&twice), Err(ScheduleError::Action { index: 1, .. })));

    let mut short = good.clone();
    short.ranks.pop();
    assert!(matches!(validate(&short), Err(ScheduleError::RankCount { expected: 2, found: 1 })));
}

#[test]
fn deadlock_and_wrong_order_are_found() {
    let costs = Costs::default();
    let mut crossed = PipelineSchedule::new(ScheduleKind::OneForwardOneBackward, shape(2, 1, 3)).unwrap();
    // Rank 1 sends its gradient before it receives the activation that rank 0 is sending.
    let position = crossed.ranks[1].iter().position(Action::is_send).unwrap();
    crossed.ranks[1].swap(position - 1, position);
    assert_eq!(validate(&crossed), Ok(()));
    assert!(simulate(&crossed, costs, ENDLESS).is_ok());
    let error = simulate(&crossed, costs, Sends::Rendezvous).unwrap_err();
    let ScheduleError::Deadlock { blocked } = &error else { panic!("{error}") };
    assert_eq!(blocked.len(), 2);
    assert!(error.to_string().contains("rank 1 in send-gradient"));

    let mut swapped = PipelineSchedule::new(ScheduleKind::GPipe, shape(2, 1, 2)).unwrap();
    for action in &mut swapped.ranks[0] {
        if let Action::Forward { microbatch, .. } = action {
            *microbatch = 1 - *microbatch;
        }
        if let Action::SendActivation(message) = action {
            message.microbatch = 1 - message.microbatch;
        }
    }
    assert!(matches!(
        simulate(&swapped, costs, ENDLESS),
        Err(ScheduleError::WrongOrder { rank: 1, expected: 0, found: 1, .. })
    ));
    let full = Sends::Buffered { capacity: 0 };
    assert!(matches!(
        simulate(&PipelineSchedule::new(ScheduleKind::GPipe, shape(2, 1, 2)).unwrap(), costs, full),
        Err(ScheduleError::Deadlock { .. })
    ));
}

#[test]
fn bubbles_are_those_of_the_papers() {
    for stages in 1..7u64 {
        for microbatches in stages..3 * stages + 2 {
            let size = shape(stages as usize, 1, microbatches as usize);
            let ramp = stages - 1;
            // A forward takes 1, a backward 2: P - 1 of each are lost to the ramps.
            for kind in [ScheduleKind::GPipe, ScheduleKind::OneForwardOneBackward] {
                let report = run(kind, size, ENDLESS);
                assert_eq!(report.makespan, 3 * (microbatches + ramp), "{kind} {size:?}");
                let expected = ramp as f64 / (microbatches + ramp) as f64;
                assert!((report.bubble_fraction() - expected).abs() < 1e-12);
            }
        }
        // ZB-H1 loses (P - 1)(F + B - W), a third of that, once the pipeline is long enough to be
        // steady.
        let microbatches = 2 * stages;
        let report = run(ScheduleKind::ZeroBubbleH1, shape(stages as usize, 1, microbatches as usize), ENDLESS);
        assert_eq!(report.makespan, 3 * microbatches + stages - 1, "ZB-H1 with {stages} stages");
    }
    // C chunks divide the ramps by C: (P - 1)(F + B) / C, in units of a chunk's time.
    for (stages, chunks, microbatches) in [(2, 2, 4), (4, 2, 8), (4, 3, 16), (3, 4, 9)] {
        let report = run(interleaved(stages), shape(stages, chunks, microbatches), ENDLESS);
        let work = 3 * microbatches * chunks;
        assert_eq!(report.makespan as usize, work + 3 * (stages - 1), "{stages} {chunks} {microbatches}");
    }
}

#[test]
fn forward_only_keeps_nothing() {
    for chunks in 1..4 {
        let report = run(ScheduleKind::ForwardOnly, shape(3, chunks, 7), ENDLESS);
        assert_eq!(report.max_in_flight, [0, 0, 0]);
        assert_eq!(report.busy, [7 * chunks as u64; 3]);
    }
}

fn costs() -> impl Strategy<Value = Costs> {
    (1u64..20, 1u64..20, 1u64..20, 0u64..20).prop_map(|(forward, backward_input, backward_weight, transfer)| Costs {
        forward,
        backward_input,
        backward_weight,
        transfer,
    })
}

/// Message order: transfers with one tag between two ranks are in the same order at both ends.
fn check_tags(schedule: &PipelineSchedule) -> Result<(), TestCaseError> {
    for (rank, actions) in schedule.ranks.iter().enumerate() {
        for send in actions.iter().filter(|action| action.is_send()) {
            let (direction, message) = send.message().unwrap();
            let order = |list: &[Action], is_send: bool, peer: usize| -> Vec<usize> {
                list.iter()
                    .filter(|action| action.is_send() == is_send)
                    .filter_map(Action::message)
                    .filter(|(d, m)| m.peer == peer && m.tag(*d) == message.tag(direction))
                    .map(|(_, m)| m.microbatch)
                    .collect()
            };
            let sent = order(actions, true, message.peer);
            let received = order(&schedule.ranks[message.peer], false, rank);
            prop_assert_eq!(sent, received);
        }
    }
    Ok(())
}

/// Checks that backward follows each forward on the chunk with the loss, or, under GPipe, does not.
/// Interleaved schedules are not checked.
fn check_backward_after_loss(schedule: &PipelineSchedule) -> Result<(), TestCaseError> {
    let shape = schedule.shape;
    let last = shape.num_chunks - 1;
    let of_loss = schedule.ranks[shape.num_stages - 1].iter().filter_map(|action| match *action {
        Action::Forward { microbatch, chunk } if chunk == last => Some((true, microbatch)),
        Action::Backward { microbatch, chunk } | Action::BackwardInput { microbatch, chunk } if chunk == last => {
            Some((false, microbatch))
        }
        _ => None,
    });
    let of_loss: Vec<(bool, usize)> = of_loss.collect();
    let follows = of_loss.chunks(2).all(|pair| matches!(*pair, [(true, f), (false, b)] if f == b));
    if schedule.kind.backward_follows_loss() {
        prop_assert!(follows, "{}: {:?}", schedule.kind, of_loss);
    } else if schedule.kind == ScheduleKind::GPipe && shape.num_microbatches > 1 {
        prop_assert!(!follows, "{}: {:?}", schedule.kind, of_loss);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_chunk_schedules_never_deadlock_and_stay_in_memory(
        stages in 1usize..9,
        microbatches in 1usize..20,
        costs in costs(),
    ) {
        let size = shape(stages, 1, microbatches);
        let kinds = [
            ScheduleKind::GPipe, ScheduleKind::OneForwardOneBackward, ScheduleKind::ZeroBubbleH1, ScheduleKind::ForwardOnly,
        ];
        for kind in kinds {
            let schedule = PipelineSchedule::new(kind, size).unwrap();
            check_tags(&schedule)?;
            check_backward_after_loss(&schedule)?;
            for sends in [Sends::Rendezvous, Sends::Buffered { capacity: 1 }, ENDLESS] {
                if kind == ScheduleKind::ZeroBubbleH1 && sends == Sends::Rendezvous {
                    continue;
                }
                let report = simulate(&schedule, costs, sends);
                prop_assert!(report.is_ok(), "{} {:?} {:?}: {:?}", kind, size, sends, report);
                let report = report.unwrap();
                let train = costs.forward + costs.backward_input + costs.backward_weight;
                let each = if kind == ScheduleKind::ForwardOnly { costs.forward } else { train };
                prop_assert!(report.busy.iter().all(|busy| *busy == each * microbatches as u64));
                for rank in 0..stages {
                    let bound = match kind {
                        ScheduleKind::GPipe => microbatches,
                        ScheduleKind::OneForwardOneBackward => (stages - rank).min(microbatches),
                        ScheduleKind::ZeroBubbleH1 => stages.min(microbatches),
                        _ => 0,
                    };
                    prop_assert_eq!(report.max_in_flight[rank], bound, "{} rank {}", kind, rank);
                }
            }
        }
    }

    #[test]
    fn interleaved_schedules_never_deadlock_and_stay_in_memory(
        stages in 1usize..6,
        chunks in 1usize..5,
        (groups, extra, rest) in (1usize..4, 0usize..3, 0usize..8),
        costs in costs(),
    ) {
        let group = stages + extra;
        // A remainder of 0, or from `stages` to `group - 1`.
        let rest = if rest >= stages && rest < group { rest } else { 0 };
        let size = shape(stages, chunks, groups * group + rest);
        let kind = ScheduleKind::Interleaved { microbatch_group_size: group };
        let schedule = PipelineSchedule::new(kind, size).unwrap();
        check_tags(&schedule)?;
        let report = simulate(&schedule, costs, ENDLESS);
        prop_assert!(report.is_ok(), "{:?}: {:?}", size, report);
        let report = report.unwrap();
        for rank in 0..stages {
            let total = chunks * size.num_microbatches;
            let bound = (warmup_microbatches(kind, size, rank) + 1).min(total);
            prop_assert_eq!(report.max_in_flight[rank], bound);
        }
        // A buffer for the largest number of messages in flight suffices.
        let enough = Sends::Buffered { capacity: report.max_buffered.max(1) };
        prop_assert_eq!(simulate(&schedule, costs, enough).unwrap().busy, report.busy);
    }

    #[test]
    fn forward_only_with_chunks_never_deadlocks(
        stages in 1usize..6, chunks in 1usize..5, microbatches in 1usize..12, costs in costs(),
    ) {
        let schedule = PipelineSchedule::new(ScheduleKind::ForwardOnly, shape(stages, chunks, microbatches)).unwrap();
        check_tags(&schedule)?;
        prop_assert!(simulate(&schedule, costs, ENDLESS).is_ok());
    }
}
