//! Learning-rate and weight-decay curves of Megatron's `OptimizerParamScheduler`, value for value.
//! Saving and loading are in `scheduler_state`. This file does not depend on an optimizer.

use std::f64::consts::PI;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Declares a curve with the names of its shapes in recipes and checkpoints.
macro_rules! curve {
    ($(#[$name:meta])+ pub enum $Name:ident { $( $(#[$shape:meta])+ $Shape:ident = $text:literal, )+ }) => {
        $(#[$name])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $Name {
            $( $(#[$shape])+ #[serde(rename = $text)] $Shape, )+
        }

        impl $Name {
            /// All shapes.
            pub const ALL: &'static [Self] = &[$(Self::$Shape),+];
            /// Names of all shapes.
            pub const NAMES: &'static [&'static str] = &[$($text),+];
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $( Self::$Shape => $text, )+ })
            }
        }
    };
}

curve! {
    /// Learning rate after warm-up.
    pub enum LrDecayStyle {
        /// Stays at the peak, even beyond the decay horizon.
        Constant = "constant",
        /// Straight line from peak to floor.
        Linear = "linear",
        /// Half a cosine from peak to floor.
        Cosine = "cosine",
        /// `peak * sqrt(warmup / n)`, never below the floor.
        InverseSquareRoot = "inverse-square-root",
        /// Warm-up, stable, then annealing over the last `wsd_decay_steps`.
        Wsd = "WSD",
    }
}

curve! {
    /// The annealing part of [`LrDecayStyle::Wsd`].
    #[derive(Default)]
    pub enum WsdDecayStyle {
        /// `2 * 0.5^q - 1`, where `q` runs from 0 to 1.
        #[default]
        Exponential = "exponential",
        /// `1 - q`.
        Linear = "linear",
        /// Half a cosine.
        Cosine = "cosine",
        /// `1 - sqrt(q)`.
        MinusSqrt = "minus_sqrt",
    }
}

curve! {
    /// The weight-decay ramp.
    pub enum WeightDecayIncrStyle {
        /// One value throughout; start and end must be equal.
        Constant = "constant",
        /// Straight line from start to end.
        Linear = "linear",
        /// Half a cosine from start to end.
        Cosine = "cosine",
    }
}

/// Parameters of a schedule. All lengths count samples, like the step counter; in runs whose length
/// is given in iterations, each iteration counts the full global batch, even during a batch
/// ramp-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerParamSchedulerConfig {
    /// Learning rate at step 0, if there is a warm-up.
    pub init_lr: f64,
    /// Peak learning rate of groups without their own.
    pub max_lr: f64,
    /// Floor of groups without their own.
    pub min_lr: f64,
    /// Warm-up length, below `lr_decay_steps`; not whole if it is a fraction of the horizon.
    pub lr_warmup_steps: f64,
    /// Decay horizon, warm-up included.
    pub lr_decay_steps: u64,
    /// Curve after warm-up.
    pub lr_decay_style: LrDecayStyle,
    /// Weight decay at step 0.
    pub start_wd: f64,
    /// Weight decay from `wd_incr_steps` on.
    pub end_wd: f64,
    /// Length of the weight-decay ramp.
    pub wd_incr_steps: u64,
    /// Curve of the weight-decay ramp.
    pub wd_incr_style: WeightDecayIncrStyle,
    /// Length of the annealing part; required by [`LrDecayStyle::Wsd`], unused otherwise.
    #[serde(default)]
    pub wsd_decay_steps: Option<u64>,
    /// Curve of the annealing part.
    #[serde(default)]
    pub lr_wsd_decay_style: WsdDecayStyle,
}

/// An invalid schedule, or invalid settings of a group.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SchedulerError {
    /// A value lies outside its range.
    #[error("scheduler: `{field}` is {found}, expected {expected}")]
    OutOfRange {
        /// The invalid field.
        field: &'static str,
        /// Value of the field.
        found: f64,
        /// The rule it breaks, with the other value involved.
        expected: String,
    },
    /// [`LrDecayStyle::Wsd`] without the length of its annealing part.
    #[error("scheduler: `lr_decay_style` is WSD, which needs `wsd_decay_steps`; it is not set")]
    MissingWsdDecaySteps,
    /// A constant weight decay whose start and end differ.
    #[error(
        "scheduler: `weight_decay_incr_style` is constant, so start ({start}) and end ({end}) weight decay \
         must be equal; use linear or cosine to ramp"
    )]
    ConstantWeightDecayRamps {
        /// Weight decay at the start.
        start: f64,
        /// Weight decay at the end.
        end: f64,
    },
}

fn require(holds: bool, field: &'static str, found: f64, expected: String) -> Result<(), SchedulerError> {
    if holds { Ok(()) } else { Err(SchedulerError::OutOfRange { field, found, expected }) }
}

impl OptimizerParamSchedulerConfig {
    /// Checks every rule of the schedule.
    ///
    /// # Errors
    /// The first violated rule. NaN violates every rule.
    pub fn validate(&self) -> Result<(), SchedulerError> {
        check_lr_range(self.max_lr, self.min_lr)?;
        require(
            self.init_lr >= 0.0 && self.init_lr <= self.max_lr,
            "init_lr",
            self.init_lr,
            format!("0 to max_lr ({})", self.max_lr),
        )?;
        require(self.lr_decay_steps > 0, "lr_decay_steps", 0.0, "more than 0".into())?;
        require(
            self.lr_warmup_steps >= 0.0 && self.lr_warmup_steps < self.lr_decay_steps as f64,
            "lr_warmup_steps",
            self.lr_warmup_steps,
            format!("0 or more and less than lr_decay_steps ({})", self.lr_decay_steps),
        )?;
        self.check_weight_decay()?;
        if self.lr_decay_style == LrDecayStyle::Wsd && self.wsd_decay_steps.is_none() {
            return Err(SchedulerError::MissingWsdDecaySteps);
        }
        Ok(())
    }

    fn check_weight_decay(&self) -> Result<(), SchedulerError> {
        let (start, end) = (self.start_wd, self.end_wd);
        require(start >= 0.0 && start.is_finite(), "start_wd", start, "a finite value of 0 or more".into())?;
        require(
            end >= start && end.is_finite(),
            "end_wd",
            end,
            format!("a finite value of start_wd ({start}) or more"),
        )?;
        if self.wd_incr_style == WeightDecayIncrStyle::Constant && start != end {
            return Err(SchedulerError::ConstantWeightDecayRamps { start, end });
        }
        Ok(())
    }
}

fn check_lr_range(max_lr: f64, min_lr: f64) -> Result<(), SchedulerError> {
    require(min_lr >= 0.0, "min_lr", min_lr, "0 or more".into())?;
    require(
        max_lr >= min_lr && max_lr.is_finite(),
        "max_lr",
        max_lr,
        format!("a finite value of min_lr ({min_lr}) or more"),
    )
}

/// Settings of a parameter group that differ from those of the optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupSettings {
    /// Name of the update rule instead of the optimizer's.
    pub rule: Option<&'static str>,
    /// Peak learning rate instead of the schedule's.
    pub max_lr: Option<f64>,
    /// Floor instead of the schedule's.
    pub min_lr: Option<f64>,
    /// Factor on the learning rate.
    pub lr_mult: f64,
    /// Weight decay instead of the schedule's.
    pub weight_decay: Option<f64>,
    /// Factor on the weight decay; 0 for undecayed parameters.
    pub wd_mult: f64,
    /// Epsilon of the update rule instead of the optimizer's.
    pub epsilon: Option<f64>,
    /// Factor on the epsilon of rules that have one.
    pub eps_mult: f64,
    /// Decay of the momentum instead of the optimizer's.
    pub momentum: Option<f64>,
    /// True for the group whose rate is reported as the decoupled one.
    pub is_decoupled_lr: bool,
}

impl Default for GroupSettings {
    /// No difference from the settings of the optimizer.
    fn default() -> Self {
        Self {
            rule: None,
            max_lr: None,
            min_lr: None,
            lr_mult: 1.0,
            weight_decay: None,
            wd_mult: 1.0,
            epsilon: None,
            eps_mult: 1.0,
            momentum: None,
            is_decoupled_lr: false,
        }
    }
}

/// Learning rate and weight decay of one parameter group at one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupRates {
    /// Learning rate.
    pub learning_rate: f64,
    /// Weight decay, the group's factor included.
    pub weight_decay: f64,
}

/// Learning rate and weight decay as functions of the samples trained on so far.
///
/// The counter starts at 0, so the first optimizer step uses the values of step 0. It advances
/// after *successful* optimizer steps only.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerParamScheduler {
    pub(super) config: OptimizerParamSchedulerConfig,
    pub(super) num_steps: u64,
    /// The learning rate of the next steps instead of the schedule's.
    held: Option<f64>,
}

impl OptimizerParamScheduler {
    /// A schedule at step 0.
    ///
    /// # Errors
    /// See [`OptimizerParamSchedulerConfig::validate`].
    pub fn new(config: OptimizerParamSchedulerConfig) -> Result<Self, SchedulerError> {
        config.validate()?;
        Ok(Self { config, num_steps: 0, held: None })
    }

    /// The current parameters, after a load.
    pub fn config(&self) -> &OptimizerParamSchedulerConfig {
        &self.config
    }

    /// Samples by which the schedule has advanced.
    pub fn num_steps(&self) -> u64 {
        self.num_steps
    }

    /// Advances by the samples that one successful optimizer step counts as.
    pub fn step(&mut self, samples: u64) {
        self.num_steps = self.num_steps.saturating_add(samples);
    }

    /// Checks a group's settings against this schedule.
    ///
    /// # Errors
    /// If the learning-rate range or the factor on the weight decay is invalid.
    pub fn check_group(&self, group: &GroupSettings) -> Result<(), SchedulerError> {
        let config = &self.config;
        check_lr_range(group.max_lr.unwrap_or(config.max_lr), group.min_lr.unwrap_or(config.min_lr))?;
        let wd_mult = group.wd_mult;
        require(wd_mult >= 0.0 && wd_mult.is_finite(), "wd_mult", wd_mult, "a finite value of 0 or more".into())
    }

    /// The rates of `group` for the next optimizer step.
    pub fn values(&self, group: &GroupSettings) -> GroupRates {
        let values = self.values_at(self.num_steps, group);
        match self.held {
            Some(held) => GroupRates { learning_rate: held * self.peak_ratio(group) * group.lr_mult, ..values },
            None => values,
        }
    }

    /// Holds the learning rate at `learning_rate`, and the rate of groups with a peak of their own
    /// in proportion, instead of following the schedule.
    pub fn hold(&mut self, learning_rate: f64) {
        self.held = Some(learning_rate);
    }

    /// The peak of a group as a multiple of the schedule's.
    fn peak_ratio(&self, group: &GroupSettings) -> f64 {
        group.max_lr.map(|peak| peak / self.config.max_lr).filter(|ratio| ratio.is_finite()).unwrap_or(1.0)
    }

    /// The rates of `group` for the optimizer step that starts after `num_steps` samples.
    pub fn values_at(&self, num_steps: u64, group: &GroupSettings) -> GroupRates {
        let weight_decay = group.weight_decay.unwrap_or_else(|| self.wd_at(num_steps));
        GroupRates {
            learning_rate: self.lr_at(num_steps, group) * group.lr_mult,
            weight_decay: weight_decay * group.wd_mult,
        }
    }

    fn lr_at(&self, num_steps: u64, group: &GroupSettings) -> f64 {
        let config = &self.config;
        let max_lr = group.max_lr.unwrap_or(config.max_lr);
        let min_lr = group.min_lr.unwrap_or(config.min_lr);
        let (n, warmup, decay) = (num_steps as f64, config.lr_warmup_steps, config.lr_decay_steps as f64);
        if warmup > 0.0 && n <= warmup {
            return config.init_lr + (max_lr - config.init_lr) * n / warmup;
        }
        if config.lr_decay_style == LrDecayStyle::Constant {
            return max_lr;
        }
        if n > decay {
            return min_lr;
        }
        if config.lr_decay_style == LrDecayStyle::InverseSquareRoot {
            return min_lr.max(max_lr * warmup.max(1.0).sqrt() / n.max(1.0).sqrt());
        }
        let ratio = (n - warmup) / (decay - warmup);
        let coefficient = match config.lr_decay_style {
            LrDecayStyle::Linear => 1.0 - ratio,
            LrDecayStyle::Cosine => half_cosine(ratio),
            LrDecayStyle::Wsd => self.wsd_coefficient(n),
            LrDecayStyle::Constant | LrDecayStyle::InverseSquareRoot => {
                unreachable!("handled above")
            }
        };
        min_lr + coefficient * (max_lr - min_lr)
    }

    /// Height of the WSD curve between floor (0) and peak (1).
    fn wsd_coefficient(&self, n: f64) -> f64 {
        let annealing = self.config.wsd_decay_steps.unwrap_or(0) as f64;
        let annealing_start = self.config.lr_decay_steps as f64 - annealing;
        if n <= annealing_start {
            return 1.0;
        }
        let q = (n - annealing_start) / annealing;
        match self.config.lr_wsd_decay_style {
            WsdDecayStyle::Linear => 1.0 - q,
            WsdDecayStyle::Cosine => half_cosine(q),
            WsdDecayStyle::Exponential => 2.0 * 0.5f64.powf(q) - 1.0,
            WsdDecayStyle::MinusSqrt => 1.0 - q.sqrt(),
        }
    }

    fn wd_at(&self, num_steps: u64) -> f64 {
        let config = &self.config;
        let (start, end) = (config.start_wd, config.end_wd);
        // A ramp of no length is over before it starts; upstream divides by zero here.
        if config.wd_incr_steps == 0 || num_steps > config.wd_incr_steps {
            return end;
        }
        let ratio = num_steps as f64 / config.wd_incr_steps as f64;
        let coefficient = match config.wd_incr_style {
            WeightDecayIncrStyle::Constant => return end,
            WeightDecayIncrStyle::Linear => ratio,
            WeightDecayIncrStyle::Cosine => half_cosine(1.0 - ratio),
        };
        start + coefficient * (end - start)
    }
}

/// From 1 at `x` = 0 to 0 at `x` = 1.
fn half_cosine(x: f64) -> f64 {
    0.5 * ((PI * x).cos() + 1.0)
}
