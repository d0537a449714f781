//! The state of a schedule in a checkpoint, and how it is merged with the schedule of the run that
//! loads it. The curves are in `optimizer_param_scheduler`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    LrDecayStyle, OptimizerParamScheduler, OptimizerParamSchedulerConfig, SchedulerError, WeightDecayIncrStyle,
    WsdDecayStyle,
};

/// The schedule as a checkpoint stores it. Reads the names of old Megatron checkpoints too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerState {
    /// Peak learning rate (`start_lr` in old checkpoints).
    #[serde(alias = "start_lr")]
    pub max_lr: f64,
    /// Warm-up length in samples (`warmup_iter`, `warmup_steps`).
    #[serde(alias = "warmup_iter", alias = "warmup_steps")]
    pub lr_warmup_steps: f64,
    /// Samples by which the schedule has advanced (`num_iters`).
    #[serde(alias = "num_iters")]
    pub num_steps: u64,
    /// Curve after warm-up (`decay_style`).
    #[serde(alias = "decay_style")]
    pub lr_decay_style: LrDecayStyle,
    /// Decay horizon in samples (`end_iter`, `decay_steps`).
    #[serde(alias = "end_iter", alias = "decay_steps")]
    pub lr_decay_steps: u64,
    /// Floor of the learning rate.
    pub min_lr: f64,
    /// Weight decay at step 0; old checkpoints have no weight-decay ramp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_wd: Option<f64>,
    /// Final weight decay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_wd: Option<f64>,
    /// Curve of the weight-decay ramp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wd_incr_style: Option<WeightDecayIncrStyle>,
    /// Length of the weight-decay ramp in samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wd_incr_steps: Option<u64>,
    /// Learning rate at the start of the warm-up; absent in checkpoints of Megatron and of earlier
    /// releases, as are the fields below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_lr: Option<f64>,
    /// Length of the annealing part of WSD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wsd_decay_steps: Option<u64>,
    /// Curve of the annealing part of WSD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr_wsd_decay_style: Option<WsdDecayStyle>,
}

impl SchedulerState {
    /// Converts a schedule that counts iterations of `from` samples to one whose iterations have
    /// `to` samples.
    #[must_use]
    pub fn rescaled(self, from: u64, to: u64) -> Self {
        if from == to || from == 0 {
            return self;
        }
        let whole = |steps: u64| (u128::from(steps) * u128::from(to) / u128::from(from)) as u64;
        Self {
            lr_warmup_steps: self.lr_warmup_steps * to as f64 / from as f64,
            num_steps: whole(self.num_steps),
            lr_decay_steps: whole(self.lr_decay_steps),
            wd_incr_steps: self.wd_incr_steps.map(whole),
            wsd_decay_steps: self.wsd_decay_steps.map(whole),
            ..self
        }
    }
}

/// Schedule that is used if the checkpoint's differs from the run's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnStateMismatch {
    /// Neither: a difference is an error.
    #[default]
    Refuse,
    /// The run (`override_opt_param_scheduler`).
    KeepRun,
    /// The checkpoint (`use_checkpoint_opt_param_scheduler`).
    TakeCheckpoint,
}

/// One value that differs between run and checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateMismatch {
    /// Name of the value.
    pub field: &'static str,
    /// The run's value.
    pub run: String,
    /// The checkpoint's value.
    pub checkpoint: String,
}

impl fmt::Display for StateMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is {} in this run and {} in the checkpoint", self.field, self.run, self.checkpoint)
    }
}

/// Why a checkpoint's schedule could not be loaded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SchedulerStateError {
    /// Values differ, and no setting says which to use.
    #[error(
        "the checkpoint's schedule is not this run's: {}; set scheduler.override_opt_param_scheduler = true to keep the \
         run's values or scheduler.use_checkpoint_opt_param_scheduler = true to take the checkpoint's",
        .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    Mismatch(Vec<StateMismatch>),
    /// The merged values are not a valid schedule.
    #[error("the checkpoint's schedule does not fit this run: {0}")]
    Invalid(#[from] SchedulerError),
}

/// Merges values one by one and collects those that differ.
struct Merge {
    policy: OnStateMismatch,
    mismatches: Vec<StateMismatch>,
}

impl Merge {
    fn value<T: PartialEq + fmt::Display>(&mut self, field: &'static str, run: T, checkpoint: T) -> T {
        match self.policy {
            OnStateMismatch::KeepRun => run,
            OnStateMismatch::TakeCheckpoint => checkpoint,
            OnStateMismatch::Refuse => {
                if run != checkpoint {
                    let (run, checkpoint) = (run.to_string(), checkpoint.to_string());
                    self.mismatches.push(StateMismatch { field, run, checkpoint });
                }
                run
            }
        }
    }

    /// A value that old checkpoints lack: the run's is used then.
    fn optional<T: PartialEq + fmt::Display>(&mut self, field: &'static str, run: T, checkpoint: Option<T>) -> T {
        match checkpoint {
            Some(checkpoint) => self.value(field, run, checkpoint),
            None => run,
        }
    }
}

impl OptimizerParamScheduler {
    /// The state for a checkpoint.
    pub fn state(&self) -> SchedulerState {
        let config = &self.config;
        SchedulerState {
            max_lr: config.max_lr,
            lr_warmup_steps: config.lr_warmup_steps,
            num_steps: self.num_steps,
            lr_decay_style: config.lr_decay_style,
            lr_decay_steps: config.lr_decay_steps,
            min_lr: config.min_lr,
            start_wd: Some(config.start_wd),
            end_wd: Some(config.end_wd),
            wd_incr_style: Some(config.wd_incr_style),
            wd_incr_steps: Some(config.wd_incr_steps),
            init_lr: Some(config.init_lr),
            wsd_decay_steps: config.wsd_decay_steps,
            lr_wsd_decay_style: (config.lr_decay_style == LrDecayStyle::Wsd).then_some(config.lr_wsd_decay_style),
        }
    }

    /// Continues from `state`; the step counter always comes from the checkpoint.
    ///
    /// # Errors
    /// Every differing value under [`OnStateMismatch::Refuse`], or that the merged schedule is
    /// invalid. The scheduler is unchanged then.
    pub fn load_state(&mut self, state: &SchedulerState, policy: OnStateMismatch) -> Result<(), SchedulerStateError> {
        let run = &self.config;
        let takes_checkpoint = policy == OnStateMismatch::TakeCheckpoint;
        // A fraction of the schedule that was rescaled to another batch differs by rounding.
        let is_rounding = (run.lr_warmup_steps - state.lr_warmup_steps).abs() <= 1e-9 * run.lr_warmup_steps;
        let lr_warmup_steps = if is_rounding { run.lr_warmup_steps } else { state.lr_warmup_steps };
        let mut merge = Merge { policy, mismatches: Vec::new() };
        let merged = OptimizerParamSchedulerConfig {
            max_lr: merge.value("max_lr", run.max_lr, state.max_lr),
            min_lr: merge.value("min_lr", run.min_lr, state.min_lr),
            lr_warmup_steps: merge.value("lr_warmup_steps", run.lr_warmup_steps, lr_warmup_steps),
            lr_decay_steps: merge.value("lr_decay_steps", run.lr_decay_steps, state.lr_decay_steps),
            lr_decay_style: merge.value("lr_decay_style", run.lr_decay_style, state.lr_decay_style),
            start_wd: merge.optional("start_wd", run.start_wd, state.start_wd),
            end_wd: merge.optional("end_wd", run.end_wd, state.end_wd),
            wd_incr_steps: merge.optional("wd_incr_steps", run.wd_incr_steps, state.wd_incr_steps),
            wd_incr_style: merge.optional("wd_incr_style", run.wd_incr_style, state.wd_incr_style),
            // Upstream neither saves nor compares these.
            init_lr: state.init_lr.filter(|_| takes_checkpoint).unwrap_or(run.init_lr),
            wsd_decay_steps: state.wsd_decay_steps.filter(|_| takes_checkpoint).or(run.wsd_decay_steps),
            lr_wsd_decay_style: state.lr_wsd_decay_style.filter(|_| takes_checkpoint).unwrap_or(run.lr_wsd_decay_style),
        };
        if !merge.mismatches.is_empty() {
            return Err(SchedulerStateError::Mismatch(merge.mismatches));
        }
        merged.validate()?;
        self.config = merged;
        self.num_steps = state.num_steps;
        Ok(())
    }
}
