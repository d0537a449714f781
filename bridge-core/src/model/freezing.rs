//! `model.freeze_parameters`: parameters that keep their values, by name.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Adapter, Declaration, ModelBuildError};

const KEY: &str = "model.freeze_parameters";

/// Freezes the parameters whose names match a pattern, and leaves all else to another adapter, if
/// there is one. Parameters of that one are not asked for.
#[derive(Debug)]
pub(super) struct Freezing {
    patterns: Vec<String>,
    other: Option<Arc<dyn Adapter>>,
    met: Mutex<Met>,
}

/// Patterns and parameters of the declarations so far.
#[derive(Debug, Default)]
struct Met {
    /// The patterns that a parameter was found for.
    patterns: BTreeSet<usize>,
    /// True if a parameter is trained.
    trains: bool,
}

impl Freezing {
    pub fn new(patterns: Vec<String>, other: Option<Arc<dyn Adapter>>) -> Self {
        Self { patterns, other, met: Mutex::default() }
    }
}

impl Adapter for Freezing {
    fn trains(&self, declaration: &Declaration) -> bool {
        let matching = (0..self.patterns.len()).filter(|i| matches_pattern(&self.patterns[*i], &declaration.name));
        let matching: Vec<usize> = matching.collect();
        let trains = matching.is_empty() && self.other.as_ref().is_none_or(|other| other.trains(declaration));
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        met.patterns.extend(matching);
        met.trains |= trains && declaration.trainable;
        trains
    }

    fn inner(&self) -> Option<&dyn Adapter> {
        self.other.as_deref()
    }

    fn check_met(&self) -> Result<(), ModelBuildError> {
        let met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let invalid = |message: String| Err(ModelBuildError::Invalid { key: KEY.into(), message });
        match (0..self.patterns.len()).find(|pattern| !met.patterns.contains(pattern)) {
            Some(unmet) => invalid(format!("`{}` is the name of no parameter of the model", self.patterns[unmet])),
            None if !met.trains && self.other.is_none() => invalid("leaves no parameter to train".into()),
            None => self.other.as_ref().map_or(Ok(()), |other| other.check_met()),
        }
    }
}

/// True if `pattern`, in which `*` is any run of characters, matches all of `name`.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let pieces: Vec<&str> = rest.split('*').collect();
    let (last, middle) = pieces.split_last().expect("a split has a piece");
    for piece in middle {
        match left.find(piece) {
            Some(place) => left = &left[place + piece.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_are_any_run_of_characters() {
        for (pattern, name, expected) in [
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acd", false),
            ("*", "", true),
            ("*b*", "abc", true),
            ("a*bc*c", "abc", false),
            ("abc", "abcd", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), expected, "{pattern} {name}");
        }
    }
}
