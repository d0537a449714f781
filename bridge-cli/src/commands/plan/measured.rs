//! `bridge plan --measure`: a short run of the planned layout, compared with the plan.

use std::ops::RangeInclusive;

use bridge_core::config::{RawConfig, World};
use bridge_core::plan::{Comparison, GradientOverlap, MemoryComparison, Plan, StageComparison, TrafficComparison};
use bridge_core::train::{Console, RunOptions, measure, measuring_recipe};
use bridge_models::registry;

use super::text::{Table, bytes, seconds};
use crate::failure::Failure;
use crate::output::line;

/// Runs a few steps of `recipe` as planned, on links of `link_gbps` gigabits per second, if given.
pub fn compare(recipe: &RawConfig, plan: &Plan, link_gbps: Option<f64>) -> Result<Comparison, Failure> {
    let folder = tempfile::tempdir().map_err(Failure::run)?;
    let short = measuring_recipe(recipe, plan.batch.padded_vocab_size as usize, link_gbps, folder.path());
    let config = short.finalize(&World { size: plan.layout.world_size })?;
    // Asked once here, so that each rank may expect an answer.
    registry().models.adapt_as(recipe.peft.as_ref(), &config.model).map_err(Failure::input)?;
    let options = |groups| {
        let mut registry = registry();
        registry.models.adapt_as(recipe.peft.as_ref(), &config.model).expect("it was made before");
        RunOptions { groups, console: Console::Silent, ..RunOptions::new(registry) }
    };
    let ranks = measure(&config, link_gbps, options)?;
    Ok(plan.compare(&ranks, link_gbps))
}

/// Prints a comparison.
pub fn print(comparison: &Comparison) {
    line("");
    line("measured on threads, one step (of ranks that differ, the least and the most):");
    let mut table = Table::new(&["stage", "what", "operation", "times", "planned", "measured", ""]);
    for stage in &comparison.stages {
        table.rows.extend(stage.traffic.iter().map(|traffic| traffic_row(stage, traffic)));
        let memory = [("parameters", &stage.parameters), ("optimizer", &stage.optimizer)];
        table.rows.extend(memory.map(|(what, memory)| memory_row(stage, what, memory)));
        let host = &stage.host_optimizer;
        if host.planned > 0 || host.measured.iter().any(|bytes| *bytes > 0) {
            table.rows.push(memory_row(stage, "optimizer, host", host));
        }
    }
    table.print();
    print_overlap(&comparison.gradient_overlap);
    line(if comparison.matches { "the run does what was planned" } else { "the run does something else" });
}

fn print_overlap(stages: &[GradientOverlap]) {
    if stages.is_empty() {
        return;
    }
    let mut table = Table::new(&["stage", "gradients on the link", "after backward", "hidden"]);
    table.rows.extend(stages.iter().map(|overlap| {
        let hidden = format!("{:.0}%", 100.0 * overlap.hidden);
        vec![overlap.stage.to_string(), seconds(overlap.link_seconds), seconds(overlap.exposed_seconds), hidden]
    }));
    table.print();
}

fn traffic_row(stage: &StageComparison, traffic: &TrafficComparison) -> Vec<String> {
    let times = traffic.measured.iter().map(|amount| amount.operations);
    let payload = traffic.measured.iter().map(|amount| amount.bytes);
    let is_summed = traffic.matches && traffic.measured.iter().any(|amount| *amount != traffic.planned);
    vec![
        stage.stage.to_string(),
        traffic.group.clone(),
        traffic.operation.to_string(),
        range(times, |count| count.to_string()),
        bytes(traffic.planned.bytes),
        range(payload, bytes),
        if is_summed { "equal in sum".into() } else { verdict(traffic.matches) },
    ]
}

fn memory_row(stage: &StageComparison, what: &str, memory: &MemoryComparison) -> Vec<String> {
    let held = range(memory.measured.iter().copied(), bytes);
    let cells = [what, "held", "-", &bytes(memory.planned), &held, &verdict(memory.matches)].map(str::to_owned);
    [stage.stage.to_string()].into_iter().chain(cells).collect()
}

fn verdict(matches: bool) -> String {
    (if matches { "" } else { "DIFFERS" }).into()
}

/// One value if all are equal.
fn range(values: impl Iterator<Item = u64>, show: impl Fn(u64) -> String) -> String {
    let extremes = values.fold(None, |range: Option<RangeInclusive<u64>>, value| match range {
        None => Some(value..=value),
        Some(range) => Some(value.min(*range.start())..=value.max(*range.end())),
    });
    match extremes {
        None => "-".into(),
        Some(range) if range.start() == range.end() => show(*range.start()),
        Some(range) => format!("{}..{}", show(*range.start()), show(*range.end())),
    }
}
