//! Checkpoints that are deleted after a save, and those that never are.

use super::*;

fn retaining(root: &Path, most_recent_k: i64, interval: Option<u64>) -> CheckpointWriter {
    let retention = RetentionPolicy::new(most_recent_k, interval).unwrap();
    CheckpointWriter::open(root, SaveOptions { retention, ..SaveOptions::default() }).unwrap()
}

fn steps(root: &Path) -> Vec<u64> {
    CheckpointStore::open(root).unwrap().list().unwrap().iter().filter_map(|s| s.iteration).collect()
}

#[test]
fn saves_keep_the_last_and_the_multiples() {
    let dir = tempfile::tempdir().unwrap();
    let writer = retaining(dir.path(), 2, Some(4));
    let mut deleted = Vec::new();
    for step in 1..=9 {
        let report = writer.save(&snapshot(step)).unwrap();
        assert!(report.prune_error.is_none());
        deleted.extend(report.pruned);
    }
    assert_eq!(deleted, [1, 2, 3, 5, 6, 7]);
    assert_eq!(steps(dir.path()), [4, 8, 9]);
    assert_eq!(names_in(dir.path()).len(), 5, "nothing is left in the trash");
}

#[test]
fn a_run_that_went_back_deletes_neither_its_own_nor_the_abandoned_checkpoints() {
    let dir = root_with(&[1, 2, 3, 7, 8]);
    let report = retaining(dir.path(), 2, None).save(&snapshot_of(3, 0.5)).unwrap();
    assert_eq!(report.pruned, [1]);
    assert_eq!(steps(dir.path()), [2, 3, 7, 8]);
}

#[test]
fn the_only_intact_one_stays() {
    let dir = root_with(&[1, 2, 3, 4]);
    for step in [2, 3, 4] {
        fs::remove_file(folder(dir.path(), step).join(TRAIN_STATE_FILE)).unwrap();
    }
    assert_eq!(retaining(dir.path(), 2, None).prune().unwrap(), [2]);
    assert_eq!(steps(dir.path()), [1, 3, 4]);
    assert_eq!(found(resolve_or_fall_back(dir.path()).unwrap()).checkpoint.iteration(), 1);
    // A new one is intact, and the old one may go.
    assert_eq!(retaining(dir.path(), 2, None).save(&snapshot(5)).unwrap().pruned, [1, 3]);
}

#[test]
fn without_a_pointer_nothing_is_deleted() {
    let dir = root_with(&[1, 2, 3]);
    fs::remove_file(dir.path().join(LATEST_FILE)).unwrap();
    assert_eq!(retaining(dir.path(), 1, None).prune().unwrap(), [0u64; 0]);
    fs::write(dir.path().join(LATEST_FILE), "3").unwrap();
    assert_eq!(retaining(dir.path(), 1, None).prune().unwrap(), [1, 2]);
}

/// Saves `step`, with `best` as the one to keep.
fn save_with_best(writer: &CheckpointWriter, step: u64, best: Option<u64>) -> Vec<u64> {
    let mut snapshot = snapshot(step);
    snapshot.run.best = best;
    writer.save(&snapshot).unwrap().pruned
}

#[test]
fn the_best_one_stays_until_there_is_a_better_one() {
    let dir = tempfile::tempdir().unwrap();
    let writer = retaining(dir.path(), 1, None);
    save_with_best(&writer, 1, Some(1));
    assert_eq!(save_with_best(&writer, 2, Some(1)), [0u64; 0]);
    assert_eq!(save_with_best(&writer, 3, Some(1)), [2]);
    let best = || CheckpointStore::open(dir.path().join("best")).unwrap().list().unwrap()[0].iteration;
    assert_eq!(best(), Some(1));
    // Another run of the same root that keeps none for its loss leaves it alone.
    assert_eq!(save_with_best(&writer, 4, None), [3]);
    // A checkpoint that is not here is not pointed to.
    assert_eq!(save_with_best(&writer, 5, Some(77)), [4]);
    assert_eq!(best(), Some(1));
    assert_eq!(save_with_best(&writer, 6, Some(6)), [1, 5]);
    assert_eq!(best(), Some(6));
    assert_eq!(CheckpointStore::open(dir.path().join("latest")).unwrap().path(), dir.path());
    // Where nothing says which one is the best, none is deleted.
    fs::write(dir.path().join(BEST_FILE), "six").unwrap();
    assert_eq!(save_with_best(&writer, 7, None), [0u64; 0]);
    let error = CheckpointStore::open(dir.path().join("best")).unwrap_err();
    assert!(error.is_bad_input() && error.to_string().contains(BEST_FILE), "{error}");
}

#[test]
fn best_and_latest_are_names_like_others_outside_of_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["best", "latest"] {
        let path = dir.path().join(name);
        let store = CheckpointStore::open(&path).unwrap();
        assert_eq!((store.path(), store.list().unwrap().len()), (path.as_path(), 0));
        // A folder of this name is an ordinary store.
        writer(&path).save(&snapshot(3)).unwrap();
        assert_eq!(steps(&path), [3]);
    }
}
