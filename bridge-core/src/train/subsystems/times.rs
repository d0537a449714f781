//! The timers of all ranks: figures and lines about each log interval, and about the time after the
//! last one.

use crate::config::{RunConfig, TimingLogOption};
use crate::logging::{Figure, RankTimers};
use crate::train::ranks::agreement;
use crate::train::reporting::report::{StepReport, TrainEnd, is_reported_every};
use crate::train::subsystems::contract::{LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

pub(super) struct Times {
    option: TimingLogOption,
    /// Steps since the last report.
    iterations: u64,
    /// Lines of the interval that the step ends.
    lines: Option<String>,
}

impl Times {
    pub fn new(config: &RunConfig) -> Self {
        Self { option: config.logger.timing_log_option, iterations: 0, lines: None }
    }

    /// The times of all ranks since the last call.
    fn take(run: &RunContext) -> Result<RankTimers, SubsystemError> {
        Ok(RankTimers::new(&agreement::gather(run.groups.world(), &run.timers.drain())?))
    }
}

/// Request with timer lines: a message if the recipe requests times, otherwise (times of saves and
/// evaluations) a detail.
fn told(run: &RunContext, lines: &str) -> LoopRequest {
    let is_asked = run.state.config.logger.timing_log_level > 0;
    let (request, lines) = (LoopRequest::default(), lines.trim_end());
    if is_asked { request.note(lines) } else { request.detail(lines) }
}

impl Subsystem for Times {
    fn name(&self) -> &str {
        "timers"
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        self.iterations += 1;
        let logger = &run.state.config.logger;
        if !is_reported_every(&run.state.config, logger.log_interval, step.iteration) {
            return Ok(());
        }
        let timers = Self::take(run)?;
        let iterations = std::mem::take(&mut self.iterations);
        if logger.log_timers_to_tensorboard {
            let figure = |(name, seconds): (String, f64)| {
                let figure = Figure::new("timer", "seconds", "Time of a part of a step", seconds);
                figure.label("name", name.clone()).board(name).of_interval()
            };
            step.figures.extend(timers.metrics(self.option, iterations).into_iter().map(figure));
        }
        self.lines = timers.format(self.option, iterations);
        Ok(())
    }

    fn after_step(&mut self, run: &mut RunContext, _step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        Ok(self.lines.take().map_or_else(LoopRequest::default, |lines| told(run, &lines)))
    }

    /// Reports the times since the last report, such as the time of the last save.
    fn on_run_end(&mut self, run: &mut RunContext, end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        if end.is_ok()
            && !run.state.config.logger.skip_train_metrics_log
            && let Some(lines) = Self::take(run)?.format(self.option, self.iterations)
        {
            run.tell(&told(run, &lines));
        }
        Ok(())
    }
}
