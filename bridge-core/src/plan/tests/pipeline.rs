//! Bubbles and micro-batches in flight, against the simulator.

use bridge_dist::schedule::{
    Action, Costs, InterleavedWarmup, PipelineSchedule, PipelineShape, ScheduleKind, Sends, simulate,
};

use super::super::BubbleSource;
use super::super::pipeline::{activation_peaks, bubble};
use super::super::setup::Setup;
use super::{TINY, config, tiny};

const SHAPE: [&str; 2] = ["model.num_layers=8", "train.global_batch_size=32"];

fn interleaved(group: usize) -> ScheduleKind {
    ScheduleKind::Interleaved { microbatch_group_size: group, warmup: InterleavedWarmup::Minimal }
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

#[test]
fn a_plan_has_the_schedule_of_its_recipe() {
    let stages = [&SHAPE[..], &["model.pipeline_model_parallel_size=4"]].concat();
    let plain = tiny(4, &stages).pipeline;
    assert_eq!((plain.schedule.as_str(), plain.bubble_source), ("1F1B", BubbleSource::Simulation));
    assert_eq!(plain.max_in_flight, [4, 3, 2, 1]);
    assert!((plain.bubble_fraction - 3.0 / 19.0).abs() < 1e-12, "{plain:?}");
    let virtual_stages = [&stages[..], &["model.virtual_pipeline_model_parallel_size=2"]].concat();
    let interleaved = tiny(4, &virtual_stages).pipeline;
    assert_eq!(interleaved.schedule, "interleaved 1F1B (groups of 4)");
    assert!((interleaved.bubble_fraction - 3.0 / 35.0).abs() < 1e-12, "{interleaved:?}");
    let all = tiny(4, &[&stages[..], &["model.pipeline_schedule=gpipe"]].concat()).pipeline;
    assert_eq!(all.max_in_flight, [16; 4]);
}

#[test]
fn long_schedules_have_the_formula_and_the_same_peaks() {
    let stages = ["model.num_layers=8", "model.pipeline_model_parallel_size=4", "train.global_batch_size=200000"];
    let long = tiny(4, &stages);
    assert_eq!(long.pipeline.bubble_source, BubbleSource::Formula);
    assert_eq!(long.pipeline.max_in_flight, [4, 3, 2, 1]);
    let short = tiny(4, &[&SHAPE[..], &stages[1..2]].concat());
    let peaks = |plan: &super::Plan| plan.stages.iter().map(|stage| stage.memory.activations).collect::<Vec<_>>();
    assert_eq!(peaks(&long), peaks(&short));
}

/// The peak by the whole list, however long.
#[test]
fn activations_peak_as_the_action_lists_say() {
    let base = [&SHAPE[..], &["model.pipeline_model_parallel_size=2", "train.global_batch_size=96"]].concat();
    let chunks = [&base[..], &["model.virtual_pipeline_model_parallel_size=2"]].concat();
    let of = |schedule: &'static str| [&base[..], &[schedule]].concat();
    for overrides in [&base, &of("model.pipeline_schedule=zb_h1"), &of("model.pipeline_schedule=gpipe"), &chunks] {
        let config = config(TINY, 2, overrides);
        let setup = Setup::new(&config).unwrap();
        let lists = PipelineSchedule::new(setup.schedule, setup.shape).unwrap();
        let expected: Vec<u64> = lists
            .ranks
            .iter()
            .enumerate()
            .map(|(stage, actions)| {
                let of_chunk = |chunk| super::super::activations::of_chunk(&setup, chunk);
                let chunks: Vec<_> = setup.stages[stage].iter().map(of_chunk).collect();
                let mut held = 0;
                let steps = actions.iter().map(|action| {
                    match action {
                        Action::Forward { chunk, .. } => held += chunks[*chunk].kept,
                        Action::Backward { chunk, .. } => held -= chunks[*chunk].kept,
                        Action::BackwardInput { chunk, .. } => {
                            held = held + chunks[*chunk].put_off - chunks[*chunk].kept;
                        }
                        Action::BackwardWeight { chunk, .. } => held -= chunks[*chunk].put_off,
                        _ => {}
                    }
                    held
                });
                steps.max().unwrap()
            })
            .collect();
        assert_eq!(activation_peaks(&setup).unwrap(), expected, "{}", setup.schedule);
    }
}
