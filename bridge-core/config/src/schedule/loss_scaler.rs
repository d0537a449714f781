//! The loss scale of fp16 training: constant, or dynamic, growing until gradients overflow. Only
//! arithmetic and state; scaling the loss and checking the gradients belong to the loop and the
//! optimizer.

use serde::{Deserialize, Serialize};

/// Largest scale in float32, in which losses are scaled: the largest power of two.
const MAX_SCALE: f64 = 1.701_411_834_604_692_3e38; // 2^127

/// Usability of the unscaled gradients of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientCheck {
    /// All finite: the optimizer stepped.
    Finite,
    /// Some were NaN or infinite: the step was skipped.
    Overflow,
}

/// Changes of a dynamic loss scale.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DynamicLossScaleConfig {
    /// Scale of the first step.
    pub initial_loss_scale: f64,
    /// Floor.
    pub min_loss_scale: f64,
    /// Steps without overflow before the scale doubles.
    pub loss_scale_window: u64,
    /// Overflows tolerated before the scale halves.
    pub hysteresis: u32,
}

impl Default for DynamicLossScaleConfig {
    fn default() -> Self {
        Self { initial_loss_scale: 4_294_967_296.0, min_loss_scale: 1.0, loss_scale_window: 1000, hysteresis: 2 }
    }
}

/// A loss scale outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{field}` is {found}, expected {expected}")]
pub struct LossScaleError {
    /// The offending setting.
    pub field: &'static str,
    /// Value of the field.
    pub found: f64,
    /// The allowed values.
    pub expected: &'static str,
}

/// The state of a loss scale in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScalerState {
    /// Current scale.
    pub scale: f64,
    /// Steps without overflow since the last overflow or growth.
    #[serde(default)]
    pub growth_tracker: u64,
    /// Overflows left before each further one halves the scale; stays at or below 0 until the scale
    /// grows.
    #[serde(default)]
    pub hysteresis_tracker: i64,
}

/// A loss scale.
#[derive(Clone, Debug, PartialEq)]
pub struct LossScaler {
    /// `None` for a constant scale.
    dynamic: Option<DynamicLossScaleConfig>,
    state: LossScalerState,
}

fn checked(field: &'static str, found: f64) -> Result<f64, LossScaleError> {
    if found > 0.0 && found <= MAX_SCALE {
        Ok(found)
    } else {
        Err(LossScaleError { field, found, expected: "more than 0 and at most 2^127" })
    }
}

impl LossScaler {
    /// A scale that never changes; 1 for float32 and bfloat16.
    ///
    /// # Errors
    /// A scale that is not positive and finite in float32.
    pub fn constant(loss_scale: f64) -> Result<Self, LossScaleError> {
        let scale = checked("loss_scale", loss_scale)?;
        let state = LossScalerState { scale, growth_tracker: 0, hysteresis_tracker: 0 };
        Ok(Self { dynamic: None, state })
    }

    /// A scale that halves after overflows and doubles after steps without them.
    ///
    /// # Errors
    /// If a scale is not positive, the initial scale is below the floor, or the window or
    /// hysteresis is 0.
    pub fn dynamic(config: DynamicLossScaleConfig) -> Result<Self, LossScaleError> {
        let scale = checked("initial_loss_scale", config.initial_loss_scale)?;
        checked("min_loss_scale", config.min_loss_scale)?;
        for (holds, field, found, expected) in [
            (config.min_loss_scale <= scale, "min_loss_scale", config.min_loss_scale, "at most initial_loss_scale"),
            (config.loss_scale_window > 0, "loss_scale_window", 0.0, "1 or more"),
            (config.hysteresis > 0, "hysteresis", 0.0, "1 or more"),
        ] {
            if !holds {
                return Err(LossScaleError { field, found, expected });
            }
        }
        let hysteresis_tracker = i64::from(config.hysteresis);
        Ok(Self { dynamic: Some(config), state: LossScalerState { scale, growth_tracker: 0, hysteresis_tracker } })
    }

    /// The factor on the loss.
    pub fn scale(&self) -> f64 {
        self.state.scale
    }

    /// True if the scale is dynamic.
    pub fn is_dynamic(&self) -> bool {
        self.dynamic.is_some()
    }

    /// True if overflows can still lower the scale.
    pub fn can_fall(&self) -> bool {
        self.dynamic.is_some_and(|config| self.state.scale > config.min_loss_scale)
    }

    /// Updates the scale after a step.
    pub fn update(&mut self, gradients: GradientCheck) {
        let Some(config) = &self.dynamic else { return };
        let state = &mut self.state;
        match gradients {
            GradientCheck::Overflow => {
                state.growth_tracker = 0;
                state.hysteresis_tracker -= 1;
                if state.hysteresis_tracker <= 0 {
                    state.scale = (state.scale * 0.5).max(config.min_loss_scale);
                }
            }
            GradientCheck::Finite => {
                state.growth_tracker += 1;
                if state.growth_tracker >= config.loss_scale_window {
                    state.growth_tracker = 0;
                    state.hysteresis_tracker = i64::from(config.hysteresis);
                    state.scale = (state.scale * 2.0).min(MAX_SCALE);
                }
            }
        }
    }

    /// The state for a checkpoint.
    pub fn state(&self) -> LossScalerState {
        self.state
    }

    /// Continues from `state`. A constant scale keeps the run's value.
    ///
    /// # Errors
    /// If the scale is not positive and finite in float32; then the state is unchanged.
    pub fn load_state(&mut self, state: LossScalerState) -> Result<(), LossScaleError> {
        checked("scale", state.scale)?;
        if self.dynamic.is_some() {
            self.state = state;
        }
        Ok(())
    }
}
