//! Takes statistics of the tensors of a step as they come by.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::statistics::Statistics;
use bridge_config::tensor_features::{Rule, Statistic, TensorKind};

/// Statistics of a tensor of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gathered {
    /// The parameter, or the segment.
    pub name: String,
    /// Kind of the tensor.
    pub kind: TensorKind,
    /// The figures that are wanted.
    pub wanted: BTreeSet<Statistic>,
    /// Statistics of its numbers.
    pub statistics: Statistics,
}

/// The statistics of this rank, in steps whose tensors are inspected. In other steps each tensor
/// costs one atomic load.
#[derive(Default)]
pub struct Inspector {
    is_on: AtomicBool,
    state: Mutex<State>,
}

type Matcher = Box<dyn Fn(&str) -> bool + Send>;

#[derive(Default)]
struct State {
    /// The rules that are due, with what chooses the names of their tensors.
    due: Vec<(Rule, Matcher)>,
    kept: BTreeMap<(String, TensorKind), Statistics>,
    /// Factors that make gradients of parameters and of streams those of the loss.
    factors: Option<(f64, f64)>,
    counts_streams: bool,
}

impl Inspector {
    /// Starts inspecting tensors by the given rules; without rules, stops. Unless `counts_streams`,
    /// another rank with the same residual stream inspects the stream.
    pub fn begin<'r>(&self, due: impl IntoIterator<Item = &'r Rule>, counts_streams: bool) {
        let due = due.into_iter().map(|rule| (rule.clone(), Box::new(rule.matcher()) as Matcher));
        let state = State { due: due.collect(), counts_streams, ..State::default() };
        self.is_on.store(!state.due.is_empty(), Ordering::Relaxed);
        *self.state() = state;
    }

    /// True if tensors are inspected.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// True if tensors of this kind are inspected.
    pub fn wants(&self, kind: TensorKind) -> bool {
        self.is_on() && self.state().due.iter().any(|(rule, _)| rule.kind == kind)
    }

    /// Adds the numbers of a tensor, or of a part of it, if they are wanted.
    pub fn add(&self, name: &str, kind: TensorKind, values: impl FnOnce() -> Vec<f32>) {
        if !self.is_on() || !self.state().wants(name, kind) {
            return;
        }
        let values = values();
        if values.is_empty() {
            return;
        }
        let statistics = Statistics::measure(&values);
        let mut state = self.state();
        let kept = state.kept.entry((name.to_owned(), kind)).or_default();
        *kept = std::mem::take(kept).joined(statistics);
    }

    /// Sets the factors of the gradients of parameters and of streams.
    pub fn scale_gradients(&self, of_parameters: f64, of_streams: f64) {
        self.state().factors = Some((of_parameters, of_streams));
    }

    /// Drops all added statistics, because the pass over the micro-batches is repeated.
    pub fn restart(&self) {
        if self.is_on() {
            self.state().kept.clear();
        }
    }

    /// Ends the inspection, and returns the added statistics, by name and kind.
    pub fn end(&self) -> Vec<Gathered> {
        self.is_on.store(false, Ordering::Relaxed);
        let State { due, kept, factors, .. } = std::mem::take(&mut *self.state());
        let (of_parameters, of_streams) = factors.unwrap_or((1.0, 1.0));
        let gathered = kept.into_iter().map(|((name, kind), statistics)| {
            let wanted = due.iter().filter(|(rule, matches)| rule.kind == kind && matches(&name));
            let wanted = wanted.flat_map(|(rule, _)| rule.statistics.iter().copied()).collect();
            let statistics = match kind {
                TensorKind::WeightGradient => statistics.scaled(of_parameters),
                _ if kind.is_gradient() => statistics.scaled(of_streams),
                _ => statistics,
            };
            Gathered { name, kind, wanted, statistics }
        });
        gathered.collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wants(&self, name: &str, kind: TensorKind) -> bool {
        let is_stream = !matches!(kind, TensorKind::Weight | TensorKind::WeightGradient);
        let is_counted = self.counts_streams || !is_stream;
        is_counted && self.due.iter().any(|(rule, matches)| rule.kind == kind && matches(name))
    }
}

impl fmt::Debug for Inspector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspector").field("is_on", &self.is_on).finish_non_exhaustive()
    }
}

/// Statistics of all ranks together, in the order of names and kinds.
pub fn of_all(ranks: impl IntoIterator<Item = Vec<Gathered>>) -> Vec<Gathered> {
    let mut all: BTreeMap<(String, TensorKind), Gathered> = BTreeMap::new();
    for gathered in ranks.into_iter().flatten() {
        let key = (gathered.name.clone(), gathered.kind);
        let gathered = match all.remove(&key) {
            Some(known) => Gathered { statistics: known.statistics.joined(gathered.statistics), ..known },
            None => gathered,
        };
        all.insert(key, gathered);
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bridge_config::tensor_features::rules;

    #[test]
    fn what_is_due_is_added_up_and_scaled() {
        let text = r#"
            [a]
            layers = { layer_types = ["fc1"] }
            LogTensorStats = { tensors = ["wgrad", "output"], stats = ["l1_norm"], freq = 2 }
        "#;
        let rules = rules(Some(&toml::Value::Table(text.parse().unwrap())), 1).unwrap();
        let inspector = Inspector::default();
        inspector.begin(rules.iter().filter(|rule| rule.is_due(1)), true);
        assert!(!inspector.is_on());
        inspector.begin(rules.iter().filter(|rule| rule.is_due(2)), false);
        assert!(inspector.wants(TensorKind::WeightGradient) && !inspector.wants(TensorKind::Weight));
        inspector.add("fc1.weight", TensorKind::WeightGradient, || vec![100.0]);
        inspector.restart();
        inspector.add("fc1.weight", TensorKind::WeightGradient, || vec![1.0, -2.0]);
        inspector.add("fc1.weight", TensorKind::WeightGradient, || vec![3.0]);
        inspector.add("fc1.weight", TensorKind::Weight, || unreachable!("not wanted"));
        inspector.add("fc2.weight", TensorKind::WeightGradient, || unreachable!("no such layer"));
        inspector.add("fc1", TensorKind::Output, || unreachable!("another rank counts it"));
        inspector.scale_gradients(0.5, 9.0);
        let mine = inspector.end();
        assert!(!inspector.is_on());
        assert_eq!(mine.len(), 1);
        assert_eq!(mine[0].wanted, BTreeSet::from([Statistic::L1Norm]));
        assert_eq!(mine[0].statistics.get(Statistic::L1Norm), 3.0);
        let all = of_all([mine.clone(), Vec::new(), mine]);
        assert_eq!((all.len(), all[0].statistics.get(Statistic::L1Norm)), (1, 6.0));
    }
}
