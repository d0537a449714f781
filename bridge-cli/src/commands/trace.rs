//! `bridge trace`: merges the traces of ranks, and says where the time of a step goes, beside what
//! the plan has.

use std::path::{Path, PathBuf};

use bridge_core::config::{Format, RawConfig, World};
use bridge_core::logging::flight::{FlightRecord, Missing, missing};
use bridge_core::logging::runs::recipe_of;
use bridge_core::logging::trace::{FOLDER, Moved, Part, RankSummary, Trace, summarize};
use bridge_core::plan::{Plan, PlanOptions, plan};
use clap::Args;
use serde_json::{Value, json};

use super::plan::bytes;
use crate::failure::Failure;
use crate::output::{line, table};

/// Merge the traces of ranks, and say where the time of a step goes.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Traces of ranks, or a folder that has them: a run's log folder, or its `trace`.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// File for the merged trace, which Perfetto and Chrome open.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// The files are those of the flight recorder (`dist.flight_recorder_dump_path`): say which
    /// rank was in which operation, and which did not come.
    #[arg(long, conflicts_with = "output")]
    calls: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    if arguments.calls {
        return calls(arguments).map(|()| 0);
    }
    let mut files = Vec::new();
    for given in &arguments.files {
        files.extend(if given.is_dir() { in_folder(given)? } else { vec![given.clone()] });
    }
    let traces = files.iter().map(|file| Trace::read(file).map_err(Failure::input)).collect::<Result<Vec<_>, _>>()?;
    let trace = Trace::merge(traces).map_err(Failure::input)?;
    let ranks = summarize(&trace);
    let planned = files.first().and_then(|file| planned(file, trace.header.world_size));
    if let Some(output) = &arguments.output {
        trace.write(output).map_err(|error| Failure::run(format!("{}: {error}", output.display())))?;
    }
    let traffic = traffic(&ranks, planned.as_ref());
    if arguments.json {
        print_json(&ranks, planned.as_ref(), &traffic);
    } else {
        print_text(&ranks, planned.as_ref(), &traffic);
        if let Some(output) = &arguments.output {
            line(&format!("{} events of {} ranks: {}", trace.events.len(), ranks.len(), output.display()));
        }
    }
    Ok(0)
}

/// Prints the content of flight recorder files.
fn calls(arguments: &Arguments) -> Result<(), Failure> {
    let read = |path: &PathBuf| FlightRecord::read(path).map_err(Failure::input);
    let mut records = arguments.files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    records.sort_by_key(|record| record.rank);
    let missing = missing(&records);
    if arguments.json {
        let last = |record: &FlightRecord| json!({ "rank": record.rank, "why": record.why, "in": record.last_open() });
        let ranks: Vec<Value> = records.iter().map(last).collect();
        line(&json!({ "ranks": ranks, "missing": missing }).to_string());
        return Ok(());
    }
    for record in &records {
        let place = record.last_open().map_or("in no call".to_owned(), |call| {
            format!(
                "in {} number {} of `{}` (ranks {:?}), {} x {}, begun {:.1} s before",
                call.operation, call.sequence, call.group, call.ranks, call.elements, call.dtype, call.seconds_ago
            )
        });
        line(&format!("rank {} ({}): {place}: {}", record.rank, record.node, record.why));
    }
    for Missing { group, operation, sequence, waiting, missing } in missing {
        line(&format!(
            "{missing:?} did not come to {operation} number {sequence} of `{group}`, where {waiting:?} waited"
        ));
    }
    Ok(())
}

/// The traces of ranks in a run's log folder, or in its folder of traces.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let inner = folder.join(FOLDER);
    let folder = if inner.is_dir() { &inner } else { folder };
    let entries =
        std::fs::read_dir(folder).map_err(|error| Failure::input(format!("{}: {error}", folder.display())))?;
    let is_of_rank = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("rank_") && name.ends_with(".json")
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_of_rank).collect();
    files.sort();
    match files.is_empty() {
        true => Err(Failure::input(format!(
            "no trace in {}: a run with profiling.use_pytorch_profiler = true writes them",
            folder.display()
        ))),
        false => Ok(files),
    }
}

/// The plan of the run that wrote a trace, by the configuration in its log folder, if that is there
/// and its kind of model has plans.
fn planned(file: &Path, world_size: usize) -> Option<Plan> {
    let recipe = recipe_of(file.parent()?.parent()?)?;
    let registry = bridge_models::registry();
    let raw = RawConfig::from_text(&recipe, Format::Toml, &[], &registry.kinds()).ok()?;
    let config = raw.finalize(&World { size: world_size }).ok()?;
    plan(&config, &registry.models, &PlanOptions::default()).ok()
}

/// Traffic of one rank for one operation of one group, in a step.
struct Traffic {
    rank: usize,
    group: String,
    operation: String,
    measured: Moved,
    planned: Option<Moved>,
}

fn traffic(ranks: &[RankSummary], plan: Option<&Plan>) -> Vec<Traffic> {
    let of_rank = |summary: &RankSummary| {
        let steps = summary.steps.len().max(1) as u64;
        let stage = plan.and_then(|plan| plan.stages.get(summary.rank.stage));
        let of = |((group, operation), moved): (&(String, String), &Moved)| {
            let planned = stage.map(|stage| {
                let same = stage.traffic.iter().filter(|t| t.group.name() == group && t.operation.name() == operation);
                same.fold(Moved::default(), |sum, t| Moved {
                    operations: sum.operations + t.operations,
                    bytes: sum.bytes + t.bytes,
                })
            });
            let measured = Moved { operations: moved.operations / steps, bytes: moved.bytes / steps };
            Traffic { rank: summary.rank.rank, group: group.clone(), operation: operation.clone(), measured, planned }
        };
        summary.moved.iter().map(of).collect::<Vec<_>>()
    };
    ranks.iter().flat_map(of_rank).collect()
}

fn print_text(ranks: &[RankSummary], plan: Option<&Plan>, traffic: &[Traffic]) {
    let shown: Vec<Part> =
        Part::OF_STEPS.into_iter().filter(|part| ranks.iter().any(|rank| rank.part(*part) > 0.0)).collect();
    let mut rows = vec![["rank", "steps", "ms a step", "covered"].map(str::to_owned).to_vec()];
    rows[0].extend(shown.iter().map(Part::to_string));
    rows.extend(ranks.iter().map(|rank| {
        let seconds = rank.seconds();
        let mut row = vec![rank.rank.rank.to_string(), rank.steps.len().to_string()];
        row.extend([format!("{:.3}", seconds * 1e3), format!("{:.2}%", rank.coverage() * 100.0)]);
        row.extend(
            shown.iter().map(|part| format!("{:.1}%", 100.0 * rank.part(*part) / seconds.max(f64::MIN_POSITIVE))),
        );
        row
    }));
    table(&rows, &[99, 60, 98, 50]);
    if let Some(plan) = plan {
        let slowest = ranks.iter().map(RankSummary::seconds).fold(0.0, f64::max);
        let flops = plan.stages.iter().map(|stage| stage.flops).fold(0.0, f64::max);
        line(&format!(
            "plan: {:.4} TFLOP a rank and step at most, {:.4} TFLOP/s; a bubble of {:.1}% of the pipeline",
            flops / 1e12,
            flops / 1e12 / slowest.max(f64::MIN_POSITIVE),
            100.0 * plan.pipeline.bubble_fraction
        ));
    }
    if traffic.is_empty() {
        return;
    }
    let head = ["rank", "group", "operation", "calls a step", "planned", "bytes a step", "planned"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(traffic.iter().map(|row| {
        let planned = |of: fn(&Moved) -> String| row.planned.as_ref().map_or("-".to_owned(), of);
        vec![
            row.rank.to_string(),
            row.group.clone(),
            row.operation.clone(),
            row.measured.operations.to_string(),
            planned(|moved| moved.operations.to_string()),
            bytes(row.measured.bytes),
            planned(|moved| bytes(moved.bytes)),
        ]
    }));
    table(&rows, &[99, 98, 97, 50, 40, 90, 80]);
}

fn print_json(ranks: &[RankSummary], plan: Option<&Plan>, traffic: &[Traffic]) {
    let moved = |moved: &Moved| json!({ "operations": moved.operations, "bytes": moved.bytes });
    for rank in ranks {
        let seconds = |parts: &std::collections::BTreeMap<Part, f64>| -> Value {
            parts
                .iter()
                .map(|(part, seconds)| (part.to_string(), json!(seconds)))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let steps: Vec<Value> = rank
            .steps
            .iter()
            .map(|step| json!({ "iteration": step.iteration, "seconds": step.seconds, "parts": seconds(&step.parts), "uncovered": step.uncovered }))
            .collect();
        let of_rank = traffic.iter().filter(|row| row.rank == rank.rank.rank);
        let of_rank: Vec<Value> = of_rank
            .map(|row| json!({ "group": row.group, "operation": row.operation, "measured": moved(&row.measured), "planned": row.planned.as_ref().map(moved) }))
            .collect();
        let stage = plan.and_then(|plan| plan.stages.get(rank.rank.stage));
        line(
            &json!({
                "rank": rank.rank.rank, "stage": rank.rank.stage, "node": rank.rank.node, "seconds": rank.seconds(),
                "coverage": rank.coverage(), "steps": steps, "traffic": of_rank,
                "planned_flops": stage.map(|stage| stage.flops),
            })
            .to_string(),
        );
    }
}
