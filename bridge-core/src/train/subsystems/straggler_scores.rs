//! Scores of ranks by the time that they need for a step, and what follows where one is too slow
//! (`[nvrx_straggler]`).

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use serde_json::{Map, Value};

use super::own_time::OwnTime;
use crate::config::NvrxStragglerDetectionConfig;
use crate::logging::health::{RankScore, RankScores};
use crate::resilience::rerun::Placement;
use crate::resilience::stragglers::{Past, RankTimes, RankWindow, Scores, Suspects, Thresholds, scores};
use crate::train::ranks::agreement;
use crate::train::reporting::report::{StepReport, TrainEnd};
use crate::train::subsystems::contract::{LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

/// Steps that a window has at least: single ones may take long for many reasons.
const FEWEST_STEPS: usize = 16;
/// The same for the window that the end of the run cuts short.
const FEWEST_STEPS_AT_END: usize = 8;

pub(super) struct StragglerScores {
    settings: NvrxStragglerDetectionConfig,
    placement: Placement,
    clock: OwnTime,
    steps: Vec<RankTimes>,
    past: Past,
    suspects: Suspects,
    /// When the window began.
    began: Instant,
    /// Iterations since then, and how many more until ranks look whether its time is over.
    iterations: u64,
    until_look: u64,
    /// Micro-batches of the last step.
    num_microbatches: u64,
    /// Request of the step.
    request: LoopRequest,
}

impl StragglerScores {
    pub fn new(settings: &NvrxStragglerDetectionConfig, placement: Placement) -> Self {
        Self {
            settings: settings.clone(),
            placement,
            clock: OwnTime::default(),
            steps: Vec::new(),
            past: Past::default(),
            suspects: Suspects::default(),
            began: Instant::now(),
            iterations: 0,
            until_look: 1,
            num_microbatches: 0,
            request: LoopRequest::default(),
        }
    }

    /// Counts an iteration, and returns true if the window is over. All ranks call this together
    /// and get the same result.
    fn window_is_over(&mut self, run: &RunContext) -> Result<bool, SubsystemError> {
        self.iterations += 1;
        self.until_look = self.until_look.saturating_sub(1);
        if self.until_look > 0 {
            return Ok(false);
        }
        let mut elapsed = [self.began.elapsed().as_secs_f64()];
        agreement::max(run.groups.world(), &mut elapsed)?;
        let left = self.settings.report_time_interval - elapsed[0];
        if left <= 0.0 && self.steps.len() >= FEWEST_STEPS {
            return Ok(true);
        }
        let pace = (elapsed[0] / self.iterations as f64).max(1e-6);
        let missing = FEWEST_STEPS.saturating_sub(self.steps.len()) * self.settings.profiling_interval;
        self.until_look = ((left / pace).ceil() as u64).max(missing as u64).max(1);
        Ok(false)
    }

    /// Writes the scores for those who look at the run. A disk that is full ends no run.
    fn tell(&self, run: &RunContext, windows: &[RankWindow], slow: &BTreeSet<usize>) {
        let scores = scores_of(run.state.train_state.step, windows, slow);
        if let Err(error) = scores.write(&run.state.config.logger.log_dir) {
            run.warn(&format!("the scores of ranks cannot be written: {error}"));
        }
    }

    /// Judges the window, which ends. All ranks call this together.
    fn judge(&mut self, run: &RunContext) -> Result<(), SubsystemError> {
        let steps = std::mem::take(&mut self.steps);
        (self.began, self.iterations, self.until_look) = (Instant::now(), 0, 1);
        let times = RankTimes::undisturbed(&steps).unwrap_or_default();
        let usual = self.past.usual_before(times.own(), self.num_microbatches);
        let mine = RankWindow { place: self.placement.clone(), stage: run.groups.pipeline().rank(), times, usual };
        let windows = agreement::gather(run.groups.world(), &mine)?;
        let settings = &self.settings;
        let thresholds = Thresholds {
            relative: settings.calc_relative_gpu_perf.then_some(settings.gpu_relative_perf_threshold),
            individual: settings.calc_individual_gpu_perf.then_some(settings.gpu_individual_perf_threshold),
            num_told: settings.num_gpu_perf_scores_to_print,
        };
        let report = thresholds.judge(&windows, steps.len(), &mut self.suspects);
        if agreement::is_first(run.groups) {
            self.tell(run, &windows, &report.slow);
        }
        if settings.stop_if_detected
            && let Some(first) = report.stragglers.first()
        {
            self.request.exit = Some((0, first.clone()));
        }
        if settings.enable_logging {
            self.request.notes.extend(report.lines.into_iter().chain(report.stragglers));
        }
        Ok(())
    }
}

/// Scores of the ranks in a file for other programs.
fn scores_of(iteration: u64, windows: &[RankWindow], slow: &BTreeSet<usize>) -> RankScores {
    let of_rank = |(rank, (window, scores)): (usize, (&RankWindow, Scores))| RankScore {
        rank,
        node: window.place.node.clone(),
        relative: scores.relative,
        individual: scores.individual,
        times: [window.times.compute, window.times.data, window.times.communication],
        is_slow: slow.contains(&rank),
    };
    RankScores { iteration, ranks: windows.iter().zip(scores(windows)).enumerate().map(of_rank).collect() }
}

impl Subsystem for StragglerScores {
    fn name(&self) -> &str {
        "straggler scores"
    }

    fn measure(&mut self, run: &mut RunContext, step: &mut StepReport) -> Result<(), SubsystemError> {
        let times = self.clock.end_iteration(run.groups, step);
        self.num_microbatches = step.num_microbatches;
        let is_sampled = step.iteration.is_multiple_of(self.settings.profiling_interval as u64);
        self.steps.extend(times.filter(|_| is_sampled));
        if self.window_is_over(run)? { self.judge(run) } else { Ok(()) }
    }

    fn after_step(&mut self, run: &mut RunContext, _step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        self.clock.start(run.groups);
        Ok(std::mem::take(&mut self.request))
    }

    fn on_save(&mut self, run: &mut RunContext, _state: &mut Map<String, Value>) -> Result<(), SubsystemError> {
        self.clock.pause(run.groups);
        Ok(())
    }

    fn after_save(&mut self, run: &mut RunContext, _folder: &Path) -> Result<(), SubsystemError> {
        self.clock.resume(run.groups);
        Ok(())
    }

    /// Tells of the window that the end cut short.
    fn on_run_end(&mut self, run: &mut RunContext, end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        if end.is_ok() && self.steps.len() >= FEWEST_STEPS_AT_END {
            self.judge(run)?;
            run.tell(&std::mem::take(&mut self.request));
        }
        Ok(())
    }
}
