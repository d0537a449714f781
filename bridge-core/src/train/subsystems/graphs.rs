//! Figures of graphs in a step (`model.cuda_graph_impl`), on the first rank.

use crate::logging::Figure;
use crate::train::reporting::report::StepReport;
use crate::train::subsystems::contract::{RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

/// Counts of each step.
pub(super) struct Replays;

impl Subsystem for Replays {
    fn name(&self) -> &str {
        "graphs of micro-batches"
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        let Some(graphs) = &mut run.training.graphs else { return Ok(()) };
        let counts = graphs.take_counts();
        if counts.recorded > 0 {
            let text = "model.cuda_graph_impl: forward and backward of a micro-batch are recorded as a graph";
            run.reporter.note(text);
        }
        let figures = [
            ("recorded_graphs", "Graphs recorded in a step", counts.recorded),
            ("replayed_micro_batches", "Micro-batches of a step that a graph replayed", counts.replayed),
            ("launched_micro_batches", "Micro-batches of a step that were launched without a graph", counts.launched),
        ];
        let figure = |(name, help, count)| Figure::new(name, "", help, count as f64).file();
        step.figures.extend(figures.map(figure));
        Ok(())
    }
}
