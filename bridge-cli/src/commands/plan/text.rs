//! Plans as text: one plan in full, or several side by side.

use bridge_core::model::{Component, TrafficKind};
use bridge_core::plan::{Estimate, Memory, Plan, StagePlan, Traffic};

use super::room::{Room, most_on_host};
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
    let parts = Component::ALL.into_iter().map(|kind| (kind.name(), plan.parameters.get(kind) as f64));
    let (names, counts): (Vec<&str>, Vec<f64>) = parts.filter(|(_, count)| *count > 0.0).unzip();
    let parts = names.into_iter().zip(THOUSANDS.adding(&counts)).map(|(name, count)| format!("{name} {count}"));
    let parts: Vec<String> = parts.collect();
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
        let mut row =
            vec![stage.stage.to_string(), stage.num_layers.to_string(), number(stage.parameters.total as f64)];
        row.extend(BYTES.adding(&columns(&stage.memory)));
        row.push(bytes(stage.memory.total));
        table.rows.push(row);
    }
    line("");
    line("a rank of each pipeline stage:");
    table.print();
    for stage in plan.stages.iter().filter(|stage| stage.memory.host_optimizer > 0) {
        let (stage, host) = (stage.stage, bytes(stage.memory.host_optimizer));
        line(&format!("a rank of stage {stage} has {host} of optimizer state in host memory besides"));
    }
    let on_host = plan.stages.iter().map(|stage| stage.host_activations).max().unwrap_or(0);
    if on_host > 0 {
        line(&format!("in host memory besides: activations, up to {} for each rank", bytes(on_host)));
    }
}

/// Weights, gradients, optimizer state, activations, and working memory of backward: together all
/// memory.
fn columns(memory: &Memory) -> [f64; 5] {
    let kept = memory.parameters + memory.gradients + memory.optimizer + memory.activations;
    let columns = [memory.parameters, memory.gradients, memory.optimizer, memory.activations, memory.total - kept];
    columns.map(|bytes| bytes as f64)
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

/// Parts of the time of a step.
pub fn time_parts(estimate: &Estimate) -> [(&'static str, f64); 5] {
    [
        ("computing", estimate.compute_seconds),
        ("waiting for ranks that share the model", estimate.exposed_seconds),
        ("pipeline bubble", estimate.bubble_seconds),
        ("updating", estimate.update_seconds),
        ("replicas", estimate.replica_seconds),
    ]
}

fn time(estimate: &Estimate) {
    let parts = time_parts(estimate);
    let times = SECONDS.adding(&parts.map(|(_, time)| time));
    let parts: Vec<String> = parts.iter().zip(times).map(|((what, _), time)| format!("{what} {time}")).collect();
    line("");
    line(&format!("a step takes at least {}: {}", seconds(estimate.step_seconds), parts.join(", ")));
    line(&format!(
        "{} tokens per second, model FLOPs utilization {:.1}%",
        number(estimate.tokens_per_second),
        100.0 * estimate.model_flops_utilization
    ));
}

/// The compared figures, each for the rank with the maximum.
type Row = (&'static str, fn(&Plan) -> String);

const ROWS: [Row; 13] = [
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
    ("parameters a rank", |plan| number(plan.largest_stage().parameters.total as f64)),
    ("messages", |plan| busiest(plan).traffic.iter().map(|traffic| traffic.operations).sum::<u64>().to_string()),
    ("communication", |plan| bytes(busiest(plan).traffic.iter().map(|traffic| traffic.bytes).sum())),
    ("step", |plan| plan.estimate.map_or("-".into(), |estimate| seconds(estimate.step_seconds))),
    ("MFU", |plan| {
        plan.estimate.map_or("-".into(), |estimate| format!("{:.1}%", 100.0 * estimate.model_flops_utilization))
    }),
];

/// The stage whose ranks communicate most.
fn busiest(plan: &Plan) -> &StagePlan {
    let bytes = |stage: &&StagePlan| stage.traffic.iter().map(|traffic| traffic.bytes).sum::<u64>();
    plan.stages.iter().max_by_key(bytes).unwrap_or_else(|| plan.largest_stage())
}

/// Prints plans side by side. Memory is that of the stage with most, communication that of the
/// stage with most, so that parts add up.
pub fn compare(plans: &[(&str, &Plan)], room: Option<&Room>) {
    let titles: Vec<&str> = [""].into_iter().chain(plans.iter().map(|(name, _)| *name)).collect();
    let mut table = Table::new(&titles);
    let mut row =
        |name: &str, cells: Vec<String>| table.rows.push([name.to_owned()].into_iter().chain(cells).collect());
    for (name, cell) in ROWS {
        row(name, plans.iter().map(|(_, plan)| cell(plan)).collect());
        if name == "communication" {
            let of = |plan: &Plan| TrafficKind::ALL.map(|kind| busiest(plan).traffic_bytes(kind) as f64);
            let cells: Vec<_> = plans.iter().map(|(_, plan)| (of(plan), BYTES.adding(&of(plan)))).collect();
            for (index, kind) in TrafficKind::ALL.into_iter().enumerate() {
                if cells.iter().any(|(bytes, _)| bytes[index] > 0.0) {
                    row(&format!("  {}", kind.name()), cells.iter().map(|(_, cells)| cells[index].clone()).collect());
                }
            }
            row("memory", plans.iter().map(|(_, plan)| bytes(plan.most_memory())).collect());
            let cells: Vec<_> =
                plans.iter().map(|(_, plan)| BYTES.adding(&columns(&plan.largest_stage().memory))).collect();
            for (index, name) in ["weights", "gradients", "optimizer", "activations", "working"].into_iter().enumerate()
            {
                row(&format!("  {name}"), cells.iter().map(|cells| cells[index].clone()).collect());
            }
            if plans.iter().any(|(_, plan)| most_on_host(plan) > 0) {
                row("host memory", plans.iter().map(|(_, plan)| bytes(most_on_host(plan))).collect());
            }
            if let Some(room) = room {
                let fits = |plan: &Plan| if room.fits(plan) { "yes".into() } else { "no".into() };
                row("fits", plans.iter().map(|(_, plan)| fits(plan)).collect());
            }
        }
    }
    table.print();
}

/// Prints whether a plan fits.
pub fn print_room(plan: &Plan, room: &Room) {
    line("");
    line(&room.verdict(plan));
}

/// Table whose first column is aligned to the left, and all other columns to the right.
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

/// A kind of quantity: its units, the largest first, and the unit of quantities that are too small
/// for all of them.
struct Units<const N: usize> {
    units: [(f64, &'static str); N],
    none: &'static str,
}

const THOUSANDS: Units<4> = Units { units: [(1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " K")], none: "" };
const BYTES: Units<4> =
    Units { units: [(TEBI, " TiB"), (GIBI, " GiB"), (1024.0 * 1024.0, " MiB"), (1024.0, " KiB")], none: " B" };
const SECONDS: Units<3> = Units { units: [(1.0, " s"), (1e-3, " ms"), (1e-6, " us")], none: " s" };
const GIBI: f64 = 1024.0 * 1024.0 * 1024.0;
const TEBI: f64 = 1024.0 * GIBI;

impl<const N: usize> Units<N> {
    /// The unit of a quantity of this size; `None` below all of them.
    fn unit_for(&self, quantity: f64) -> Option<(f64, &'static str)> {
        self.units.into_iter().find(|(size, _)| quantity >= *size)
    }

    fn show(&self, quantity: f64) -> String {
        match self.unit_for(quantity) {
            Some((size, unit)) => format!("{:.2}{unit}", quantity / size),
            None => format!("{quantity:.0}{}", self.none),
        }
    }

    /// The parts of a sum in the unit of the sum, rounded so that they add up to the rounded sum.
    fn adding(&self, parts: &[f64]) -> Vec<String> {
        let sum = parts.iter().sum::<f64>();
        let Some((size, unit)) = self.unit_for(sum) else {
            return parts.iter().map(|part| self.show(*part)).collect();
        };
        let hundredths: Vec<f64> = parts.iter().map(|part| 100.0 * part / size).collect();
        let mut rounded: Vec<f64> = hundredths.iter().map(|part| part.floor()).collect();
        let missing = ((100.0 * sum / size).round() - rounded.iter().sum::<f64>()) as usize;
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by(|a, b| hundredths[*b].fract().total_cmp(&hundredths[*a].fract()));
        order.into_iter().take(missing).for_each(|part| rounded[part] += 1.0);
        let show = |(part, rounded): (&f64, f64)| match rounded {
            0.0 if *part > 0.0 => format!("<0.01{unit}"),
            _ => format!("{:.2}{unit}", rounded / 100.0),
        };
        parts.iter().zip(rounded).map(show).collect()
    }
}

/// A count with a unit of thousands: `405.85 B`.
pub fn number(count: f64) -> String {
    THOUSANDS.show(count)
}

/// Bytes in binary units.
pub fn bytes(count: u64) -> String {
    BYTES.show(count as f64)
}

/// A time with a unit of thousands: `13.80 ms`.
pub fn seconds(time: f64) -> String {
    if time < 1e-6 { "0 s".into() } else { SECONDS.show(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_rounded_to_what_their_sum_is() {
        let hundredths = |text: &str| text.split(' ').next().unwrap().replace('.', "").parse::<u64>().unwrap();
        let mut state = 7_u64;
        for round in 0..1000 {
            let parts: Vec<f64> = (0..5)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 20 >> (round % 40)) as f64
                })
                .collect();
            let (shown, sum) = (BYTES.adding(&parts), BYTES.show(parts.iter().sum()));
            let parts: u64 = shown.iter().filter(|part| !part.starts_with('<')).map(|part| hundredths(part)).sum();
            assert_eq!(parts, hundredths(&sum), "{shown:?} and {sum}");
        }
        assert_eq!(THOUSANDS.adding(&[1e9, 1e6]), ["1.00 B", "<0.01 B"]);
        assert_eq!(SECONDS.adding(&[0.0, 0.0]), ["0 s", "0 s"]);
    }
}
