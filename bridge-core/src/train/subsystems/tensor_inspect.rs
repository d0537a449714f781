//! Statistics of tensors (`[tensor_inspect]`) as figures of the steps at which they are due. All
//! ranks put theirs together.

use crate::config::{FinalTensorInspect, RunConfig};
use crate::inspect::{Gathered, Statistic, TensorKind, of_all};
use crate::logging::Figure;
use crate::train::engine::residual_stream::numbers;
use crate::train::ranks::agreement;
use crate::train::reporting::report::StepReport;
use crate::train::subsystems::contract::{RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

pub(super) struct TensorInspect(FinalTensorInspect);

impl TensorInspect {
    /// The subsystem, if the recipe asks for statistics.
    pub fn new(config: &RunConfig) -> Option<Self> {
        config.tensor_inspect.clone().map(Self)
    }
}

impl Subsystem for TensorInspect {
    fn name(&self) -> &str {
        "tensor statistics"
    }

    fn before_step(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        let step = run.state.train_state.step + 1 + self.0.init_training_step;
        // Ranks of a tensor-parallel group hold the same stream, or parts of it.
        let is_counted = run.state.config.model.sequence_parallel || run.groups.tensor().rank() == 0;
        run.training.inspector.begin(self.0.rules.iter().filter(|rule| rule.is_due(step)), is_counted);
        Ok(())
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        if !run.training.inspector.is_on() {
            return Ok(());
        }
        if run.training.inspector.wants(TensorKind::Weight) {
            run.training.wait_for_parameters()?;
            let (training, inspector) = (&run.training, &run.training.inspector);
            training.optimizer.visit_counted(&training.chunks, &mut |name, part| {
                inspector.add(name, TensorKind::Weight, || numbers(part));
            });
        }
        let mine = run.training.inspector.end();
        let all = of_all(agreement::gather(run.groups.world(), &mine)?);
        step.figures.extend(all.iter().flat_map(figures));
        Ok(())
    }
}

/// A figure for each statistic that is wanted.
fn figures(of: &Gathered) -> impl Iterator<Item = Figure> {
    let figure = |statistic: &Statistic| {
        let name = statistic.name();
        let figure = match statistic {
            Statistic::Histogram => {
                Figure::new("tensor_histogram", "", "Counts of magnitudes by power of two", of.statistics.histogram())
            }
            _ => Figure::new(
                format!("tensor_{}", name.trim_end_matches('%')),
                if name.ends_with('%') { "percent" } else { "" },
                "Statistic of a tensor",
                of.statistics.get(*statistic),
            )
            .board_of_steps(format!("{}_{}_{name}", of.name.trim_end_matches(".weight"), of.kind.name())),
        };
        figure.label("tensor", of.name.clone()).label("kind", of.kind.name())
    };
    of.wanted.iter().map(figure)
}
