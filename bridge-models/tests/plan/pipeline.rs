//! Bubbles and micro-batches in flight.

use bridge_core::plan::{BubbleSource, Plan};

use super::tiny;

const SHAPE: [&str; 2] = ["model.num_layers=8", "train.global_batch_size=32"];

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
    let peaks = |plan: &Plan| plan.stages.iter().map(|stage| stage.memory.activations).collect::<Vec<_>>();
    assert_eq!(peaks(&long), peaks(&short));
}
