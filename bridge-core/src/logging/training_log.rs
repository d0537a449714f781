//! Losses accumulated over a log interval, and the console line about it. A pure formatter: it measures nothing.

use std::fmt::Write as _;

use super::console::LogRecord;
use super::json_value::MetricValue;

/// Whether the optimizer stepped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// It did.
    Advanced,
    /// It did not, because gradients overflowed.
    Skipped,
}

/// Losses since the last console line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingLog {
    /// Name, sum over advanced iterations, last value seen.
    losses: Vec<(String, f64, f64)>,
    advanced_iterations: u64,
    skipped_iterations: u64,
    nan_iterations: u64,
}

/// What [`TrainingLog`] has gathered over an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IntervalLosses {
    /// Mean of each loss over the advanced iterations; the last value seen where no iteration advanced.
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
        self.nan_iterations += u64::from(!is_finite);
        match outcome {
            StepOutcome::Advanced => self.advanced_iterations += 1,
            StepOutcome::Skipped => self.skipped_iterations += 1,
        }
    }

    /// Takes the interval and starts the next one.
    pub fn drain(&mut self) -> IntervalLosses {
        let log = std::mem::take(self);
        let average = |sum: f64, last: f64| match log.advanced_iterations {
            0 => last,
            advanced => sum / advanced as f64,
        };
        IntervalLosses {
            averages: log.losses.into_iter().map(|(name, sum, last)| (name, average(sum, last))).collect(),
            advanced_iterations: log.advanced_iterations,
            skipped_iterations: log.skipped_iterations,
            nan_iterations: log.nan_iterations,
        }
    }
}

/// Energy of an interval, per device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Energy {
    /// Joules per iteration.
    pub joules_per_iteration: f64,
    /// Watts.
    pub watts: f64,
}

/// Everything a console line can say. `None` leaves a part out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingLogLine {
    /// Local time, `YYYY-MM-DD HH:MM:SS`.
    pub timestamp: String,
    /// Iterations completed.
    pub iteration: u64,
    /// Iterations of the whole run.
    pub train_iters: u64,
    /// Samples trained on, over all runs.
    pub consumed_samples: u64,
    /// Samples rounded away; shown when not 0.
    pub skipped_samples: u64,
    /// Milliseconds per iteration of the interval.
    pub elapsed_ms_per_iteration: f64,
    /// Model TFLOP/s per device.
    pub tflops_per_device: Option<f64>,
    /// Energy per device.
    pub energy: Option<Energy>,
    /// Learning rate of the last iteration.
    pub learning_rate: Option<f64>,
    /// Samples per iteration.
    pub global_batch_size: u64,
    /// The interval's losses and counts.
    pub losses: IntervalLosses,
    /// Loss scale.
    pub loss_scale: f64,
    /// Gradient norm of the last iteration, before clipping.
    pub grad_norm: Option<f64>,
    /// Zeros in the gradients of the last iteration.
    pub num_zeros: Option<u64>,
    /// Norm of the parameters.
    pub params_norm: Option<f64>,
    /// Largest attention logit.
    pub max_attention_logit: Option<f64>,
    /// Tokens per second over all devices.
    pub tokens_per_second: Option<f64>,
    /// Memory of the processes of the run: the most that one has.
    pub memory: Option<super::HostMemory>,
    /// Memory of the run's devices, where they have some of their own: of the fullest.
    pub device_memory: Option<super::DeviceMemory>,
    /// Tokens of the last iteration that went to the expert with the fewest and to that with the most, of any layer.
    pub tokens_per_expert: Option<(u64, u64)>,
    /// Seconds until the last iteration at the interval's pace.
    pub seconds_left: Option<f64>,
}

impl TrainingLogLine {
    /// Works out tokens per second and the time left from the interval's pace.
    ///
    /// `tokens` are those of the interval, `seconds` its wall time; nothing is set when either pace is unknown.
    #[must_use]
    pub fn with_pace(mut self, tokens: u64, seconds: f64) -> Self {
        let iterations = self.losses.total_iterations();
        if seconds > 0.0 && iterations > 0 {
            self.elapsed_ms_per_iteration = seconds * 1000.0 / iterations as f64;
            self.tokens_per_second = Some(tokens as f64 / seconds);
            let remaining = self.train_iters.saturating_sub(self.iteration);
            self.seconds_left = Some(remaining as f64 * seconds / iterations as f64);
        }
        self
    }
}

impl TrainingLogLine {
    /// The short line that precedes the long one when the throughput is known.
    pub fn step_time_line(&self) -> Option<String> {
        let seconds = self.elapsed_ms_per_iteration / 1000.0;
        self.tflops_per_device
            .map(|tflops| format!("Step Time : {seconds:.2}s GPU utilization: {tflops:.1}MODEL_TFLOP/s/GPU"))
    }
}

const GIB: f64 = (1u64 << 30) as f64;

/// `1.000000E-04`: a mantissa with six decimals, an exponent with sign and at least two digits.
pub fn scientific(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "nan".into()
        } else if value > 0.0 {
            "inf".into()
        } else {
            "-inf".into()
        };
    }
    let text = format!("{value:.6E}");
    let (mantissa, exponent) = text.split_once('E').unwrap_or((&text, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}E{sign}{digits:0>2}")
}

/// `1d 02:03:04`, without days when there are none.
fn clock(seconds: f64) -> String {
    let total = seconds.round() as u64;
    let (days, hours, minutes, seconds) = (total / 86_400, total / 3600 % 24, total / 60 % 60, total % 60);
    let days = if days > 0 { format!("{days}d ") } else { String::new() };
    format!("{days}{hours:02}:{minutes:02}:{seconds:02}")
}

impl LogRecord for TrainingLogLine {
    fn human(&self) -> String {
        let mut line = format!(
            " [{}] iteration {:8}/{:8} | consumed samples: {:12} |",
            self.timestamp, self.iteration, self.train_iters, self.consumed_samples
        );
        // Writing to a string cannot fail, so the macro drops the result.
        macro_rules! part {
            ($($arguments:tt)*) => { let _ = write!(line, $($arguments)*); };
        }
        if self.skipped_samples > 0 {
            part!(" skipped samples: {:12} |", self.skipped_samples);
        }
        part!(" elapsed time per iteration (ms): {:.1} |", self.elapsed_ms_per_iteration);
        if let Some(tflops) = self.tflops_per_device {
            part!(" throughput per GPU (TFLOP/s/GPU): {tflops:.1} |");
        }
        if let Some(energy) = self.energy {
            part!(" energy per GPU (J/iter/GPU): {:.1} |", energy.joules_per_iteration);
            part!(" power per GPU (W/GPU): {:.1} |", energy.watts);
        }
        if let Some(learning_rate) = self.learning_rate {
            part!(" learning rate: {} |", scientific(learning_rate));
        }
        part!(" global batch size: {:5} |", self.global_batch_size);
        for (name, value) in &self.losses.averages {
            part!(" {name}: {} |", scientific(*value));
        }
        part!(" loss scale: {:.1} |", self.loss_scale);
        if let Some(grad_norm) = self.grad_norm {
            part!(" grad norm: {grad_norm:.3} |");
        }
        if let Some(num_zeros) = self.num_zeros {
            part!(" num zeros: {num_zeros} |");
        }
        if let Some(params_norm) = self.params_norm {
            part!(" params norm: {params_norm:.3} |");
        }
        if let Some(logit) = self.max_attention_logit {
            part!(" max attention logit: {logit:.3} |");
        }
        part!(" number of skipped iterations: {:3} |", self.losses.skipped_iterations);
        part!(" number of nan iterations: {:3} |", self.losses.nan_iterations);
        if let Some((least, most)) = self.tokens_per_expert {
            part!(" tokens per expert: {least} to {most} |");
        }
        if let Some(tokens) = self.tokens_per_second {
            part!(" tokens per second: {tokens:.0} |");
        }
        if let Some(memory) = self.memory {
            let (now, peak) = (memory.resident_bytes as f64 / GIB, memory.peak_resident_bytes as f64 / GIB);
            part!(" memory (GiB): {now:.2} (peak {peak:.2}) |");
        }
        if let Some(memory) = self.device_memory {
            let (used, reserved) = (memory.allocated_bytes as f64 / GIB, memory.reserved_bytes as f64 / GIB);
            part!(" device memory (GiB): {used:.2} (reserved {reserved:.2}) |");
        }
        if let Some(seconds) = self.seconds_left {
            part!(" time left: {} |", clock(seconds));
        }
        line
    }

    fn json_fields(&self) -> Vec<(String, MetricValue)> {
        let mut fields: Vec<(String, MetricValue)> = vec![
            ("kind".into(), "train_log".into()),
            ("timestamp".into(), self.timestamp.as_str().into()),
            ("iteration".into(), self.iteration.into()),
            ("train_iters".into(), self.train_iters.into()),
            ("consumed_samples".into(), self.consumed_samples.into()),
            ("skipped_samples".into(), self.skipped_samples.into()),
            ("elapsed_ms_per_iteration".into(), self.elapsed_ms_per_iteration.into()),
            ("global_batch_size".into(), self.global_batch_size.into()),
            ("loss_scale".into(), self.loss_scale.into()),
            ("skipped_iterations".into(), self.losses.skipped_iterations.into()),
            ("nan_iterations".into(), self.losses.nan_iterations.into()),
        ];
        fields.extend(self.losses.averages.iter().map(|(name, value)| (name.clone(), (*value).into())));
        for (name, value) in [
            ("tflops_per_device", self.tflops_per_device),
            ("joules_per_iteration_per_device", self.energy.map(|energy| energy.joules_per_iteration)),
            ("watts_per_device", self.energy.map(|energy| energy.watts)),
            ("learning_rate", self.learning_rate),
            ("grad_norm", self.grad_norm),
            ("params_norm", self.params_norm),
            ("max_attention_logit", self.max_attention_logit),
            ("tokens_per_second", self.tokens_per_second),
            ("seconds_left", self.seconds_left),
        ] {
            fields.extend(value.map(|value| (name.to_owned(), value.into())));
        }
        fields.extend(self.num_zeros.map(|num_zeros| ("num_zeros".to_owned(), num_zeros.into())));
        if let Some((least, most)) = self.tokens_per_expert {
            fields.push(("tokens_per_expert_min".into(), least.into()));
            fields.push(("tokens_per_expert_max".into(), most.into()));
        }
        if let Some(memory) = self.memory {
            fields.push(("memory_bytes".into(), memory.resident_bytes.into()));
            fields.push(("peak_memory_bytes".into(), memory.peak_resident_bytes.into()));
        }
        if let Some(memory) = self.device_memory {
            fields.push(("device_memory_bytes".into(), memory.allocated_bytes.into()));
            fields.push(("device_reserved_bytes".into(), memory.reserved_bytes.into()));
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DeviceMemory, HostMemory};
    use super::*;

    fn line() -> TrainingLogLine {
        let mut log = TrainingLog::default();
        log.record(StepOutcome::Advanced, [("lm loss", 6.0)]);
        log.record(StepOutcome::Advanced, [("lm loss", 5.0)]);
        TrainingLogLine {
            timestamp: "2026-01-02 03:04:05".into(),
            iteration: 2,
            train_iters: 20,
            consumed_samples: 16,
            learning_rate: Some(1e-4),
            global_batch_size: 8,
            losses: log.drain(),
            loss_scale: 1.0,
            grad_norm: Some(1.23456),
            ..TrainingLogLine::default()
        }
        .with_pace(1024, 0.5)
    }

    #[test]
    fn plain_line() {
        assert_eq!(
            line().human(),
            " [2026-01-02 03:04:05] iteration        2/      20 | consumed samples:           16 | \
             elapsed time per iteration (ms): 250.0 | learning rate: 1.000000E-04 | global batch size:     8 | \
             lm loss: 5.500000E+00 | loss scale: 1.0 | grad norm: 1.235 | number of skipped iterations:   0 | \
             number of nan iterations:   0 | tokens per second: 2048 | time left: 00:00:05 |"
        );
    }

    #[test]
    fn line_with_everything() {
        let full = TrainingLogLine {
            skipped_samples: 3,
            tflops_per_device: Some(12.34),
            energy: Some(Energy { joules_per_iteration: 99.96, watts: 400.0 }),
            num_zeros: Some(17),
            params_norm: Some(100.0),
            max_attention_logit: Some(2.5),
            memory: Some(HostMemory { resident_bytes: 1 << 30, peak_resident_bytes: 3 << 29 }),
            tokens_per_expert: Some((3, 40)),
            device_memory: Some(DeviceMemory { allocated_bytes: 1 << 29, reserved_bytes: 3 << 30, num_allocations: 5 }),
            seconds_left: Some(93_784.4),
            ..line()
        };
        let text = full.human();
        for part in [
            " | skipped samples:            3 | elapsed",
            " | throughput per GPU (TFLOP/s/GPU): 12.3 | energy per GPU (J/iter/GPU): 100.0 | power per GPU (W/GPU): 400.0 |",
            " | num zeros: 17 | params norm: 100.000 | max attention logit: 2.500 | number of skipped",
            "number of nan iterations:   0 | tokens per expert: 3 to 40 | tokens per second: 2048 |",
            " | memory (GiB): 1.00 (peak 1.50) | device memory (GiB): 0.50 (reserved 3.00) | time left: 1d 02:03:04 |",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn step_time_needs_a_throughput() {
        assert_eq!(line().step_time_line(), None);
        let line = TrainingLogLine { tflops_per_device: Some(12.34), ..line() };
        assert_eq!(line.step_time_line().unwrap(), "Step Time : 0.25s GPU utilization: 12.3MODEL_TFLOP/s/GPU");
    }

    #[test]
    fn nan_and_infinity_are_shown() {
        let mut log = TrainingLog::default();
        log.record(StepOutcome::Advanced, [("lm loss", f64::NAN), ("z_loss", 1.0)]);
        log.record(StepOutcome::Advanced, [("lm loss", 5.0), ("z_loss", f64::NEG_INFINITY)]);
        let line = TrainingLogLine { losses: log.drain(), ..TrainingLogLine::default() };
        assert!(line.human().contains(" lm loss: nan | z_loss: -inf |"), "{}", line.human());
        assert!(line.human().contains("number of nan iterations:   2 |"));
    }

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
    fn json_has_the_same_facts() {
        let json: serde_json::Value = serde_json::from_str(&line().json()).unwrap();
        assert_eq!(json["kind"], "train_log");
        assert_eq!(json["lm loss"], 5.5);
        assert_eq!(json["tokens_per_second"], 2048.0);
        assert_eq!(json.get("num_zeros"), None);
    }
}
