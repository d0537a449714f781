//! Losses accumulated over a log interval, and how numbers are written for people. It measures
//! nothing.

use super::numbers::with_exponent;

/// Outcome of the optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// The optimizer updated the parameters.
    Advanced,
    /// The optimizer skipped the update, because gradients overflowed.
    Skipped,
}

/// Losses since the last console line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingLog {
    /// Name, sum over advanced iterations, last value seen.
    losses: Vec<(String, f64, f64)>,
    /// The interval so far, but for the averages.
    interval: IntervalLosses,
}

/// Sums that [`TrainingLog`] has gathered over an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntervalLosses {
    /// Mean of each loss over the advanced iterations; the last value seen where no iteration
    /// advanced.
    pub averages: Vec<(String, f64)>,
    /// Iterations whose optimizer step was taken.
    pub advanced_iterations: u64,
    /// Iterations whose optimizer step was skipped.
    pub skipped_iterations: u64,
    /// Iterations, of either kind, with a NaN or infinite loss.
    pub nan_iterations: u64,
}

impl IntervalLosses {
    /// Iterations of the interval.
    pub fn total_iterations(&self) -> u64 {
        self.advanced_iterations + self.skipped_iterations
    }
}

impl TrainingLog {
    /// Adds an iteration.
    pub fn record<'a>(&mut self, outcome: StepOutcome, losses: impl IntoIterator<Item = (&'a str, f64)>) {
        let mut is_finite = true;
        for (name, value) in losses {
            is_finite &= value.is_finite();
            let summand = if outcome == StepOutcome::Advanced { value } else { 0.0 };
            match self.losses.iter_mut().find(|(known, ..)| known == name) {
                Some((_, sum, last)) => {
                    *sum += summand;
                    *last = value;
                }
                None => self.losses.push((name.to_owned(), summand, value)),
            }
        }
        self.interval.nan_iterations += u64::from(!is_finite);
        match outcome {
            StepOutcome::Advanced => self.interval.advanced_iterations += 1,
            StepOutcome::Skipped => self.interval.skipped_iterations += 1,
        }
    }

    /// Takes the interval and starts the next one.
    pub fn drain(&mut self) -> IntervalLosses {
        let Self { losses, interval } = std::mem::take(self);
        let average = |sum: f64, last: f64| match interval.advanced_iterations {
            0 => last,
            advanced => sum / advanced as f64,
        };
        let averages = losses.into_iter().map(|(name, sum, last)| (name, average(sum, last))).collect();
        IntervalLosses { averages, ..interval }
    }
}

/// Bytes in a GiB.
pub const GIB: f64 = (1u64 << 30) as f64;

/// `1.000000E-04`: a mantissa with six decimals, an exponent with sign and at least two digits.
pub fn scientific(value: f64) -> String {
    with_exponent(value, 6).replace('e', "E")
}

/// Losses above this count as this much in a perplexity, which keeps it printable.
const MAX_PERPLEXITY_LOSS: f64 = 20.0;

/// `exp(loss)`, with the loss capped at 20. NaN stays NaN.
pub fn perplexity(loss: f64) -> f64 {
    // `f64::min` would turn NaN into the cap.
    if loss > MAX_PERPLEXITY_LOSS { MAX_PERPLEXITY_LOSS.exp() } else { loss.exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_iterations_do_not_count_into_the_mean() {
        let mut log = TrainingLog::default();
        log.record(StepOutcome::Skipped, [("lm loss", f64::INFINITY)]);
        log.record(StepOutcome::Advanced, [("lm loss", 4.0)]);
        let interval = log.drain();
        assert_eq!(interval.averages, [("lm loss".to_owned(), 4.0)]);
        assert_eq!((interval.total_iterations(), interval.skipped_iterations, interval.nan_iterations), (2, 1, 1));
        // Unless nothing else is known.
        log.record(StepOutcome::Skipped, [("lm loss", f64::INFINITY)]);
        assert_eq!(log.drain().averages, [("lm loss".to_owned(), f64::INFINITY)]);
        assert_eq!(log.drain(), IntervalLosses::default());
    }

    #[test]
    fn scientific_notation_has_a_signed_two_digit_exponent() {
        for (value, expected) in [
            (1e-4, "1.000000E-04"),
            (5.5, "5.500000E+00"),
            (-1.5e123, "-1.500000E+123"),
            (0.0, "0.000000E+00"),
            (9.999_999_9, "1.000000E+01"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(scientific(value), expected);
        }
    }

    #[test]
    fn perplexities_are_capped() {
        assert_eq!(perplexity(30.0), 20f64.exp());
        assert_eq!(perplexity(0.0), 1.0);
        assert!(perplexity(f64::NAN).is_nan());
    }

    #[test]
    fn iterations_with_nan_or_infinity_are_counted() {
        let mut log = TrainingLog::default();
        log.record(StepOutcome::Advanced, [("lm loss", f64::NAN), ("z_loss", 1.0)]);
        log.record(StepOutcome::Advanced, [("lm loss", 5.0), ("z_loss", f64::NEG_INFINITY)]);
        let interval = log.drain();
        assert_eq!(interval.nan_iterations, 2);
        let written: Vec<String> = interval.averages.iter().map(|(_, loss)| scientific(*loss)).collect();
        assert_eq!(written, ["nan", "-inf"]);
    }
}
