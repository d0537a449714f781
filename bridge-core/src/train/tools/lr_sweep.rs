//! The learning-rate finder: a short run whose learning rate grows from step to step until the loss
//! rises. Its results are a table, a plot and a suggested learning rate. The trained model is
//! discarded.
//!
//! After L. Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), section 3.3.

use std::fmt::Write as _;
use std::path::PathBuf;

use bridge_data::untrusted_io;
use serde::Serialize;

use crate::config::{
    CheckpointConfig, GenerateConfig, GptDatasetConfig, LoggerConfig, RawConfig, RunConfig, SchedulerConfig,
    TrainingConfig, ValidationConfig,
};
use crate::logging::chart::{Chart, PlotError, Series};
use crate::logging::curves::{Curve, smooth};
use crate::logging::numbers::significant;
use crate::schedule::LrDecayStyle;
use crate::train::engine::global_state::GlobalState;
use crate::train::error::CommonError;
use crate::train::reporting::report::{StepReport, TrainEnd};
use crate::train::subsystems::contract::{Agreement, LoopRequest, RunContext, Subsystem};
use crate::train::subsystems::error::SubsystemError;

/// Steps of a sweep.
const STEPS: usize = 100;
/// The learning rates of its first and its last step.
const RANGE: [f64; 2] = [1e-7, 10.0];
/// Factor over the lowest loss at which the sweep ends, because larger rates are useless.
const HOPELESS: f64 = 1.5;
/// Lines of the table.
const LINES: usize = 20;
/// The loss has to fall by this part of itself, or nothing is suggested.
const LEAST_FALL: f64 = 0.01;

/// The recipe of a sweep with the model, data, layout, batch and optimizer of `recipe`, which
/// `config` was made of: no evaluation, no checkpoint, logs in a folder of their own. It begins
/// with the weights that `recipe` names in `checkpoint.load` or `checkpoint.pretrained_checkpoint`,
/// if it names any.
pub fn sweeping_recipe(recipe: &RawConfig, config: &RunConfig) -> RawConfig {
    let mut short = recipe.clone();
    let (train, logger, checkpoint) = (&recipe.train, &recipe.logger, &recipe.checkpoint);
    short.name = Some(format!("{}-find-lr", config.name));
    short.train = TrainingConfig {
        micro_batch_size: train.micro_batch_size,
        global_batch_size: train.global_batch_size,
        decrease_batch_size_if_needed: train.decrease_batch_size_if_needed,
        num_threads: train.num_threads,
        train_iters: Some(STEPS),
        ..TrainingConfig::default()
    };
    short.validation = ValidationConfig { eval_iters: Some(0), ..ValidationConfig::default() };
    // A curve may need lengths, and some optimizers need a constant rate.
    short.scheduler = SchedulerConfig::default();
    if recipe.scheduler.lr_decay_style == LrDecayStyle::Constant {
        short.scheduler.lr_decay_style = LrDecayStyle::Constant;
    }
    short.optimizer.schedule_free_warmup_steps = 0;
    short.logger = LoggerConfig {
        log_dir: Some(config.logger.log_dir.join("find-lr")),
        log_interval: STEPS / 10,
        plot: false,
        progress: logger.progress,
        ..LoggerConfig::default()
    };
    short.checkpoint = CheckpointConfig {
        load: checkpoint.load.clone(),
        ckpt_step: checkpoint.ckpt_step,
        finetune: checkpoint.load.is_some(),
        pretrained_checkpoint: checkpoint.pretrained_checkpoint.clone(),
        ..CheckpointConfig::default()
    };
    short.generate = GenerateConfig::default();
    // The setting is about evaluations, and a sweep has none.
    short.dataset.config.data_sharding = GptDatasetConfig::default().data_sharding;
    // A sweep expects losses that are not finite.
    short.rerun_state_machine.check_for_nan_in_loss = false;
    short.rerun_state_machine.check_for_spiky_loss = false;
    short.ddp.check_for_nan_in_grad = false;
    short
}

/// One step of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Point {
    learning_rate: f64,
    loss: f64,
}

/// Result of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Finding {
    /// The learning rate to begin with; `None` where the loss never fell.
    suggestion: Option<f64>,
    /// Reason for the suggestion.
    reason: String,
    /// Learning rate and loss of all steps.
    points: Vec<Point>,
}

/// The sweep as a subsystem of a run of a [`sweeping_recipe`].
#[derive(Debug, Default)]
pub struct LearningRateSweep {
    points: Vec<Point>,
    /// The lowest loss.
    lowest: Option<f64>,
    /// Why no further step is worth its time.
    end: Option<String>,
}

/// The learning rate of step `index` of a sweep.
fn rate(index: usize) -> f64 {
    let [first, last] = RANGE;
    first * (last / first).powf(index as f64 / (STEPS - 1) as f64)
}

impl LearningRateSweep {
    /// Notes the loss of a step.
    fn note(&mut self, learning_rate: f64, loss: f64) {
        if !loss.is_finite() {
            self.end = Some(format!("the loss is {loss} at a learning rate of {}", significant(learning_rate, 3)));
            return;
        }
        self.points.push(Point { learning_rate, loss });
        let lowest = self.lowest.map_or(loss, |lowest| lowest.min(loss));
        self.lowest = Some(lowest);
        if loss > HOPELESS * lowest {
            let times = significant(loss / lowest, 2);
            self.end = Some(format!(
                "the loss is {times} times the lowest at a learning rate of {}",
                significant(learning_rate, 3)
            ));
        }
    }

    /// The losses over the decimal logarithm of the learning rate.
    fn curve(&self) -> Curve {
        self.points.iter().map(|point| (point.learning_rate.log10(), point.loss)).collect()
    }

    /// Finding of the sweep: the learning rate at which the smoothed loss falls fastest.
    fn finding(&self) -> Finding {
        let curve = smooth(&self.curve());
        let lowest = (0..curve.len()).min_by(|a, b| curve[*a].1.total_cmp(&curve[*b].1)).unwrap_or(0);
        let fall =
            |place: &usize| (curve[place + 1].1 - curve[place - 1].1) / (curve[place + 1].0 - curve[place - 1].0);
        let steepest = (1..lowest).min_by(|a, b| fall(a).total_cmp(&fall(b)));
        let (suggestion, reason) = match steepest {
            Some(place) if curve[0].1 - curve[lowest].1 > LEAST_FALL * curve[0].1.abs() => (
                Some(10f64.powf(curve[place].0)),
                format!(
                    "the smoothed loss falls fastest there, from {} at the start to {}; it is lowest, {}, at {}, and from \
                     there on it rises or stands still. With warm-up, up to about half of the latter may do",
                    significant(curve[0].1, 5),
                    significant(curve[place].1, 5),
                    significant(curve[lowest].1, 5),
                    significant(10f64.powf(curve[lowest].0), 3),
                ),
            ),
            Some(_) | None => {
                (None, format!("the loss does not fall at any learning rate from {} to {}", RANGE[0], RANGE[1]))
            }
        };
        Finding { suggestion, reason, points: self.points.clone() }
    }

    /// The finding as lines for people.
    fn table(finding: &Finding) -> String {
        let mut text = "learning rate      loss\n".to_owned();
        for point in finding.points.iter().step_by(finding.points.len().div_ceil(LINES).max(1)) {
            // Writing to a text does not fail.
            let _ = writeln!(text, "{:>13}  {:>8}", significant(point.learning_rate, 3), significant(point.loss, 5));
        }
        match finding.suggestion {
            Some(rate) => text += &format!("suggested: optimizer.lr={}\n{}", significant(rate, 2), finding.reason),
            None => text += &format!("no suggestion: {}", finding.reason),
        }
        text
    }

    /// Writes plot and figures next to the logs, and prints the result.
    fn report(&self, run: &RunContext) -> Result<(), SubsystemError> {
        if self.points.is_empty() {
            run.note("the learning-rate finder saw no finite loss");
            return Ok(());
        }
        let finding = self.finding();
        let stem: PathBuf = run.state.config.logger.log_dir.join("find-lr");
        let json = serde_json::to_vec_pretty(&finding).map_err(|error| CommonError::log("find-lr.json", error))?;
        untrusted_io::replace(&stem.with_extension("json"), &json)
            .map_err(|error| CommonError::log("find-lr.json", error))?;
        let written = match self.chart(&finding).write(&stem) {
            Ok(()) => format!("picture and figures: {}.svg, .png and .json; nothing else was changed", stem.display()),
            Err(error @ PlotError::NotCompiledIn) => {
                format!("figures: {}.json; nothing else was changed; {error}", stem.display())
            }
            Err(error) => return Err(CommonError::log("find-lr.svg", error).into()),
        };
        run.note(&Self::table(&finding));
        run.note(&written);
        Ok(())
    }

    fn chart(&self, finding: &Finding) -> Chart {
        let curve = self.curve();
        let series =
            |name: &str, points: Curve, colour, (line, dots)| Series { name: name.into(), points, colour, line, dots };
        let smoothed = smooth(&curve);
        let at = |rate: f64| smoothed.iter().copied().filter(|point| (point.0 - rate.log10()).abs() < 1e-9).collect();
        let mut all = vec![
            series("loss", curve.clone(), (168, 200, 231), (1, 0)),
            series("smoothed", smoothed.clone(), (31, 111, 190), (2, 0)),
        ];
        all.extend(finding.suggestion.map(|rate| series("suggested", at(rate), (221, 107, 32), (1, 6))));
        Chart {
            title: "learning-rate finder".into(),
            x: "learning rate",
            x_number: |x| format!("{:.0e}", 10f64.powf(x)),
            y: "loss",
            series: all,
        }
    }
}

impl Subsystem for LearningRateSweep {
    fn name(&self) -> &str {
        "learning-rate finder"
    }

    fn agreement(&self) -> Agreement {
        // Losses are the same on all ranks, and all have the sweep.
        Agreement::Symmetric
    }

    fn before_step(&mut self, run: &mut RunContext) -> Result<(), SubsystemError> {
        run.hold_learning_rate(rate(self.points.len()));
        Ok(())
    }

    fn after_step(&mut self, _run: &mut RunContext, step: &StepReport) -> Result<LoopRequest, SubsystemError> {
        if let Some(loss) = step.loss() {
            self.note(step.learning_rate, f64::from(loss));
        }
        Ok(LoopRequest::default())
    }

    fn stop_reason(&self, _state: &GlobalState) -> Option<String> {
        self.end.clone()
    }

    fn on_run_end(&mut self, run: &mut RunContext, end: TrainEnd<'_>) -> Result<(), SubsystemError> {
        if end.is_ok() && run.groups.world().rank() == 0 { self.report(run) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sweep of a loss that falls where the learning rate passes `good` and rises where it
    /// passes a hundred times that.
    fn sweep(good: f64, noise: f64) -> LearningRateSweep {
        let mut sweep = LearningRateSweep::default();
        for index in 0..STEPS {
            let x = (rate(index) / good).log10();
            let loss = 10.0 - 4.0 / (1.0 + (-4.0 * x).exp()) + (4.0 * (x - 2.0)).exp();
            sweep.note(rate(index), loss + noise * (index as f64 * 12.9898).sin());
            if sweep.end.is_some() {
                break;
            }
        }
        sweep
    }

    #[test]
    fn the_suggestion_is_where_the_loss_falls_fastest() {
        for good in [1e-5, 1e-3, 3e-2] {
            for noise in [0.0, 0.05] {
                let sweep = sweep(good, noise);
                let found = sweep.finding().suggestion.unwrap();
                assert!((0.3..3.0).contains(&(found / good)), "{found} for {good} with noise {noise}");
                assert!(sweep.end.is_some(), "what comes behind is hopeless");
            }
        }
    }

    #[test]
    fn a_loss_that_does_not_fall_suggests_nothing() {
        let mut flat = LearningRateSweep::default();
        (0..STEPS).for_each(|index| flat.note(rate(index), 5.0 + 0.001 * (index as f64).sin()));
        let finding = flat.finding();
        assert_eq!(finding.suggestion, None);
        assert!(LearningRateSweep::table(&finding).contains("no suggestion: the loss does not fall"));
        let mut wild = LearningRateSweep::default();
        wild.note(1e-7, f64::NAN);
        assert!(wild.end.is_some() && wild.points.is_empty());
    }

    #[test]
    fn rates_grow_evenly_over_the_range() {
        assert!((rate(0) - RANGE[0]).abs() < 1e-20 && (rate(STEPS - 1) - RANGE[1]).abs() < 1e-9);
        assert!((rate(11) / rate(10) - rate(51) / rate(50)).abs() < 1e-9);
    }

    #[test]
    fn tables_have_few_lines() {
        let text = LearningRateSweep::table(&sweep(1e-3, 0.0).finding());
        assert!((10..=LINES + 4).contains(&text.lines().count()), "{text}");
        assert!(text.contains("suggested: optimizer.lr="), "{text}");
    }
}
