//! Messages about datasets while they are built, and about those that are read repeatedly.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bridge_data::{BuildEvent, BuildObserver};

use crate::logging::ProgressSink;
use crate::logging::terminal::complain;
use crate::train::data::input_fingerprints::Examples;

/// Prints events of building datasets, and counts passes over them.
pub(in crate::train) struct Narrator {
    pub progress: Arc<dyn ProgressSink>,
    pub told: Arc<Mutex<Told>>,
    /// Samples of one validation.
    pub validation: u64,
}

/// Record of the messages.
#[derive(Default)]
pub(in crate::train) struct Told {
    /// Splits that are read again and again.
    pub repeats: Vec<String>,
    /// The examples of each split.
    pub examples: BTreeMap<String, Examples>,
    /// Samples of a pass over each part of the training data.
    pub passes: Vec<u64>,
}

/// Text that is read more often than this in training is mostly learned by heart (Muennighoff et
/// al., 2023, arXiv 2305.16264).
const MOST_PASSES: usize = 4;

impl Narrator {
    /// Warning about text that is read repeatedly: in training, or in a single validation.
    fn repeated(&self, event: &BuildEvent) -> Option<String> {
        let BuildEvent::Ready { path, split, samples, epochs, .. } = event else { return None };
        let once = (samples / epochs.max(&1)) as u64;
        match *split {
            "train" if *epochs > MOST_PASSES => Some(format!(
                "{path}: the train split has about {once} samples and is read {epochs} times (train.train_iters x train.global_batch_size samples): \
                 so little text is learned by heart"
            )),
            "valid" if once < self.validation => Some(format!(
                "{path}: the valid split has about {once} samples, and each evaluation reads {} (validation.eval_iters x \
                 validation.eval_global_batch_size), some again and again; validation.full_validation = true reads each once",
                self.validation
            )),
            _ => None,
        }
    }
}

impl BuildObserver for Narrator {
    fn on_event(&self, event: &BuildEvent) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.repeats.extend(self.repeated(event));
        if let BuildEvent::Ready { split: "train", samples, epochs, .. } = event {
            told.passes.push((samples / epochs.max(&1)) as u64);
        }
        if let BuildEvent::Examples { report } = event {
            // A split comes before the files that it is made of.
            told.examples.entry(report.split.clone()).or_insert_with(|| Examples::from_report(report));
        }
        drop(told);
        let is_warning = match event {
            BuildEvent::CacheRejected { .. } | BuildEvent::CacheNotWritten { .. } | BuildEvent::Overlap { .. } => true,
            BuildEvent::Examples { report } => report.lacks(),
            BuildEvent::Building { .. } | BuildEvent::Ready { .. } => false,
        };
        if is_warning {
            self.progress.suspend(&mut || complain(&format!("warning: {event}")));
        }
    }
}
