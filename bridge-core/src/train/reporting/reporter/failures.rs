//! Log files that cannot be written. A failed log file does not end the run: training continues
//! without it, with a warning.

use std::collections::BTreeMap;

use crate::logging::{Deferred, SinkError};

/// Failures of one log file.
#[derive(Debug)]
struct Failures {
    count: u64,
    /// Iteration and message of the first.
    first: (u64, String),
}

/// Failed writes, by file.
#[derive(Debug, Default)]
pub(super) struct LogFailures {
    files: BTreeMap<String, Failures>,
}

impl LogFailures {
    /// Counts the failure `error` of the file `what` in `iteration`. Returns a message at the first
    /// failure of a file, the tenth, the hundredth, and so on.
    pub(super) fn count(&mut self, iteration: u64, what: &str, error: &SinkError) -> Option<String> {
        let (what, message) = (what.to_owned(), error.to_string());
        if error.is::<Deferred>() {
            return Some(format!("iteration {iteration}: {what}: {message}; training goes on"));
        }
        let first = (iteration, message.clone());
        let failures = self.files.entry(what.clone()).or_insert(Failures { count: 0, first });
        failures.count += 1;
        let is_power_of_ten = 10_u64.checked_pow(failures.count.ilog10()) == Some(failures.count);
        is_power_of_ten.then(|| match failures.count {
            1 => format!("iteration {iteration}: {what} could not be written: {message}; training goes on without it"),
            count => format!("iteration {iteration}: {what} could not be written {count} times so far: {message}"),
        })
    }

    /// Summary of the missing parts of the whole run's logs.
    pub(super) fn summary(&self) -> Option<String> {
        let of_file = |(what, failures): (&String, &Failures)| {
            let (iteration, message) = &failures.first;
            let times = if failures.count == 1 { "once".to_owned() } else { format!("{} times", failures.count) };
            format!("{what} ({times}, first in iteration {iteration}: {message})")
        };
        let files: Vec<String> = self.files.iter().map(of_file).collect();
        (!files.is_empty())
            .then(|| format!("the logs are incomplete, these could not be written: {}", files.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_at_first_rarely_then_and_at_the_end() {
        let mut failures = LogFailures::default();
        assert_eq!(failures.summary(), None);
        let full = SinkError::from("no space");
        let count = |iteration: &u64| failures.count(*iteration, "metrics.jsonl", &full).is_some();
        let told: Vec<u64> = (1..=250).filter(count).collect();
        assert_eq!(told, [1, 10, 100]);
        let later: SinkError = Box::new(Deferred("not there".into()));
        assert_eq!(
            failures.count(250, "mlflow", &later).unwrap(),
            "iteration 250: mlflow: not there; training goes on"
        );
        let line = failures.count(300, "progress.txt", &SinkError::from("gone")).unwrap();
        assert!(line.contains("iteration 300: progress.txt could not be written: gone"), "{line}");
        assert_eq!(
            failures.summary().unwrap(),
            "the logs are incomplete, these could not be written: metrics.jsonl (250 times, first in iteration 1: no space); \
             progress.txt (once, first in iteration 300: gone)"
        );
    }
}
