//! Distance of the results of repeated passes from those of the first. Figures only, without
//! judgement.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::relative_difference;
use super::state::Call;

/// Results of one rank's passes, check by check.
#[derive(Clone, Debug, Default)]
pub(super) struct Differences {
    /// Results of the first pass of this step.
    expected: BTreeMap<Call, f64>,
    /// Number of compared results and nonzero differences, by check.
    found: BTreeMap<String, (u64, Vec<f64>)>,
}

impl Differences {
    /// Remembers a result of the first pass.
    pub(super) fn expect(&mut self, call: Call, result: f64) {
        self.expected.insert(call, result);
    }

    /// Compares a result of the second pass with that of the first.
    pub(super) fn compare(&mut self, call: &Call, result: f64) {
        let Some(expected) = self.expected.remove(call) else { return };
        let (compared, differences) = self.found.entry(call.message.clone()).or_default();
        *compared += 1;
        differences.extend(Some(relative_difference(&expected, &result)).filter(|difference| *difference != 0.0));
    }

    /// Takes the differences since the last call.
    pub(super) fn take(&mut self) -> Vec<CheckDifferences> {
        let found = std::mem::take(&mut self.found).into_iter();
        found
            .map(|(message, (compared, differences))| CheckDifferences {
                message,
                compared,
                different: differences.len() as u64,
                spread: Spread::from_differences(differences),
            })
            .collect()
    }
}

/// Differences between the results of one check on one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckDifferences {
    /// Name of the check.
    pub message: String,
    /// Results that were computed twice.
    pub compared: u64,
    /// Number of results that differed.
    pub different: u64,
    /// The relative differences of these; `None` if there were none.
    pub spread: Option<Spread>,
}

/// Relative differences in a few figures. As text, because a difference may be infinite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    mean: String,
    median: String,
    percentile_90: String,
    percentile_99: String,
    largest: String,
}

impl Spread {
    fn from_differences(mut differences: Vec<f64>) -> Option<Self> {
        differences.sort_by(f64::total_cmp);
        let largest = *differences.last()?;
        // The smallest that no more than this part of all exceed.
        let quantile = |part: f64| differences[((differences.len() - 1) as f64 * part).ceil() as usize];
        let text = |value: f64| format!("{value:.3E}");
        Some(Self {
            mean: text(differences.iter().sum::<f64>() / differences.len() as f64),
            median: text(quantile(0.5)),
            percentile_90: text(quantile(0.9)),
            percentile_99: text(quantile(0.99)),
            largest: text(largest),
        })
    }
}

impl std::fmt::Display for CheckDifferences {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { compared, different, .. } = self;
        match &self.spread {
            None => write!(f, "{compared} of {compared} results are identical"),
            Some(Spread { mean, median, percentile_90, percentile_99, largest }) => write!(
                f,
                "{different} of {compared} results differ, relatively by: mean {mean}, median {median}, 90% {percentile_90}, \
                 99% {percentile_99}, largest {largest}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_counted_by_check_and_forgotten_when_taken() {
        let mut differences = Differences::default();
        let call = |message: &str, sequence| Call { message: message.to_owned(), sequence };
        for (sequence, first, second) in [(1, 1.0, 1.0), (2, f64::NAN, f64::NAN), (3, 1.0, 3.0), (4, 1.0, f64::NAN)] {
            differences.expect(call("a", sequence), first);
            differences.compare(&call("a", sequence), second);
        }
        differences.expect(call("b", 1), 2.0);
        differences.compare(&call("b", 1), 2.0);
        // Results that the first pass did not have are not compared.
        differences.compare(&call("c", 1), 2.0);
        let texts: Vec<String> = differences.take().iter().map(|found| format!("{}: {found}", found.message)).collect();
        assert_eq!(
            texts,
            [
                "a: 2 of 4 results differ, relatively by: mean inf, median inf, 90% inf, 99% inf, largest inf",
                "b: 1 of 1 results are identical",
            ]
        );
        assert!(differences.take().is_empty());
    }

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let spread = Spread::from_differences((1..=100).map(f64::from).collect()).expect("differences");
        assert_eq!(
            [spread.mean, spread.median, spread.percentile_90, spread.percentile_99, spread.largest],
            ["5.050E1", "5.100E1", "9.100E1", "1.000E2", "1.000E2"]
        );
        assert_eq!(Spread::from_differences(Vec::new()), None);
    }
}
