//! Counts the iterations in a row that a run has learned nothing from. A count only; who ends the
//! run is the training loop.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Contribution of an iteration to learning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learning {
    /// The loss was finite, and parameters were updated.
    Learned,
    /// The gradients overflowed while a dynamic loss scale was falling. The iteration is not
    /// evidence about the run.
    FindingScale,
    /// The loss or the gradients were not finite.
    Failed,
}

/// Duration of a stall.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// Iterations in a row that failed.
    iterations: u64,
    /// The newest checkpoint from before the first of them.
    last_good: Option<PathBuf>,
}

impl Stall {
    /// A run that does not stand still and starts from a checkpoint.
    pub fn after(checkpoint: &Path) -> Self {
        Self { iterations: 0, last_good: Some(checkpoint.to_owned()) }
    }

    /// Counts an iteration. Returns how many in a row have failed.
    pub fn count(&mut self, learning: Learning) -> u64 {
        match learning {
            Learning::Learned => self.iterations = 0,
            Learning::FindingScale => {}
            Learning::Failed => self.iterations += 1,
        }
        self.iterations
    }

    /// Notes that a checkpoint was saved.
    pub fn saved(&mut self, checkpoint: PathBuf) {
        if !self.is_standing_still() {
            self.last_good = Some(checkpoint);
        }
    }

    /// True if the last iteration that was evidence failed.
    pub fn is_standing_still(&self) -> bool {
        self.iterations > 0
    }

    /// The newest checkpoint from before the run came to a stop; it may have been deleted since.
    pub fn last_good(&self) -> Option<&Path> {
        self.last_good.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_in_a_row_count() {
        let mut stall = Stall::default();
        let counts = [
            (Learning::FindingScale, 0),
            (Learning::Failed, 1),
            (Learning::FindingScale, 1),
            (Learning::Failed, 2),
            (Learning::Learned, 0),
            (Learning::Failed, 1),
        ];
        for (learning, expected) in counts {
            assert_eq!(stall.count(learning), expected);
        }
    }

    #[test]
    fn a_checkpoint_of_a_run_that_stands_still_is_not_the_last_good_one() {
        let mut stall = Stall::after(Path::new("iter_2"));
        stall.saved("iter_4".into());
        stall.count(Learning::Failed);
        stall.saved("iter_6".into());
        assert_eq!(stall.last_good(), Some(Path::new("iter_4")));
        let resumed: Stall = serde_json::from_str(&serde_json::to_string(&stall).unwrap()).unwrap();
        assert_eq!(resumed, stall);
        stall.count(Learning::Learned);
        stall.saved("iter_8".into());
        assert_eq!(stall.last_good(), Some(Path::new("iter_8")));
    }
}
