//! What an evaluation prints. A pure formatter: the losses come averaged.

use std::fmt::Write as _;

use super::console::LogRecord;
use super::json_value::MetricValue;
use super::metrics_jsonl::MetricsRecord;
use super::training_log::scientific;

/// Losses above this count as this much in a perplexity, which keeps it printable.
const MAX_PERPLEXITY_LOSS: f64 = 20.0;

/// `exp(loss)`, with the loss capped at 20. NaN stays NaN.
pub fn perplexity(loss: f64) -> f64 {
    // `f64::min` would turn NaN into the cap.
    if loss > MAX_PERPLEXITY_LOSS { MAX_PERPLEXITY_LOSS.exp() } else { loss.exp() }
}

/// Which split was evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluatedSplit {
    /// The validation split.
    Valid,
    /// The test split.
    Test,
}

impl EvaluatedSplit {
    /// `kind` of its records: `valid` or `test`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Test => "test",
        }
    }

    /// What the names of its metrics end in: `validation` or `test`.
    pub fn metric(self) -> &'static str {
        match self {
            Self::Valid => "validation",
            Self::Test => "test",
        }
    }
}

/// When an evaluation takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// At an interval.
    DuringTraining,
    /// When training is over: then both splits are named.
    AfterTraining,
}

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidationLogLine {
    /// What was evaluated.
    pub split: EvaluatedSplit,
    /// When.
    pub occasion: Occasion,
    /// Iterations completed.
    pub iteration: u64,
    /// Mean losses by name.
    pub losses: Vec<(String, f64)>,
    /// Bits per byte of the evaluated text, where the tokens stand for text.
    pub bits_per_byte: Option<f64>,
    /// What programs get: the line of `metrics.jsonl`.
    pub record: MetricsRecord,
}

impl LogRecord for ValidationLogLine {
    fn human(&self) -> String {
        let set = match (self.split, self.occasion) {
            (EvaluatedSplit::Valid, Occasion::DuringTraining) => "",
            (EvaluatedSplit::Valid, Occasion::AfterTraining) => " on validation set",
            (EvaluatedSplit::Test, _) => " on test set",
        };
        let mut line = format!(" validation loss at iteration {}{set} | ", self.iteration);
        for (name, loss) in &self.losses {
            let (value, perplexity) = (scientific(*loss), scientific(perplexity(*loss)));
            // Writing to a string cannot fail.
            let _ = write!(line, "{name} value: {value} | {name} PPL: {perplexity} | ");
        }
        if let Some(bits) = self.bits_per_byte {
            let _ = write!(line, "bits per byte: {bits:.4} | ");
        }
        let dashes = "-".repeat(line.chars().count() + 1);
        format!("{dashes}\n{line}\n{dashes}")
    }

    fn json_fields(&self) -> Vec<(String, MetricValue)> {
        self.record.fields().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_between_dashes() {
        let line = ValidationLogLine {
            split: EvaluatedSplit::Valid,
            occasion: Occasion::DuringTraining,
            iteration: 10,
            losses: vec![("lm loss".into(), 2.0), ("z".into(), f64::NAN)],
            bits_per_byte: None,
            record: MetricsRecord::new("valid", 10).with("loss", 2.0_f32).with("perplexity", f64::NAN),
        };
        let text = line.human();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1],
            " validation loss at iteration 10 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 | \
             z value: nan | z PPL: nan | "
        );
        assert_eq!((lines[0], lines[2]), ("-".repeat(lines[1].len() + 1).as_str(), lines[0]));
        let last = ValidationLogLine { occasion: Occasion::AfterTraining, ..line.clone() }.human();
        assert!(last.contains(" validation loss at iteration 10 on validation set | lm loss value"), "{last}");
        assert_eq!(line.json(), "{\"kind\":\"valid\",\"iteration\":10,\"loss\":2.0,\"perplexity\":\"NaN\"}");
    }

    #[test]
    fn bits_per_byte_follow_the_losses() {
        let line = ValidationLogLine {
            split: EvaluatedSplit::Test,
            occasion: Occasion::AfterTraining,
            iteration: 3,
            losses: vec![("lm loss".into(), 0.0)],
            bits_per_byte: Some(1.25),
            record: MetricsRecord::new("test", 3).with("bits_per_byte", 1.25),
        };
        let text = line.human();
        assert_eq!(
            text.lines().nth(1),
            Some(
                " validation loss at iteration 3 on test set | lm loss value: 0.000000E+00 | \
                 lm loss PPL: 1.000000E+00 | bits per byte: 1.2500 | "
            )
        );
        let json: serde_json::Value = serde_json::from_str(&line.json()).unwrap();
        assert_eq!((json["kind"].as_str(), json["bits_per_byte"].as_f64()), (Some("test"), Some(1.25)));
    }

    #[test]
    fn perplexities_are_capped() {
        assert_eq!(perplexity(30.0), 20f64.exp());
        assert_eq!(perplexity(0.0), 1.0);
        assert!(perplexity(f64::NAN).is_nan());
    }
}
