//! Choice of the checkpoints that are kept. Deletes only in [`prune`] and [`move_to_trash`].

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use super::error::CheckpointError;
use super::fsio::{remove_all, rename_durably};
use super::journal::{Pointer, read_best};
use super::names::trash_name;
use super::store::RootState;
use super::verify::{Verification, verify_folder};

/// Number of checkpoints that are kept. The latest, the one with the lowest validation loss and the
/// last intact one are always kept. Checkpoints newer than the latest, which a run that resumed
/// from an earlier one has abandoned, are neither counted nor deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetentionPolicy {
    most_recent_k: Option<NonZeroUsize>,
    save_retain_interval: Option<NonZeroU64>,
}

impl RetentionPolicy {
    /// Keeps the last `most_recent_k` checkpoints by iteration (all for -1), and every one whose
    /// iteration is a multiple of `save_retain_interval`.
    ///
    /// # Errors
    /// For a `most_recent_k` of 0 or below -1, and an interval of 0.
    pub fn new(most_recent_k: i64, save_retain_interval: Option<u64>) -> Result<Self, CheckpointError> {
        let invalid_k = CheckpointError::InvalidRetention {
            key: "most_recent_k",
            found: most_recent_k,
            expected: "-1 (keep all) or the number of checkpoints to keep, 1 or more",
        };
        let k = match most_recent_k {
            -1 => None,
            k => Some(usize::try_from(k).ok().and_then(NonZeroUsize::new).ok_or(invalid_k)?),
        };
        let interval = match save_retain_interval {
            None => None,
            Some(interval) => Some(NonZeroU64::new(interval).ok_or(CheckpointError::InvalidRetention {
                key: "save_retain_interval",
                found: 0,
                expected: "1 or more",
            })?),
        };
        Ok(Self { most_recent_k: k, save_retain_interval: interval })
    }

    /// Iterations of `iterations` (ascending) that may be deleted, oldest first.
    pub(super) fn disposable(&self, iterations: &[u64], latest: u64, best: Option<u64>) -> Vec<u64> {
        let Some(k) = self.most_recent_k else { return Vec::new() };
        let past: Vec<u64> = iterations.iter().copied().filter(|&iteration| iteration <= latest).collect();
        let retained = |iteration: u64| self.save_retain_interval.is_some_and(|i| iteration.is_multiple_of(i.get()));
        let old = &past[..past.len().saturating_sub(k.get())];
        let pointed_to = |iteration: u64| iteration == latest || Some(iteration) == best;
        old.iter().copied().filter(|&iteration| !pointed_to(iteration) && !retained(iteration)).collect()
    }
}

/// Deletes checkpoints that `policy` does not keep and returns their iterations, oldest first.
/// Further arguments are those of [`disposable`].
pub(super) fn prune(
    root: &Path,
    policy: &RetentionPolicy,
    known_intact: Option<u64>,
    protected: Option<u64>,
) -> Result<Vec<u64>, CheckpointError> {
    let disposable = disposable(root, policy, known_intact, protected)?;
    for (iteration, folder) in &disposable {
        move_to_trash(root, folder, *iteration)?;
    }
    Ok(disposable.into_keys().collect())
}

/// The folders that `policy` does not keep, by iteration. `known_intact` is a checkpoint that this
/// process has just written, which spares verifying one; `protected` is one that is not deleted.
pub(super) fn disposable(
    root: &Path,
    policy: &RetentionPolicy,
    known_intact: Option<u64>,
    protected: Option<u64>,
) -> Result<BTreeMap<u64, PathBuf>, CheckpointError> {
    let mut state = RootState::read(root)?;
    // Without a pointer it is unknown which checkpoint must be kept.
    let Pointer::Iteration(latest) = state.pointer else { return Ok(BTreeMap::new()) };
    let best = match read_best(root)? {
        Pointer::Iteration(best) => Some(best),
        Pointer::Missing => None,
        // It is unknown which one is the best.
        Pointer::Garbage(_) => return Ok(BTreeMap::new()),
    };
    let iterations: Vec<u64> = state.entries.keys().copied().collect();
    let mut disposable = policy.disposable(&iterations, latest, best);
    disposable.retain(|iteration| protected != Some(*iteration));
    let kept: Vec<u64> = iterations.into_iter().filter(|iteration| !disposable.contains(iteration)).collect();
    if !disposable.is_empty() && known_intact.is_none_or(|iteration| !kept.contains(&iteration)) {
        let intact = |iteration: &u64| verify_folder(&state.entries[iteration].path, Verification::Contents).is_ok();
        if !kept.iter().rev().any(intact)
            && let Some(last) = disposable.iter().rposition(intact)
        {
            disposable.remove(last);
        }
    }
    Ok(disposable
        .into_iter()
        .filter_map(|iteration| Some((iteration, state.entries.remove(&iteration)?.path)))
        .collect())
}

/// Deletes a checkpoint. It is renamed first, so that an interrupted deletion does not look like a
/// damaged checkpoint.
pub(super) fn move_to_trash(root: &Path, folder: &Path, iteration: u64) -> Result<(), CheckpointError> {
    let trash = root.join(trash_name(iteration));
    remove_all(&trash)?;
    rename_durably(folder, &trash)?;
    remove_all(&trash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disposable(k: i64, interval: Option<u64>, latest: u64) -> Vec<u64> {
        RetentionPolicy::new(k, interval).unwrap().disposable(&[0, 10, 20, 30, 40, 50], latest, None)
    }

    #[test]
    fn the_last_k_stay() {
        assert_eq!(disposable(-1, None, 50), [0u64; 0]);
        assert_eq!(disposable(1, None, 50), [0, 10, 20, 30, 40]);
        assert_eq!(disposable(2, None, 50), [0, 10, 20, 30]);
        assert_eq!(disposable(6, None, 50), [0u64; 0]);
        assert_eq!(disposable(i64::MAX, None, 50), [0u64; 0]);
    }

    #[test]
    fn multiples_of_the_interval_stay_for_ever() {
        assert_eq!(disposable(2, Some(20), 50), [10, 30]);
        assert_eq!(disposable(2, Some(1), 50), [0u64; 0]);
        assert_eq!(disposable(-1, Some(20), 50), [0u64; 0]);
    }

    #[test]
    fn the_latest_stays_and_what_is_newer_is_not_counted() {
        assert_eq!(disposable(1, None, 20), [0, 10]);
        assert_eq!(disposable(2, None, 20), [0]);
        assert_eq!(disposable(1, None, 0), [0u64; 0]);
    }

    #[test]
    fn the_best_stays() {
        let policy = RetentionPolicy::new(1, None).unwrap();
        assert_eq!(policy.disposable(&[10, 20, 30], 30, Some(10)), [20]);
        assert_eq!(policy.disposable(&[10, 20, 30], 30, Some(99)), [10, 20]);
    }

    #[test]
    fn settings_that_mean_nothing_are_errors() {
        for k in [0, -2, i64::MIN] {
            let error = RetentionPolicy::new(k, None).unwrap_err().to_string();
            assert!(error.starts_with(&format!("most_recent_k = {k}: expected -1")), "{error}");
        }
        assert!(RetentionPolicy::new(1, Some(0)).unwrap_err().to_string().contains("save_retain_interval = 0"));
    }
}
