//! Plans as text: one plan in full, or several side by side.

use bridge_core::model::{Component, TrafficKind};
use bridge_core::plan::{Estimate, Plan, StagePlan, Traffic};

use crate::output::line;

/// Prints one plan.
pub fn print(name: &str, plan: &Plan) {
    header(name, plan);
    stages(plan);
    let busiest = plan.stages.iter().max_by_key(|stage| stage.traffic.iter().map(|traffic| traffic.bytes).sum::<u64>());
    if let Some(stage) = busiest.filter(|stage| !stage.traffic.is_empty()) {
        traffic(stage);
    }
    if let Some(estimate) = &plan.estimate {
        time(estimate);
    }
}

fn header(name: &str, plan: &Plan) {
    let layout = &plan.layout;
    let mut sizes = format!(
        "tensor {} x context {} x data {} x pipeline {}",
        layout.tensor, layout.context, layout.data, layout.pipeline
    );
    if layout.virtual_pipeline > 1 {
        sizes += &format!(" ({} chunks a stage)", layout.virtual_pipeline);
    }
    if layout.expert > 1 || layout.expert_tensor != layout.tensor {
        let (expert, tensor, data) = (layout.expert, layout.expert_tensor, layout.expert_data);
        sizes += &format!("; experts: parallel {expert} x tensor {tensor} x data {data}");
    }
    if layout.sequence_parallel {
        sizes += "; sequence parallel";
    }
    let ranks = if layout.world_size == 1 { "rank" } else { "ranks" };
    line(&format!("{name} on {} {ranks}: {sizes}", layout.world_size));
    let parts = Component::ALL.into_iter().map(|kind| (kind.name(), plan.parameters.get(kind)));
    let parts: Vec<String> =
        parts.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {}", number(count as f64))).collect();
    line(&format!("parameters  {} ({})", number(plan.parameters.total as f64), parts.join(", ")));
    if plan.active_parameters != plan.parameters.total {
        line(&format!("active      {} for a token", number(plan.active_parameters as f64)));
    }
    let batch = &plan.batch;
    line(&format!(
        "batch       {} x {} tokens = {}: {} micro-batches of {} on each replica; vocabulary {}",
        batch.global_batch_size,
        batch.seq_length,
        number(batch.tokens as f64),
        batch.num_microbatches,
        batch.micro_batch_size,
        batch.padded_vocab_size
    ));
    let repeated = plan.flops.per_step_with_recompute / plan.flops.per_step - 1.0;
    let repeated =
        if repeated > 1e-6 { format!(", {:.1}% more with recompute", 100.0 * repeated) } else { String::new() };
    line(&format!("FLOPs       {:.4e} a token, {:.4e} a step{repeated}", plan.flops.per_token, plan.flops.per_step));
    if plan.layout.pipeline > 1 {
        line(&format!("pipeline    {}, bubble {:.1}%", plan.pipeline.schedule, 100.0 * plan.pipeline.bubble_fraction));
    }
}

fn stages(plan: &Plan) {
    let mut table = Table::new(&[
        "stage",
        "layers",
        "parameters",
        "weights",
        "gradients",
        "optimizer",
        "activations",
        "working",
        "memory",
    ]);
    for stage in &plan.stages {
        let memory = &stage.memory;
        let working = memory.recompute + memory.backward + memory.gathered + memory.cross_entropy + memory.attention;
        let mut row =
            vec![stage.stage.to_string(), stage.num_layers.to_string(), number(stage.parameters.total as f64)];
        let parts = [memory.parameters, memory.gradients, memory.optimizer, memory.activations, working, memory.total];
        row.extend(parts.map(bytes));
        table.rows.push(row);
    }
    line("");
    line("a rank of each pipeline stage:");
    table.print();
}

fn traffic(stage: &StagePlan) {
    line("");
    line(&format!(
        "communication of a rank of stage {} in a step (payload; sent over wires by ring algorithms):",
        stage.stage
    ));
    let mut table = Table::new(&["for", "group", "operation", "times", "payload", "wire"]);
    for Traffic { kind, group, group_size, operation, operations, bytes: payload, wire_bytes } in &stage.traffic {
        let group = format!("{} ({group_size})", group.name());
        let row = [kind.name().into(), group, operation.to_string(), operations.to_string(), bytes(*payload)];
        table.rows.push(row.into_iter().chain([bytes(*wire_bytes as u64)]).collect());
    }
    table.print();
}

fn time(estimate: &Estimate) {
    line("");
    line(&format!(
        "a step takes at least {}: computing {}, waiting for ranks that share the model {}, pipeline bubble {}, replicas {}",
        seconds(estimate.step_seconds),
        seconds(estimate.compute_seconds),
        seconds(estimate.exposed_seconds),
        seconds(estimate.bubble_seconds),
        seconds(estimate.replica_seconds)
    ));
    line(&format!(
        "{} tokens per second, model FLOPs utilization {:.1}%",
        number(estimate.tokens_per_second),
        100.0 * estimate.model_flops_utilization
    ));
}

/// The compared figures, each for the rank with the maximum.
type Row = (&'static str, fn(&Plan) -> String);

const ROWS: [Row; 18] = [
    ("ranks", |plan| plan.layout.world_size.to_string()),
    ("tensor", |plan| {
        let sequence = if plan.layout.sequence_parallel { " + sequence" } else { "" };
        format!("{}{sequence}", plan.layout.tensor)
    }),
    ("context", |plan| plan.layout.context.to_string()),
    ("data", |plan| plan.layout.data.to_string()),
    ("pipeline x chunks", |plan| format!("{} x {}", plan.layout.pipeline, plan.layout.virtual_pipeline)),
    ("expert x tensor", |plan| format!("{} x {}", plan.layout.expert, plan.layout.expert_tensor)),
    ("micro-batches", |plan| format!("{} of {}", plan.batch.num_microbatches, plan.batch.micro_batch_size)),
    ("bubble", |plan| format!("{:.1}%", 100.0 * plan.pipeline.bubble_fraction)),
    ("parameters a rank", |plan| number(most(plan, |stage| stage.parameters.total) as f64)),
    ("memory", |plan| bytes(most(plan, |stage| stage.memory.total))),
    ("  weights", |plan| bytes(most(plan, |stage| stage.memory.parameters))),
    ("  gradients", |plan| bytes(most(plan, |stage| stage.memory.gradients))),
    ("  optimizer", |plan| bytes(most(plan, |stage| stage.memory.optimizer))),
    ("  activations", |plan| bytes(most(plan, |stage| stage.memory.activations))),
    ("communication", |plan| bytes(most(plan, |stage| stage.traffic.iter().map(|traffic| traffic.bytes).sum()))),
    ("  messages", |plan| most(plan, |stage| stage.traffic.iter().map(|traffic| traffic.operations).sum()).to_string()),
    ("step", |plan| plan.estimate.map_or("-".into(), |estimate| seconds(estimate.step_seconds))),
    ("MFU", |plan| {
        plan.estimate.map_or("-".into(), |estimate| format!("{:.1}%", 100.0 * estimate.model_flops_utilization))
    }),
];

fn most(plan: &Plan, of: impl Fn(&StagePlan) -> u64) -> u64 {
    plan.stages.iter().map(of).max().unwrap_or(0)
}

/// Prints plans side by side. Figures are those of the rank with the maximum.
pub fn compare(plans: &[(&str, &Plan)]) {
    let titles: Vec<&str> = [""].into_iter().chain(plans.iter().map(|(name, _)| *name)).collect();
    let mut table = Table::new(&titles);
    for (name, cell) in ROWS {
        table.rows.push([name.to_owned()].into_iter().chain(plans.iter().map(|(_, plan)| cell(plan))).collect());
    }
    for kind in TrafficKind::ALL {
        let of = |plan: &Plan| most(plan, |stage| stage.traffic_bytes(kind));
        if plans.iter().any(|(_, plan)| of(plan) > 0) {
            let cells = plans.iter().map(|(_, plan)| bytes(of(plan)));
            table.rows.insert(table.rows.len() - 3, [format!("  {}", kind.name())].into_iter().chain(cells).collect());
        }
    }
    table.print();
}

/// Aligned columns: the first to the left, the others to the right.
pub struct Table {
    /// The first has the titles.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of titles.
    pub fn new(titles: &[&str]) -> Self {
        Self { rows: vec![titles.iter().map(|title| (*title).to_owned()).collect()] }
    }

    /// Prints it.
    pub fn print(&self) {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut text = format!("{:<width$}", row[0], width = widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                text += &format!("  {cell:>width$}");
            }
            line(text.trim_end());
        }
    }
}

/// A count with a unit of thousands: `405.85 B`.
fn number(count: f64) -> String {
    let units = [(1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " K")];
    match units.into_iter().find(|(size, _)| count >= *size) {
        Some((size, unit)) => format!("{:.2}{unit}", count / size),
        None => format!("{count:.0}"),
    }
}

/// Bytes in binary units.
pub fn bytes(count: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(size, _)| count >= *size) {
        Some((size, unit)) => format!("{:.2} {unit}", count as f64 / size as f64),
        None => format!("{count} B"),
    }
}

/// A time with a unit of thousands: `13.80 ms`.
pub fn seconds(time: f64) -> String {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us")];
    match units.into_iter().find(|(size, _)| time >= *size) {
        Some((size, unit)) => format!("{:.2} {unit}", time / size),
        None => "0 s".into(),
    }
}
