//! Checks on losses and gradients: NaN, infinity, and values far above anything seen so far.

use serde::{Deserialize, Serialize};

use super::rerun::{Finding, RerunStateMachine, Severity, UnexpectedResult, Validation};

/// Number of first values that only train the detector.
const NUM_LEARNED: u32 = 100;

/// Finds values far above the largest of the first hundred.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpikyLossDetector {
    factor: f64,
    num_seen: u32,
    maximum: f64,
}

impl SpikyLossDetector {
    /// A detector that rejects values of `factor` times the recorded maximum or more.
    pub fn new(factor: f64) -> Self {
        Self { factor, num_seen: 0, maximum: 0.0 }
    }

    /// Continues from the state of `other`. The factor is kept, because it is a setting and not
    /// state.
    #[must_use]
    pub fn after(self, other: &Self) -> Self {
        Self { factor: self.factor, ..*other }
    }

    /// Combined state of several detectors: the largest of the largest values, the most of the
    /// values seen.
    pub fn together<'a>(all: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        all.into_iter().copied().reduce(|a, b| Self {
            factor: a.factor,
            num_seen: a.num_seen.max(b.num_seen),
            maximum: a.maximum.max(b.maximum),
        })
    }

    /// Learns from `value` while learning lasts.
    pub fn observe(&mut self, value: f64) {
        if value.is_finite() && self.num_seen < NUM_LEARNED {
            self.num_seen += 1;
            self.maximum = self.maximum.max(value.abs());
        }
    }

    /// True if `value` is a spike. Never while learning lasts, and never for NaN or infinity.
    pub fn is_spike(&self, value: f64) -> bool {
        self.num_seen >= NUM_LEARNED && value.is_finite() && value.abs() >= self.maximum * self.factor
    }
}

/// The checks of a training step's losses and gradients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossChecks {
    /// True if NaN and infinite losses are rejected.
    pub check_for_nan_in_loss: bool,
    /// Rejects spikes, if set.
    pub spiky_loss: Option<SpikyLossDetector>,
    /// True if NaN and infinite norms of gradients are rejected.
    #[serde(default)]
    pub check_for_nan_in_grad: bool,
    /// Reports norms of gradients far above those seen so far, if set.
    #[serde(default)]
    pub large_grads: Option<SpikyLossDetector>,
}

impl LossChecks {
    /// Has `machine` validate one loss of the pass in progress; returns a finding for the log.
    ///
    /// # Errors
    /// A NaN or infinite loss, when the machine's mode is disabled.
    pub fn validate(&mut self, machine: &mut RerunStateMachine, loss: f64) -> Result<Vec<Finding>, UnexpectedResult> {
        let mut findings = Vec::new();
        let mut check = |rejected, message, severity| {
            let validation = Validation { result: loss, rejected, message, tolerance: 0.0, severity };
            findings.extend(machine.validate_result(validation)?);
            Ok(())
        };
        if self.check_for_nan_in_loss {
            check(loss.is_nan(), "found NaN in local forward loss calculation", Severity::Fatal)?;
            check(loss.is_infinite(), "found Inf in local forward loss calculation", Severity::Fatal)?;
        }
        if let Some(detector) = &mut self.spiky_loss {
            check(detector.is_spike(loss), "Spiky loss", Severity::NonFatal)?;
            // A rerun sees the same loss again; it teaches nothing new.
            if !machine.is_rerunning() {
                detector.observe(loss);
            }
        }
        Ok(findings)
    }
}

/// Largest relative difference at which two norms of gradients count as the same: not all devices
/// add up in one order.
const GRADIENT_TOLERANCE: f64 = 1e-3;

impl LossChecks {
    /// Has `machine` validate the norm of a part of a rank's gradients; returns findings for the
    /// log. `loss_scale` is a factor of the norm, which may change between steps.
    ///
    /// # Errors
    /// A NaN or infinite norm, when the machine's mode is disabled.
    pub fn validate_grad_norm(
        &mut self,
        machine: &mut RerunStateMachine,
        part: &impl std::fmt::Display,
        norm: f64,
        loss_scale: f64,
    ) -> Result<Vec<Finding>, UnexpectedResult> {
        let mut findings = Vec::new();
        let mut check = |rejected, found, severity| {
            let message = format!("found {found} in local gradient norm of {part}, before ranks add up");
            let tolerance = GRADIENT_TOLERANCE;
            let validation = Validation { result: norm, rejected, message: &message, tolerance, severity };
            findings.extend(machine.validate_result(validation)?);
            Ok(())
        };
        if self.check_for_nan_in_grad {
            check(norm.is_nan(), "NaN", Severity::Fatal)?;
            check(norm.is_infinite(), "Inf", Severity::Fatal)?;
        }
        if let Some(detector) = &mut self.large_grads {
            check(detector.is_spike(norm / loss_scale), "an unusually large value", Severity::NonFatal)?;
            if !machine.is_rerunning() {
                detector.observe(norm / loss_scale);
            }
        }
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rerun::{ErrorInjection, FindingKind, NextPass, RerunConfig};
    use super::*;
    use crate::config::RerunMode;

    fn checks(check_for_nan_in_loss: bool) -> LossChecks {
        let spiky_loss = Some(SpikyLossDetector::new(2.0));
        LossChecks { check_for_nan_in_loss, spiky_loss, check_for_nan_in_grad: false, large_grads: None }
    }

    #[test]
    fn norms_of_gradients_are_checked_apart_from_the_loss_scale() {
        let mut machine = RerunStateMachine::new(RerunConfig::default());
        let _ = machine.next_pass(&mut Ok::<_, ()>);
        let large_grads = Some(SpikyLossDetector::new(10.0));
        let mut checks = LossChecks { spiky_loss: None, large_grads, ..checks(false) };
        for step in 0..100 {
            let scale = f64::from(step + 1);
            assert_eq!(checks.validate_grad_norm(&mut machine, &"bucket 0", 3.0 * scale, scale).unwrap(), []);
        }
        assert_eq!(checks.validate_grad_norm(&mut machine, &"bucket 0", 290.0, 10.0).unwrap(), []);
        let found = checks.validate_grad_norm(&mut machine, &"bucket 0", 310.0, 10.0).unwrap();
        assert_eq!(found[0].kind, FindingKind::Tolerated);
        assert!(found[0].to_string().contains("unusually large value in local gradient norm of bucket 0"));
        assert_eq!(checks.validate_grad_norm(&mut machine, &"bucket 0", f64::NAN, 1.0).unwrap(), []);
        checks.check_for_nan_in_grad = true;
        assert!(checks.validate_grad_norm(&mut machine, &"bucket 0", f64::NAN, 1.0).is_err());
    }

    #[test]
    fn only_values_after_the_first_hundred_are_spikes() {
        let mut detector = SpikyLossDetector::new(10.0);
        detector.observe(f64::NAN);
        for i in 0..100 {
            assert!(!detector.is_spike(1e9), "still learning after {i}");
            detector.observe(if i == 50 { -2.0 } else { 1.0 });
        }
        assert!(detector.is_spike(20.0) && detector.is_spike(-20.0));
        assert!(!detector.is_spike(19.99));
        assert!(!detector.is_spike(f64::NAN) && !detector.is_spike(f64::INFINITY));
        detector.observe(15.0);
        assert!(detector.is_spike(20.0), "the maximum is fixed by then");
    }

    #[test]
    fn losses_are_checked_for_nan_infinity_and_spikes() {
        let mut machine = RerunStateMachine::new(RerunConfig::default());
        let _ = machine.next_pass(&mut Ok::<_, ()>);
        let mut checks = checks(true);
        for _ in 0..100 {
            assert_eq!(checks.validate(&mut machine, 3.0).unwrap(), []);
        }
        assert_eq!(checks.validate(&mut machine, 7.0).unwrap()[0].kind, FindingKind::Tolerated);
        let error = checks.validate(&mut machine, f64::NAN).unwrap_err().to_string();
        assert_eq!(
            error,
            "Rank 0, node , device 0, iteration 1: Unexpected result NaN \
             (message='found NaN in local forward loss calculation')"
        );
        assert!(checks.validate(&mut machine, f64::NEG_INFINITY).unwrap_err().message.contains("found Inf"));
        checks.check_for_nan_in_loss = false;
        assert_eq!(checks.validate(&mut machine, f64::NAN).unwrap(), []);
    }

    #[test]
    fn what_was_learned_goes_on_with_another_factor() {
        let mut learned = SpikyLossDetector::new(10.0);
        (0..100).for_each(|_| learned.observe(1.0));
        let resumed = SpikyLossDetector::new(2.0).after(&learned);
        assert!(resumed.is_spike(2.0) && !learned.is_spike(2.0));
        let mut other = SpikyLossDetector::new(10.0);
        other.observe(3.0);
        let together = SpikyLossDetector::together([&learned, &other]).unwrap();
        assert!(together.is_spike(30.0) && !together.is_spike(29.0));
        assert_eq!(SpikyLossDetector::together([]), None);
    }

    #[test]
    fn a_rerun_teaches_nothing() {
        // Each step but the first is computed again.
        let injection = ErrorInjection { rate: 1, ..ErrorInjection::default() };
        let config = RerunConfig { mode: RerunMode::ValidateResults, injection, ..RerunConfig::default() };
        let mut machine = RerunStateMachine::new(config);
        let mut checks = checks(false);
        let mut passes = 0;
        for _ in 0..2 {
            while machine.next_pass(&mut Ok::<_, ()>) == Ok(NextPass::Run) {
                checks.validate(&mut machine, 1.0).unwrap();
                passes += 1;
            }
        }
        assert_eq!((passes, checks.spiky_loss.unwrap().num_seen), (3, 2));
    }
}
